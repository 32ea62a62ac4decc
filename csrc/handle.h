/* handle.h - an open box, for the files of the agent's side. */
#ifndef TASKD_HANDLE_H
#define TASKD_HANDLE_H

#include "region.h"

#include <pthread.h>

struct taskd_handle {
    struct td_box *box;         /* mapped only for the kernel to find its futexes; nothing here reads or writes it */
    int fd;
    pthread_mutex_t commanding;
    _Atomic int cancelled;
};

/* look.c */
int td_look(struct taskd_handle *handle, size_t at, size_t bytes, struct td_box **out);
void td_look_away(void);
int td_steady(const void *field, size_t bytes);
int td_read_word(struct taskd_handle *handle, const td_u32 *word, uint32_t *out);
int td_change_word(td_u32 *word, int op, int argument, int wake);

/* Call td_look for neighbouring groups of a box: from `first` up to, but not including, `behind`. */
#define TD_LOOK(handle, first, behind, out) \
    td_look(handle, offsetof(struct td_box, first), offsetof(struct td_box, behind) - offsetof(struct td_box, first), out)

#endif
