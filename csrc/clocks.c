/* clocks.c - whether Python's main thread goes on, and whether any thread can have the GIL.
 *
 * Rules:
 * 1. The beat thread never takes the GIL. It posts a pending call, for which it needs none, and the main thread runs that
 *    between two bytecodes. While the answer comes within a beat, nobody else is disturbed.
 * 2. Only when it does not, a waiting Python thread is woken: it has to take the GIL to come back here.
 * 3. Nothing is posted to an interpreter that is coming up or going down: Python says when questions may be asked.
 * 4. The question stands in the box with its time, so that "no answer" is told from "not asked". */
#define _GNU_SOURCE
#include "core.h"

#include <pthread.h>

extern __attribute__((weak, visibility("default"))) int Py_AddPendingCall(int (*call)(void *), void *data);

static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;
static int allowed;
static _Atomic int posted;                      /* the pending call has not run yet */
static td_u32 woken;                            /* the futex of the waiting thread: how often it was asked, or told to end */
static uint32_t heard;                          /* only the waiting thread looks */

static void set(td_i64 *clock, int64_t ns)
{
    atomic_store_explicit(clock, ns, memory_order_relaxed);
}

/* Called by any Python thread: it could take the GIL. */
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
    if (Py_AddPendingCall(on_main, NULL)) {     /* the queue is full of others' calls: that is no answer either */
        set(&beats->main_asked_ns, 0);
        atomic_store(&posted, 0);
    }
}

static void wake(void)
{
    atomic_fetch_add(&woken, 1);
    td_futex_wake_all(&woken);
}

/* Called by the beat thread at each beat. */
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

/* From when (1) and until when (0) the interpreter may be asked. Returns 1 if that is new, and the caller is to have a
 * thread call taskd_gil_wait for as long as that returns 1; 0 if it was so already, or there is no Python. */
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

/* Called with the GIL, which the caller lets go of meanwhile: waits until somebody wants to know whether it can be had
 * again. Returns 0 when nobody will. */
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

/* The thread that waits is not in the child, and what was posted was the parent's. */
void td_clocks_after_fork(void)
{
    pthread_mutex_init(&asking, NULL);
    allowed = 0;
    atomic_store(&posted, 0);
    atomic_store(&woken, 0);
    heard = 0;
}
