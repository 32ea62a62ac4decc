/* reader.c - the agent's side of the black box: create, open, read, await the owner's death, command.
 *
 * Rules:
 * 1. A box is created whole: a file of mode 0600 whose space is reserved, so that a full /dev/shm is an errno here and not
 *    a SIGBUS in the worker; the magic number is stored last.
 * 2. Nothing in a box is trusted: numbers are copied out, none is used as an index or a pointer.
 * 3. An event is accepted only if its ticket was the same before and after the copy and belongs to its slot.
 * 4. A handle is used by one commander at a time (a lock sees to it) and by any number of readers and waiters. */
#define _GNU_SOURCE
#include "core.h"
#include "handle.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define RELAXED memory_order_relaxed

/* A cancelled wait ends at once, or after this long if it was just about to sleep. */
enum { LONGEST_SLEEP_MS = 500 };

static int64_t deadline(int timeout_ms)
{
    return timeout_ms < 0 ? INT64_MAX : td_now_ns() + timeout_ms * 1000000LL;
}

static int wrap(struct td_box *box, struct taskd_handle **out)
{
    struct taskd_handle *handle = calloc(1, sizeof *handle);
    if (!handle) {
        munmap(box, sizeof *box);
        return -ENOMEM;
    }
    handle->box = box;
    pthread_mutex_init(&handle->commanding, NULL);
    *out = handle;
    return 0;
}

static int fill(int fd)
{
    int error = fchmod(fd, 0600) ? errno : posix_fallocate(fd, 0, sizeof(struct td_box));
    if (error)
        return -error;
    struct td_box *box = mmap(NULL, sizeof *box, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (box == MAP_FAILED)
        return -errno;
    box->identity.version = TASKD_VERSION;
    box->identity.size = sizeof *box;
    atomic_store(&box->progress.word, TD_PROGRESS_START);
    atomic_store_explicit(&box->identity.magic, TD_MAGIC, memory_order_release);
    munmap(box, sizeof *box);
    return 0;
}

/* Makes a new box at `path` and opens it. -EEXIST: something is there; -ENOSPC: the file system is full. */
int taskd_box_create(const char *path, struct taskd_handle **out)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    int error = fill(fd);
    close(fd);
    if (!error)
        error = taskd_box_open(path, out);
    if (error)
        unlink(path);
    return error;
}

/* -EPERM: of another user; -EINVAL: not a regular file of a box's size; -EPROTO: not a box, or of another version. */
int taskd_box_open(const char *path, struct taskd_handle **out)
{
    struct td_box *box;
    int error = td_map(path, &box);
    return error ? error : wrap(box, out);
}

static int life_of(uint32_t word)
{
    if (word & FUTEX_OWNER_DIED)
        return TASKD_LIFE_LOST;
    return word & FUTEX_TID_MASK ? TASKD_LIFE_HELD : TASKD_LIFE_NONE;
}

static void read_progress(struct td_progress *from, struct taskd_reading *out)
{
    uint64_t word = atomic_load_explicit(&from->word, memory_order_acquire);
    out->step = (int64_t)word >> TD_PROGRESS_STEP_SHIFT;
    out->phase = (int32_t)(word & 0xff);
    out->step_ns = atomic_load_explicit(&from->step_ns, RELAXED);
    out->phase_ns = atomic_load_explicit(&from->phase_ns, RELAXED);
    out->data_ns = atomic_load_explicit(&from->data_ns, RELAXED);
    out->work = atomic_load_explicit(&from->work, RELAXED);
    out->data_since_ns = atomic_load_explicit(&from->data_since_ns, RELAXED);
}

static void read_end(struct td_end *from, struct taskd_reading *out)
{
    out->end_cause = (int32_t)atomic_load_explicit(&from->cause, memory_order_acquire);
    out->end_status = atomic_load_explicit(&from->status, RELAXED);
    out->end_ns = atomic_load_explicit(&from->end_ns, RELAXED);
}

void taskd_box_read(struct taskd_handle *handle, struct taskd_reading *out)
{
    struct td_box *box = handle->box;
    *out = (struct taskd_reading){
        .owner_pid = atomic_load_explicit(&box->identity.owner, RELAXED),
        .rank = atomic_load_explicit(&box->identity.rank, RELAXED),
        .incarnation = atomic_load_explicit(&box->identity.incarnation, RELAXED),
        .claims = atomic_load_explicit(&box->identity.claims, RELAXED),
        .claimed_ns = atomic_load_explicit(&box->identity.claimed_ns, RELAXED),
        .native_ns = atomic_load_explicit(&box->beats.native_ns, RELAXED),
        .native_count = atomic_load_explicit(&box->beats.native_count, RELAXED),
        .gil_ns = atomic_load_explicit(&box->beats.gil_ns, RELAXED),
        .main_ns = atomic_load_explicit(&box->beats.main_ns, RELAXED),
        .gil_asked_ns = atomic_load_explicit(&box->beats.gil_asked_ns, RELAXED),
        .main_asked_ns = atomic_load_explicit(&box->beats.main_asked_ns, RELAXED),
        .life = life_of(atomic_load(&box->life.word)),
        .events = atomic_load_explicit(&box->rings.head, RELAXED),
        .dropped = atomic_load_explicit(&box->rings.dropped, RELAXED),
    };
    read_progress(&box->progress, out);
    read_end(&box->end, out);
}

static int copy_event(struct td_event *slot, uint64_t ticket, struct taskd_event *out)
{
    if (atomic_load_explicit(&slot->seq, memory_order_acquire) != ticket)
        return 0;
    *out = (struct taskd_event){
        .ticket = ticket,
        .entered_ns = atomic_load_explicit(&slot->entered_ns, RELAXED),
        .left_ns = atomic_load_explicit(&slot->left_ns, RELAXED),
        .comm = atomic_load_explicit(&slot->comm, RELAXED),
        .number = atomic_load_explicit(&slot->number, RELAXED),
        .bytes = atomic_load_explicit(&slot->bytes, RELAXED),
        .op = atomic_load_explicit(&slot->op, RELAXED),
        .dtype = atomic_load_explicit(&slot->dtype, RELAXED),
        .tid = atomic_load_explicit(&slot->tid, RELAXED),
        .peer = atomic_load_explicit(&slot->peer, RELAXED),
    };
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&slot->seq, RELAXED) == ticket;
}

/* Copies up to `room` of the newest whole events, newest first. Returns how many. */
int taskd_box_events(struct taskd_handle *handle, struct taskd_event *out, int room)
{
    struct td_box *box = handle->box;
    uint64_t head = atomic_load_explicit(&box->rings.head, memory_order_acquire);
    int taken = 0;
    for (uint64_t back = 0; back < TD_RING && back < head && taken < room; back++)
        taken += copy_event(&box->ring[(head - back - 1) % TD_RING], head - back, &out[taken]);
    return taken;
}

static int copy_comm(struct td_comm *from, struct taskd_comm *out)
{
    uint64_t seq = atomic_load_explicit(&from->seq, memory_order_acquire);
    *out = (struct taskd_comm){
        .id = atomic_load_explicit(&from->id, RELAXED),
        .number = atomic_load_explicit(&from->number, RELAXED),
        .opened_ns = atomic_load_explicit(&from->opened_ns, RELAXED),
        .ranks = atomic_load_explicit(&from->ranks, RELAXED),
        .rank = atomic_load_explicit(&from->rank, RELAXED),
        .backend = (int32_t)atomic_load_explicit(&from->backend, RELAXED),
        .closed = !atomic_load_explicit(&from->handle, RELAXED),
    };
    atomic_thread_fence(memory_order_acquire);
    return seq && !(seq & 1) && atomic_load_explicit(&from->seq, RELAXED) == seq;
}

/* Copies up to `room` communicators, in no order. Returns how many. One that is being opened or closed is left out. */
int taskd_box_comms(struct taskd_handle *handle, struct taskd_comm *out, int room)
{
    int taken = 0;
    for (unsigned i = 0; i < TD_COMMS && taken < room; i++)
        taken += copy_comm(&handle->box->comms[i].comm, &out[taken]);
    return taken;
}

/* The newest operation that has begun and not ended: 1; 0 if there is none among those that the ring still has. */
int taskd_box_open_event(struct taskd_handle *handle, struct taskd_event *out)
{
    struct td_box *box = handle->box;
    uint64_t head = atomic_load_explicit(&box->rings.head, memory_order_acquire);
    for (uint64_t back = 0; back < TD_RING && back < head; back++)
        if (copy_event(&box->ring[(head - back - 1) % TD_RING], head - back, out) && !out->left_ns)
            return 1;
    return 0;
}

/* Waits until the owner of the box is dead: 1. 0: not within timeout_ms (negative: for ever). -ECANCELED: taskd_box_cancel.
 * A box that nobody has claimed yet is waited for as well. */
int taskd_box_await_death(struct taskd_handle *handle, int timeout_ms)
{
    td_u32 *word = &handle->box->life.word;
    int64_t end_ns = deadline(timeout_ms);
    while (!atomic_load(&handle->cancelled)) {
        uint32_t seen = atomic_load(word);
        if (seen & FUTEX_OWNER_DIED) {
            td_futex_wake_all(word);            /* the kernel wakes one; the others of this box are ours to wake */
            return 1;
        }
        if ((seen & FUTEX_TID_MASK) && !(seen & FUTEX_WAITERS)) {       /* without the mark the kernel would wake nobody */
            if (!atomic_compare_exchange_strong(word, &seen, seen | FUTEX_WAITERS))
                continue;
            seen |= FUTEX_WAITERS;
        }
        int64_t left_ns = end_ns - td_now_ns();
        if (left_ns <= 0)
            return 0;
        int64_t slice_ns = LONGEST_SLEEP_MS * 1000000LL;
        td_futex_wait(word, seen, left_ns < slice_ns ? left_ns : slice_ns);
    }
    return -ECANCELED;
}

/* Ends every wait in this handle, present and future. */
void taskd_box_cancel(struct taskd_handle *handle)
{
    atomic_store(&handle->cancelled, 1);
    td_futex_wake_all(&handle->box->life.word);
    td_futex_wake_all(&handle->box->command.acked);
}

static int command(struct taskd_handle *handle, int op, int64_t end_ns)
{
    struct td_command *to = &handle->box->command;
    uint32_t asked = atomic_load(&to->asked) + 1;
    atomic_store(&to->op, (uint32_t)op);
    atomic_store(&to->asked, asked);
    td_beat_ring(handle->box);
    for (;;) {
        uint32_t acked = atomic_load(&to->acked);
        if (acked == asked)
            return atomic_load(&to->result);
        if (atomic_load(&handle->cancelled))
            return -ECANCELED;
        if (life_of(atomic_load(&handle->box->life.word)) == TASKD_LIFE_LOST)
            return -ESRCH;
        int64_t left_ns = end_ns - td_now_ns(), slice_ns = LONGEST_SLEEP_MS * 1000000LL;
        if (left_ns <= 0)
            return -ETIMEDOUT;
        td_futex_wait(&to->acked, acked, left_ns < slice_ns ? left_ns : slice_ns);
    }
}

/* Has the beat thread do TASKD_COMMAND_*, and returns its answer. -ENOTCONN: nobody has the box; -ESRCH: its owner is dead;
 * -ETIMEDOUT: no answer; -ENOSYS: the worker does not know this command. */
int taskd_box_command(struct taskd_handle *handle, int op, int timeout_ms)
{
    if (life_of(atomic_load(&handle->box->life.word)) == TASKD_LIFE_NONE)
        return -ENOTCONN;
    pthread_mutex_lock(&handle->commanding);
    int result = command(handle, op, deadline(timeout_ms));
    pthread_mutex_unlock(&handle->commanding);
    return result;
}

void taskd_box_close(struct taskd_handle *handle)
{
    munmap(handle->box, sizeof *handle->box);
    pthread_mutex_destroy(&handle->commanding);
    free(handle);
}
