/* clocks.c - checks whether Python's main thread makes progress, and whether any thread can take the GIL.
 *
 * Rules:
 * 1. The beat thread never takes the GIL. It posts a pending call, which needs no GIL. The main thread runs that call
 *    between two bytecodes. If the answer comes within a beat, no other thread is disturbed.
 * 2. Only if the answer is late, a waiting Python thread is woken. It has to take the GIL to return here.
 * 3. Nothing is posted to an interpreter that is starting or ending: Python code allows and forbids probes
 *    (taskd_probe).
 * 4. The box has the time of an open request, which distinguishes "no answer" from "no request". */
#define _GNU_SOURCE
#include "core.h"

#include <pthread.h>

extern __attribute__((weak, visibility("default"))) int Py_AddPendingCall(int (*call)(void *), void *data);

static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;
static int allowed;
static _Atomic int posted;                      /* the pending call has not run yet */
static td_u32 woken;                            /* futex of the waiting thread: counts requests, also the one to end */
static uint32_t heard;                          /* newest request that was answered; only the waiting thread uses it */

static void set(td_i64 *clock, int64_t ns)
{
    atomic_store_explicit(clock, ns, memory_order_relaxed);
}

/* Record that a thread could take the GIL. Any Python thread may call this. */
void taskd_gil_beat(void)
{
    struct td_beats *beats = &td_current()->beats;
    set(&beats->gil_ns, td_now_ns());
    set(&beats->gil_asked_ns, 0);
}

static int on_main(void *unused)
{
    struct td_beats *beats = &td_current()->beats;
    (void)unused;
    set(&beats->main_ns, td_now_ns());
    set(&beats->main_asked_ns, 0);
    taskd_gil_beat();
    atomic_store(&posted, 0);
    return 0;
}

static void ask_main(struct td_beats *beats)
{
    atomic_store(&posted, 1);
    set(&beats->main_asked_ns, td_now_ns());
    if (Py_AddPendingCall(on_main, NULL)) {     /* the queue is full of others' calls: then there is no request */
        set(&beats->main_asked_ns, 0);
        atomic_store(&posted, 0);
    }
}

static void wake(void)
{
    atomic_fetch_add(&woken, 1);
    td_futex_wake_all(&woken);
}

/* Probe the interpreter. Called by the beat thread at each beat. */
void td_clocks_ask(struct td_box *box)
{
    struct td_beats *beats = &box->beats;
    pthread_mutex_lock(&asking);
    if (allowed && !atomic_load(&posted)) {
        ask_main(beats);
    } else if (allowed && !atomic_load_explicit(&beats->gil_asked_ns, memory_order_relaxed)) {
        set(&beats->gil_asked_ns, td_now_ns());
        wake();
    }
    pthread_mutex_unlock(&asking);
}

/* Allow (1) or forbid (0) probes of the interpreter. Return 1 if that is a change, 0 if not or if there is no Python.
 * After a change to 1, the caller must let a thread call taskd_gil_wait for as long as that returns 1. */
int taskd_probe(int on)
{
    pthread_mutex_lock(&asking);
    int is_new = Py_AddPendingCall && allowed != !!on;
    if (is_new) {
        allowed = !!on;
        wake();
    }
    pthread_mutex_unlock(&asking);
    return is_new;
}

static int is_allowed(void)
{
    pthread_mutex_lock(&asking);
    int result = allowed;
    pthread_mutex_unlock(&asking);
    return result;
}

/* Wait for the next request to take the GIL; return 1 then, or 0 when no more will come. The calling thread holds the
 * GIL before and after the call, and releases it meanwhile. */
int taskd_gil_wait(void)
{
    taskd_gil_beat();
    while (is_allowed()) {
        uint32_t seen = atomic_load(&woken);
        if (seen != heard) {
            heard = seen;
            return 1;
        }
        td_futex_wait(&woken, seen, -1);
    }
    return 0;
}

/* The child does not have the waiting thread, and a posted call was the parent's. */
void td_clocks_after_fork(void)
{
    pthread_mutex_init(&asking, NULL);
    allowed = 0;
    atomic_store(&posted, 0);
    atomic_store(&woken, 0);
    heard = 0;
}
