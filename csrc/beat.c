/* beat.c - native thread of a worker: it beats, holds the life futex, watches the agent, executes its commands, and
 * maintains a break of gloo.
 *
 * Rules:
 * 1. The thread never takes the GIL and never allocates; it sleeps on the box's doorbell, which the agent can ring.
 * 2. One robust futex lies in the box. However the thread ends, kill -9 included, the kernel marks the futex and wakes
 *    the agent. That comes before the end of the address space, so the size of the process does not matter.
 * 3. The thread blocks all signals except the synchronous ones. If those were blocked, a fault could not kill the
 *    process.
 * 4. No worker outlives its agent. When the agent is gone, the process kills its group if it leads one, else itself. */
#define _GNU_SOURCE
#include "core.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

enum { PERIOD_MS = 200, BROKEN_PERIOD_MS = 20, STACK_BYTES = 256 * 1024 };

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static int running;
static struct robust_list_head robust;
static struct td_box *held;                     /* box whose life futex the thread holds; only the thread uses this */

static struct {
    _Atomic int pid;                            /* 0: no process is watched */
    _Atomic int fd;                             /* -1: this kernel has no pidfd, or no descriptor was left */
    _Atomic int child;                          /* the watched process was the parent when the watch began */
} agent = {.fd = -1};

void td_beat_ring(struct td_box *box)
{
    atomic_fetch_add(&box->command.doorbell, 1);
    td_futex_wake_all(&box->command.doorbell);
}

static void hold_life(struct td_box *box)
{
    box->life.entry = (uint64_t)(uintptr_t)&robust.list;
    robust.list.next = (struct robust_list *)(uintptr_t)&box->life.entry;
    robust.futex_offset = (long)offsetof(struct td_life, word) - (long)offsetof(struct td_life, entry);
    robust.list_op_pending = NULL;
    syscall(SYS_set_robust_list, &robust, sizeof robust);
    held = box;
    atomic_store(&box->life.word, (uint32_t)syscall(SYS_gettid));
    td_futex_wake_all(&box->life.word);
}

static int obey(uint32_t op)
{
    switch (op) {
    case TASKD_COMMAND_PING:
        return 0;
    case TASKD_COMMAND_BREAK:
        return td_gloo_break();
    case TASKD_COMMAND_MEND:
        td_gloo_mend();
        return 0;
    default:
        return -ENOSYS;
    }
}

static void answer(struct td_box *box)
{
    uint32_t asked = atomic_load(&box->command.asked);
    if (asked == atomic_load(&box->command.acked))
        return;
    atomic_store(&box->command.result, obey(atomic_load(&box->command.op)));
    atomic_store(&box->command.acked_ns, td_now_ns());
    atomic_store(&box->command.acked, asked);
    td_futex_wake_all(&box->command.acked);
}

static int readable(int fd)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    return poll(&one, 1, 0) == 1 && (one.revents & POLLIN);
}

static int ended(int pid)
{
    int fresh = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fresh < 0)
        return kill(pid, 0) && errno == ESRCH;
    int gone = readable(fresh);
    close(fresh);
    return gone;
}

/* The pidfd alone is no proof: a program that closes all descriptors may have reused its number for another file. */
static int agent_gone(int pid)
{
    int fd = atomic_load(&agent.fd);
    if (atomic_load(&agent.child) && getppid() != pid)
        return 1;
    return (fd < 0 || readable(fd)) && ended(pid);
}

static void end_with_agent(void)
{
    int pid = atomic_load(&agent.pid);
    if (!pid || !agent_gone(pid))
        return;
    kill(getpgrp() == getpid() ? 0 : getpid(), SIGKILL);
}

static void *beat(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, "taskd-beat");
    for (;;) {
        struct td_box *box = td_current();
        uint32_t doorbell = atomic_load(&box->command.doorbell);
        if (box != td_current())
            continue;
        if (box != held)
            hold_life(box);
        atomic_store_explicit(&box->beats.native_ns, td_now_ns(), memory_order_relaxed);
        atomic_fetch_add_explicit(&box->beats.native_count, 1, memory_order_relaxed);
        answer(box);
        td_libraries_note(box);
        td_clocks_ask(box);
        end_with_agent();
        int broken = taskd_broken();
        if (broken)
            td_gloo_break();
        td_futex_wait(&box->command.doorbell, doorbell, (broken ? BROKEN_PERIOD_MS : PERIOD_MS) * 1000000LL);
    }
    return NULL;
}

static int spawn(void)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t blocked, before;
    sigfillset(&blocked);
    static const int synchronous[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    for (unsigned i = 0; i < sizeof synchronous / sizeof *synchronous; i++)
        sigdelset(&blocked, synchronous[i]);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    int error = pthread_create(&thread, &attributes, beat, NULL);
    if (error == EINVAL) {                      /* the thread-local storage is too large for this stack */
        pthread_attr_destroy(&attributes);
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        error = pthread_create(&thread, &attributes, beat, NULL);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return -error;
}

/* Start the thread unless it is running. Return 0 or -errno. */
int td_beat_start(void)
{
    int error = 0;
    pthread_mutex_lock(&starting);
    if (!running)
        error = spawn();
    if (!error)
        running = 1;
    pthread_mutex_unlock(&starting);
    return error;
}

/* The child has neither the thread nor the kernel's list of its robust futexes. */
void td_beat_after_fork(void)
{
    pthread_mutex_init(&starting, NULL);
    running = 0;
    held = NULL;
    int fd = atomic_exchange(&agent.fd, -1);
    if (fd >= 0)
        close(fd);
    atomic_store(&agent.pid, 0);
}

/* Move a descriptor above the standard ones, and return it. In a process that was started without standard output, the
 * script's output would otherwise go to this descriptor and fail. */
static int above_standard(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int higher = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close(fd);
    return higher;
}

/* Tie this process to `pid`: when that process is gone (or already was), this one gets SIGKILL within 200 ms, with its
 * process group if it leads one. Return 0 or -errno. */
int taskd_watch_parent(int pid)
{
    if (pid <= 0)
        return -EINVAL;
    int fresh = above_standard((int)syscall(SYS_pidfd_open, pid, 0));
    atomic_store(&agent.pid, 0);
    int old = atomic_exchange(&agent.fd, fresh);
    if (old >= 0)
        close(old);
    atomic_store(&agent.child, getppid() == pid);
    atomic_store(&agent.pid, pid);
    int error = td_beat_start();
    if (!error)
        td_beat_ring(td_current());
    return error;
}
