/* coll.h - collectives and communicators, as the hooks record them. */
#ifndef TASKD_COLL_H
#define TASKD_COLL_H

#include "core.h"

/* Record of an open operation. It ends with its scope, also on a C++ exception. */
struct td_note {
    uint64_t ticket;
};

static inline void td_note_end(struct td_note *note)
{
    if (note->ticket)
        taskd_leave(note->ticket);
}

#define TD_NOTED(op, backend, handle, bytes, dtype, peer)                                                                    \
    struct td_note td_noted __attribute__((cleanup(td_note_end), unused)) = {                                                \
        td_collective((op) | (backend) << TASKD_BACKEND_SHIFT, handle, bytes, dtype, peer)}

uint64_t td_collective(uint32_t op, const void *handle, uint64_t bytes, uint32_t dtype, int32_t peer);
void td_comm_open(const void *handle, uint32_t backend, uint64_t id, int rank, int ranks);
void td_comm_close(const void *handle);
void td_comm_reached(const void *handle, uint64_t number);
uint64_t td_comm_id(const void *handle);
uint32_t td_comm_next_part(const void *handle);
uint64_t td_hash(uint64_t hash, const void *bytes, size_t count);

#define TD_HASH_START 0xcbf29ce484222325ull     /* FNV-1a */

#endif
