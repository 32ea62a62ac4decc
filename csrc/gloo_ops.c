/* gloo_ops.c - records of gloo's collectives and transfers, as they begin and end.
 *
 * Rules:
 * 1. No field of gloo's objects is read, except the pointer in a std::shared_ptr. The communicator and the number of
 *    bytes come from the constructors of contexts and buffers. The thread that uses a buffer makes it just before.
 * 2. A collective has the size of the smallest buffer that its thread made for it: one rank's part, equal on all ranks.
 * 3. gloo's contexts have no name that ranks share, so taskd_name_comm gives one. Without it, contexts of equal size
 *    and equal position in the order of creation are taken for the same one on all ranks.
 * 4. Two threads run gloo's collectives, so the order of their starts differs between ranks. Their number comes from
 *    the caller's tag, which is part of the slot of their first transfer. Until then it is 0.
 * 5. gloo's exceptions pass through; the record ends with the scope. */
#define _GNU_SOURCE
#include "binding.h"
#include "gloo_ops.h"

#include <pthread.h>

#define CALLER() td_gloo_of(TD_CALLER())
#define OWN_THREAD static __thread __attribute__((tls_model("initial-exec")))

OWN_THREAD int depth;                           /* not 0: inside a collective */
OWN_THREAD const void *made_buffer;             /* the newest since the last operation; NULL: none */
OWN_THREAD const void *made_context;
OWN_THREAD uint64_t made_bytes;                 /* size of the smallest buffer */
OWN_THREAD int made_peer;
OWN_THREAD uint64_t next_id;
OWN_THREAD uint64_t unnumbered;                 /* the ticket of this thread's collective, until its number is known */
OWN_THREAD const void *unnumbered_context;

static _Atomic uint32_t contexts;

/* Give the name `id` to the next communicator that this thread makes without a name of its own; 0: cancel that. */
void taskd_name_comm(uint64_t id)
{
    next_id = id;
}

static uint64_t name_context(int size)
{
    uint64_t id = next_id;
    uint32_t number = atomic_fetch_add(&contexts, 1);
    next_id = 0;
    if (id)
        return id;
    id = td_hash(TD_HASH_START, &number, sizeof number);
    return td_hash(id, &size, sizeof size);
}

static void forget_buffer(void)
{
    made_buffer = made_context = NULL;
    made_bytes = 0;
    made_peer = -1;
}

uint64_t td_gloo_wait_begins(uint32_t op, const void *buffer)
{
    if (depth)
        return 0;
    const void *context = buffer == made_buffer ? made_context : NULL;
    uint64_t bytes = context ? made_bytes : 0;
    int peer = context ? made_peer : -1;
    forget_buffer();
    return td_collective(op | TASKD_BACKEND_GLOO << TASKD_BACKEND_SHIFT, context, bytes, 0, peer);
}

static void rise(int *unused)
{
    (void)unused;
    unnumbered = 0;
    depth--;
}

/* Take the number of a collective from a slot: 8 bits for the kind of collective, 32 for the tag, 24 for a count in
 * it. */
static void note_transfer(const void *buffer, int peer, uint64_t slot)
{
    uint64_t number = (slot >> 24 & UINT32_MAX) + 1;
    if (!depth && buffer == made_buffer)
        made_peer = peer;
    if (!unnumbered)
        return;
    td_number(unnumbered, number);
    td_comm_reached(unnumbered_context, number);
    unnumbered = 0;
}

static void noted(uint32_t op, td_collective_fn *collective, void *options)
{
    const void *context = made_context;
    uint64_t bytes = made_bytes;
    forget_buffer();
    td_gloo_seen(TASKD_HOOK_COLLECTIVES);
    int inside __attribute__((cleanup(rise), unused)) = depth++;
    uint64_t ticket = td_enter(op | TASKD_BACKEND_GLOO << TASKD_BACKEND_SHIFT, td_comm_id(context), 0, bytes, 0, -1);
    struct td_note note __attribute__((cleanup(td_note_end), unused)) = {ticket};
    unnumbered = ticket;
    unnumbered_context = context;
    collective(options);
}

#pragma GCC visibility push(default)
void hook_context(void *context, void *device, int rank, int size) __asm__(TD_GLOO_CONTEXT);
void hook_buffer(void *buffer, void *const *context, void *memory, size_t bytes) __asm__(TD_GLOO_BUFFER);
void hook_send(void *buffer, int peer, uint64_t slot, size_t offset, size_t bytes) __asm__(TD_GLOO_SEND);
void hook_recv(void *buffer, int peer, uint64_t slot, size_t offset, size_t bytes) __asm__(TD_GLOO_RECV);
#define DECLARE(own, name, op) void hook_##own(void *options) __asm__(name);
TD_GLOO_COLLECTIVES(DECLARE)
#pragma GCC visibility pop

void hook_context(void *context, void *device, int rank, int size)
{
    const struct td_gloo *gloo = CALLER();
    gloo->context(context, device, rank, size);
    td_comm_open(context, TASKD_BACKEND_GLOO, name_context(size), rank, size);
}

void hook_buffer(void *buffer, void *const *context, void *memory, size_t bytes)
{
    const struct td_gloo *gloo = CALLER();
    gloo->buffer(buffer, context, memory, bytes);
    if (depth)
        return;
    if (made_context != *context)
        forget_buffer();
    made_context = *context;
    made_buffer = buffer;
    made_bytes = made_bytes && made_bytes < bytes ? made_bytes : bytes;
}

void hook_send(void *buffer, int peer, uint64_t slot, size_t offset, size_t bytes)
{
    const struct td_gloo *gloo = CALLER();
    note_transfer(buffer, peer, slot);
    gloo->send(buffer, peer, slot, offset, bytes);
}

void hook_recv(void *buffer, int peer, uint64_t slot, size_t offset, size_t bytes)
{
    const struct td_gloo *gloo = CALLER();
    note_transfer(buffer, peer, slot);
    gloo->recv(buffer, peer, slot, offset, bytes);
}

#define DEFINE(own, name, op)                                                                                                \
    void hook_##own(void *options)                                                                                           \
    {                                                                                                                        \
        noted(op, CALLER()->collective[TD_GLOO_##own], options);                                                             \
    }
TD_GLOO_COLLECTIVES(DEFINE)

void td_gloo_ops_after_fork(void)
{
    atomic_store(&contexts, 0);
    depth = 0;
    next_id = unnumbered = 0;
    forget_buffer();
}
