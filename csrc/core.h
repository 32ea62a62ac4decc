/* core.h - declarations that the files of libtaskd_core.so share; none of them is exported. */
#ifndef TASKD_CORE_H
#define TASKD_CORE_H

#include "region.h"
#include "taskd.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* box.c; td_current() never returns NULL: it returns a private sink while this process has no box. */
struct td_box *td_current(void);
int td_map(const char *path, struct td_box **out, int *fd);
int td_replace_cut(const void *address);

/* beat.c */
int td_beat_start(void);
void td_beat_ring(struct td_box *box);
void td_beat_after_fork(void);

/* gloo.c */
int td_gloo_break(void);
void td_gloo_mend(void);
void td_gloo_seen(int hook);
void td_gloo_after_fork(void);

/* binding.c */
void td_binding_after_fork(void);

/* pulse.c */
void td_pulse_after_fork(void);

/* end.c */
void td_end_watch(void);

/* death.c */
void td_death_watch(void);
void td_death_stack(void);

/* notes.c */
uint64_t td_enter(uint32_t op, uint64_t comm, uint64_t number, uint64_t bytes, uint32_t dtype, int32_t peer);
void td_number(uint64_t ticket, uint64_t number);
void td_notes_after_fork(void);

/* gloo_ops.c */
void td_gloo_ops_after_fork(void);

/* coll.c */
void td_coll_after_fork(void);

/* nccl_profiler.c */
void td_device_time_renew(void);
void td_device_time_after_fork(void);

/* clocks.c */
void td_clocks_ask(struct td_box *box);
void td_clocks_after_fork(void);

/* look.c */
void td_look_after_fork(void);

/* libraries.c */
void td_libraries_note(struct td_box *box);
void td_libraries_before_fork(void);
void td_libraries_in_parent(void);
void td_libraries_after_fork(void);

static inline int64_t td_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Shared futexes, because the other side is another process. timeout_ns < 0 means no limit. Return 0 or -errno. */
static inline int td_futex_wait(td_u32 *word, uint32_t seen, int64_t timeout_ns)
{
    struct timespec limit = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
    return syscall(SYS_futex, word, FUTEX_WAIT, seen, timeout_ns < 0 ? NULL : &limit, NULL, 0) ? -errno : 0;
}

static inline void td_futex_wake_all(td_u32 *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

#endif
