/* end.c - how the process ended, as far as it can say so itself.
 *
 * Rules:
 * 1. on_exit sees a return from main as well as exit(), which an interposed exit() does not; _exit and signals leave no
 *    record here, the agent has them from waitid.
 * 2. The first record stays. It is written by the owner of the box alone, never by a forked child. */
#define _GNU_SOURCE
#include "core.h"

#include <stdlib.h>

static void record_exit(int status, void *unused)
{
    (void)unused;
    struct td_box *box = td_current();
    uint32_t nobody = 0;
    if (atomic_load(&box->identity.owner) != getpid() || !atomic_compare_exchange_strong(&box->end.claimed, &nobody, 1))
        return;
    atomic_store(&box->end.status, status & 0xff);
    atomic_store(&box->end.end_ns, td_now_ns());
    atomic_store_explicit(&box->end.cause, TASKD_END_EXIT, memory_order_release);
}

/* Called when a box has been attached; a forked child has inherited the registration. */
void td_end_watch(void)
{
    static int watching;
    if (!watching)
        watching = on_exit(record_exit, NULL) == 0;
}
