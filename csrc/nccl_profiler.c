/* nccl_profiler.c - a profiler plugin of NCCL, which records when NCCL's kernels run on the device.
 *
 * Rules:
 * 1. NCCL opens this library by the name in NCCL_PROFILER_PLUGIN and takes the newest interface that both support
 *    (NVIDIA/nccl, plugins/profiler/README.md). Only the common part of interfaces 3, 4 and 5 is used: the kind of an
 *    event that begins, and the handle by which it ends. NCCL 2.26 is the first with interface 3.
 * 2. NCCL is busy on the device from the start of the first channel of any kernel until the end of the last one. That
 *    is one record, however many communicators there are. A rank's wait for the others is part of that time.
 * 3. Times are those of the reports of NCCL's proxy thread, because the device has another clock.
 * 4. A record that many others have followed is ended, and a new one begins. Otherwise a newer record would get its
 *    place in the ring, and its end would be lost.
 * 5. An event that was not requested gets no handle, and nothing here ever fails: NCCL continues whatever happens. */
#define _GNU_SOURCE
#include "core.h"

#include <pthread.h>
#include <stdlib.h>

#define EXPORTED __attribute__((visibility("default")))
#define RELAXED memory_order_relaxed

enum { KERNEL_CHANNEL = 1 << 6, RENEWED_AFTER = 128 };

/* A communicator, which is also the handle of its events. Never freed, because NCCL may end an event late. */
struct user {
    unsigned running;
    struct user *next;
};

static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
static struct user *spare;
static unsigned running;
static td_u64 ticket;           /* ticket of the open record; 0: none is open */

static void begin(void)
{
    const uint32_t op = TASKD_OP_KERNEL | TASKD_BACKEND_NCCL << TASKD_BACKEND_SHIFT;
    atomic_store_explicit(&ticket, td_enter(op, 0, 0, 0, 0, -1), RELAXED);
}

static void end(void)
{
    taskd_leave(atomic_load_explicit(&ticket, RELAXED));
    atomic_store_explicit(&ticket, 0, RELAXED);
}

static int is_old(void)
{
    uint64_t open = atomic_load_explicit(&ticket, RELAXED);
    return open && atomic_load_explicit(&td_current()->rings.head, RELAXED) - open >= RENEWED_AFTER;
}

static void renew(void)
{
    end();
    begin();
}

/* Replace an old open record. To be called where a host enqueues much while the device is busy with one kernel. */
void td_device_time_renew(void)
{
    if (!is_old())
        return;
    pthread_mutex_lock(&counting);
    if (is_old())
        renew();
    pthread_mutex_unlock(&counting);
}

static void take_off(struct user *user, unsigned channels)
{
    user->running -= channels;
    running -= channels;
    if (channels && !running)
        end();
}

static int join(void **context, int *wanted)
{
    pthread_mutex_lock(&counting);
    struct user *user = spare;
    if (user)
        spare = user->next;
    pthread_mutex_unlock(&counting);
    *context = user ? user : calloc(1, sizeof *user);   /* without a user, no handles */
    *wanted = KERNEL_CHANNEL;
    return 0;
}

static int start(struct user *user, void **handle, uint64_t kind)
{
    *handle = NULL;
    if (kind != KERNEL_CHANNEL || !user)
        return 0;
    pthread_mutex_lock(&counting);
    user->running++;
    if (!running++)
        begin();
    else if (is_old())
        renew();
    pthread_mutex_unlock(&counting);
    *handle = user;
    return 0;
}

static int stop(void *handle)
{
    struct user *user = handle;
    if (!user)
        return 0;
    pthread_mutex_lock(&counting);
    take_off(user, user->running > 0);
    pthread_mutex_unlock(&counting);
    return 0;
}

static int leave(void *context)
{
    struct user *user = context;
    if (!user)
        return 0;
    pthread_mutex_lock(&counting);
    take_off(user, user->running);
    user->next = spare;
    spare = user;
    pthread_mutex_unlock(&counting);
    return 0;
}

static int ignore(void *handle, int state, void *arguments)
{
    (void)handle, (void)state, (void)arguments;
    return 0;
}

static int join_3(void **context, int *wanted)
{
    return join(context, wanted);
}

static int join_4(void **context, int *wanted, const char *name, uint64_t id, int nodes, int ranks, int rank, void *log)
{
    (void)name, (void)id, (void)nodes, (void)ranks, (void)rank, (void)log;
    return join(context, wanted);
}

static int join_5(void **context, uint64_t id, int *wanted, const char *name, int nodes, int ranks, int rank, void *log)
{
    (void)name, (void)id, (void)nodes, (void)ranks, (void)rank, (void)log;
    return join(context, wanted);
}

/* The kind is the first field of an event's description: one byte until interface 4, eight bytes since 5. */
static int start_narrow(void *context, void **handle, const uint8_t *kind)
{
    return start(context, handle, *kind);
}

static int start_wide(void *context, void **handle, const uint64_t *kind)
{
    return start(context, handle, *kind);
}

void td_device_time_after_fork(void)
{
    pthread_mutex_init(&counting, NULL);
    atomic_store(&ticket, 0);
    running = 0;
    spare = NULL;
}

/* An interface is a struct of a name and five functions, all of them pointers. */
#define INTERFACE(init, start_event) {"taskd", init, start_event, stop, ignore, leave}

EXPORTED const void *const ncclProfiler_v3[] = INTERFACE(join_3, start_narrow);
EXPORTED const void *const ncclProfiler_v4[] = INTERFACE(join_4, start_narrow);
EXPORTED const void *const ncclProfiler_v5[] = INTERFACE(join_5, start_wide);
