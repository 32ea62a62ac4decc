/* gloo.c - gloo's connected sockets in this process, its threads that wait in a transfer, and the break of both.
 *
 * Rules:
 * 1. Only a Pair calls Device::(un)registerDescriptor, after it has connected and before it closes. That gives the
 *    exact set of sockets. Their shutdown fails the pairs, here and at the peers.
 * 2. A failing pair forgets queued sends and a receive that has begun. A thread that waits for those would sleep until
 *    the timeout of 30 minutes. So waits are listed too, and a break aborts each of them.
 * 3. An aborted wait never returns to gloo as a normal one: the ring would continue with wrong data. The wrapper waits
 *    one millisecond more. Then gloo throws its own IoException and fails all pairs of that context.
 * 4. A break is a state. It lasts until td_gloo_mend, and the beat thread applies it repeatedly. Sockets and waits that
 *    begin meanwhile break as well, so no race can leave a thread behind.
 * 5. The lock is never held while gloo may run code that takes it again; gloo's locks come after ours. */
#define _GNU_SOURCE
#include "binding.h"
#include "core.h"
#include "gloo_ops.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/socket.h>

/* One thread inside waitSend or waitRecv; lies on that thread's stack. */
struct waiter {
    void *buffer;
    td_abort_fn *abort;
    int kicked;
    struct waiter *next, **link;
};

enum { MOST_DESCRIPTORS = 1 << 20, WORD_BITS = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;    /* guards all that follows */
static uint64_t sockets[MOST_DESCRIPTORS / WORD_BITS];      /* bit fd: a connected pair socket */
static int highest = -1;
static struct waiter *waiters;
static uint64_t shut_count, kick_count;
static _Atomic int hooks;
static _Atomic int broken;

/* The gloo of a hook's caller. */
#define CALLER() td_gloo_of(TD_CALLER())

static int shut(int fd)
{
    return shutdown(fd, SHUT_RDWR) == 0;
}

void td_gloo_seen(int hook)
{
    if (!(atomic_load_explicit(&hooks, memory_order_relaxed) & hook))
        atomic_fetch_or_explicit(&hooks, hook, memory_order_relaxed);
}

static void note_socket(int fd)
{
    if (fd < 0 || fd >= MOST_DESCRIPTORS)
        return;
    int saved = errno;
    pthread_mutex_lock(&lock);
    sockets[fd / WORD_BITS] |= 1ull << fd % WORD_BITS;
    if (fd > highest)
        highest = fd;
    if (atomic_load(&broken))
        shut_count += shut(fd);
    pthread_mutex_unlock(&lock);
    errno = saved;
}

static void forget_socket(int fd)
{
    if (fd < 0 || fd >= MOST_DESCRIPTORS)
        return;
    pthread_mutex_lock(&lock);
    sockets[fd / WORD_BITS] &= ~(1ull << fd % WORD_BITS);
    pthread_mutex_unlock(&lock);
}

/* Call `act` for each listed socket and return the sum. The caller holds the lock. */
static int each_socket(int act(int fd))
{
    int sum = 0;
    for (int word = 0; word <= highest / WORD_BITS && highest >= 0; word++)
        for (uint64_t rest = sockets[word]; rest; rest &= rest - 1)
            sum += act(word * WORD_BITS + __builtin_ctzll(rest));
    return sum;
}

static int kick_all(void)
{
    int sum = 0;
    for (struct waiter *waiter = waiters; waiter; waiter = waiter->next, sum++) {
        waiter->kicked++;
        if (waiter->abort)
            waiter->abort(waiter->buffer);
    }
    return sum;
}

/* Break all sockets and waits and, until td_gloo_mend, all new ones. Return the number of sockets and waits broken
 * now. */
int td_gloo_break(void)
{
    int saved = errno;
    pthread_mutex_lock(&lock);
    atomic_store(&broken, 1);
    int shut_now = each_socket(shut), kicked_now = kick_all();
    shut_count += (uint64_t)shut_now;
    kick_count += (uint64_t)kicked_now;
    pthread_mutex_unlock(&lock);
    errno = saved;
    return shut_now + kicked_now;
}

void td_gloo_mend(void)
{
    pthread_mutex_lock(&lock);
    atomic_store(&broken, 0);
    pthread_mutex_unlock(&lock);
}

/* Break gloo for a thread of this process, and let the beat thread maintain the break. Return like td_gloo_break, or
 * -errno. */
int taskd_break(void)
{
    int hit = td_gloo_break();
    int error = td_beat_start();
    if (error)
        return error;
    td_beat_ring(td_current());
    return hit;
}

void taskd_mend(void)
{
    td_gloo_mend();
}

int taskd_broken(void)
{
    return atomic_load(&broken);
}

static int one(int fd)
{
    (void)fd;
    return 1;
}

void taskd_census(struct taskd_census *out)
{
    pthread_mutex_lock(&lock);
    int threads = 0;
    for (struct waiter *waiter = waiters; waiter; waiter = waiter->next)
        threads++;
    *out = (struct taskd_census){.sockets = each_socket(one),
                                 .waiters = threads,
                                 .hooks = atomic_load(&hooks),
                                 .broken = atomic_load(&broken),
                                 .shut = shut_count,
                                 .kicked = kick_count};
    pthread_mutex_unlock(&lock);
}

/* The child has no threads of gloo, and the sockets are the parent's: a shutdown here would break the parent. */
void td_gloo_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    for (int word = 0; word <= highest / WORD_BITS && highest >= 0; word++)
        sockets[word] = 0;
    highest = -1;
    waiters = NULL;
    shut_count = kick_count = 0;
    atomic_store(&hooks, 0);
    atomic_store(&broken, 0);
}

/* List the waiter; return whether gloo is broken already. */
static int enter(struct waiter *waiter)
{
    pthread_mutex_lock(&lock);
    waiter->next = waiters;
    waiter->link = &waiters;
    if (waiters)
        waiters->link = &waiter->next;
    waiters = waiter;
    int already = atomic_load(&broken);
    pthread_mutex_unlock(&lock);
    return already;
}

static void leave(struct waiter **waiter)
{
    pthread_mutex_lock(&lock);
    *(*waiter)->link = (*waiter)->next;
    if ((*waiter)->next)
        (*waiter)->next->link = (*waiter)->link;
    pthread_mutex_unlock(&lock);
}

/* Wait while listed. gloo's wait may throw: then too, the clean-up takes the waiter off the list. */
static bool listed(td_wait_fn *wait, struct waiter *waiter, int *peer, long timeout_ms)
{
    struct waiter *self __attribute__((cleanup(leave))) = waiter;
    return wait(waiter->buffer, peer, enter(self) ? 1 : timeout_ms);
}

static bool breakable(td_wait_fn *wait, td_abort_fn *abort, void *buffer, int *peer, long timeout_ms)
{
    struct waiter waiter = {.buffer = buffer, .abort = abort};
    int scratch;
    bool done = listed(wait, &waiter, peer, timeout_ms);
    if (!waiter.kicked)
        return done;
    if (done) {                                 /* ended before the kick: clear gloo's abort mark for the next wait */
        wait(buffer, &scratch, 1);
        return true;
    }
    while (!wait(buffer, peer, 1))              /* true: the transfer was complete after all; else gloo throws */
        ;
    return true;
}

/* The definitions that torch binds to, under gloo's own names. */
#pragma GCC visibility push(default)
void hook_register(void *device, int fd, int events, void *handler) __asm__(TD_GLOO_REGISTER);
void hook_unregister(void *device, int fd, void *handler) __asm__(TD_GLOO_UNREGISTER);
bool hook_wait_send(void *buffer, int *peer, long timeout_ms) __asm__(TD_GLOO_WAIT_SEND);
bool hook_wait_recv(void *buffer, int *peer, long timeout_ms) __asm__(TD_GLOO_WAIT_RECV);
#pragma GCC visibility pop

void hook_register(void *device, int fd, int events, void *handler)
{
    const struct td_gloo *gloo = CALLER();
    td_gloo_seen(TASKD_HOOK_SOCKETS);
    note_socket(fd);
    gloo->add(device, fd, events, handler);
}

void hook_unregister(void *device, int fd, void *handler)
{
    const struct td_gloo *gloo = CALLER();
    td_gloo_seen(TASKD_HOOK_SOCKETS);
    forget_socket(fd);
    gloo->drop(device, fd, handler);
}

bool hook_wait_send(void *buffer, int *peer, long timeout_ms)
{
    const struct td_gloo *gloo = CALLER();
    TD_NOTED_WAIT(TASKD_OP_SEND, buffer);
    td_gloo_seen(TASKD_HOOK_WAITS);
    return breakable(gloo->wait_send, gloo->abort_send, buffer, peer, timeout_ms);
}

bool hook_wait_recv(void *buffer, int *peer, long timeout_ms)
{
    const struct td_gloo *gloo = CALLER();
    TD_NOTED_WAIT(TASKD_OP_RECV, buffer);
    td_gloo_seen(TASKD_HOOK_WAITS);
    return breakable(gloo->wait_recv, gloo->abort_recv, buffer, peer, timeout_ms);
}
