/* gloo_ops.h - gloo's operations, as gloo.c and gloo_ops.c record them. */
#ifndef TASKD_GLOO_OPS_H
#define TASKD_GLOO_OPS_H

#include "coll.h"

uint64_t td_gloo_wait_begins(uint32_t op, const void *buffer);

/* Record a wait outside of a collective as a transfer of its own. The record ends with the scope. */
#define TD_NOTED_WAIT(op, buffer)                                                                                            \
    struct td_note td_noted __attribute__((cleanup(td_note_end), unused)) = {td_gloo_wait_begins(op, buffer)}

#endif
