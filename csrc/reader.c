/* reader.c - the agent's side of the black box: create, open, read, await the owner's death, command.
 *
 * Rules:
 * 1. A box is created as a whole: a file of mode 0600 whose space is reserved. So a full /dev/shm is an errno here, and
 *    not a SIGBUS in the worker. The magic number is stored last.
 * 2. Nothing in a box is trusted: numbers are copied out, and none is used as an index or a pointer. Only the copies of
 *    look.c are read, never the memory of the box, because the box may be cut at any moment.
 * 3. An event is accepted only if its ticket was the same before and after the copy and belongs to its slot.
 * 4. A handle is used by one commander at a time (a lock ensures that) and by any number of readers and waiters. */
#define _GNU_SOURCE
#include "core.h"
#include "handle.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define RELAXED memory_order_relaxed

/* A cancelled wait ends at once, or after this long if it was just about to sleep. */
enum { LONGEST_SLEEP_MS = 500, WAITERS_BIT = 31 };

static int64_t deadline(int timeout_ms)
{
    return timeout_ms < 0 ? INT64_MAX : td_now_ns() + timeout_ms * 1000000LL;
}

static int wrap(struct td_box *box, int fd, struct taskd_handle **out)
{
    struct taskd_handle *handle = calloc(1, sizeof *handle);
    if (!handle) {
        munmap(box, sizeof *box);
        close(fd);
        return -ENOMEM;
    }
    handle->box = box;
    handle->fd = fd;
    pthread_mutex_init(&handle->commanding, NULL);
    *out = handle;
    return 0;
}

static int put(int fd, const void *bytes, size_t count, size_t at)
{
    return pwrite(fd, bytes, count, (off_t)at) == (ssize_t)count ? 0 : errno ? errno : EIO;
}

static int fill(int fd)
{
    struct td_identity identity = {.version = TASKD_VERSION, .size = sizeof(struct td_box)};
    uint64_t start = TD_PROGRESS_START, magic = TD_MAGIC;
    int error = fchmod(fd, 0600) ? errno : posix_fallocate(fd, 0, sizeof(struct td_box));
    if (!error)
        error = put(fd, &identity, sizeof identity, offsetof(struct td_box, identity));
    if (!error)
        error = put(fd, &start, sizeof start, offsetof(struct td_box, progress.word));
    if (!error)
        error = put(fd, &magic, sizeof magic, offsetof(struct td_box, identity.magic));
    return -error;
}

/* Make a new box at `path` and open it. -EEXIST: something is there; -ENOSPC: the file system is full. */
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

/* Open a box. -EPERM: it is another user's; -EINVAL: not a regular file of a box's size; -EPROTO: not a box, or of
 * another version. */
int taskd_box_open(const char *path, struct taskd_handle **out)
{
    struct td_box *box;
    int fd, error = td_map(path, &box, &fd);
    return error ? error : wrap(box, fd, out);
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
    uint32_t cause = atomic_load_explicit(&from->cause, memory_order_acquire);
    out->end_cause = td_steady(&from->cause, sizeof from->cause) ? (int32_t)cause : TASKD_END_NONE;
    out->end_status = atomic_load_explicit(&from->status, RELAXED);
    out->end_ns = atomic_load_explicit(&from->end_ns, RELAXED);
}

int taskd_box_read(struct taskd_handle *handle, struct taskd_reading *out)
{
    struct td_box *box;
    int error = TD_LOOK(handle, identity, request, &box);
    if (error)
        return error;
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
    td_look_away();
    return 0;
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
    return td_steady(&slot->seq, sizeof slot->seq);
}

/* Copy the ring as td_look does, and read the number of events entered so far. */
static int look_at_ring(struct taskd_handle *handle, struct td_box **box, uint64_t *head)
{
    int error = TD_LOOK(handle, rings, request, box);
    if (error)
        return error;
    *head = atomic_load_explicit(&(*box)->rings.head, RELAXED);
    td_look_away();
    return td_look(handle, offsetof(struct td_box, ring), sizeof (*box)->ring, box);
}

/* Copy up to `room` of the newest complete events, newest first. Return their number. */
int taskd_box_events(struct taskd_handle *handle, struct taskd_event *out, int room)
{
    struct td_box *box;
    uint64_t head;
    int taken = 0, error = look_at_ring(handle, &box, &head);
    if (error)
        return error;
    for (uint64_t back = 0; back < TD_RING && back < head && taken < room; back++)
        taken += copy_event(&box->ring[(head - back - 1) % TD_RING], head - back, &out[taken]);
    td_look_away();
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
    return seq && !(seq & 1) && td_steady(&from->seq, sizeof from->seq);
}

/* Copy up to `room` communicators, in no order. Return their number. One that is being opened or closed is left out. */
int taskd_box_comms(struct taskd_handle *handle, struct taskd_comm *out, int room)
{
    struct td_box *box;
    int taken = 0, error = TD_LOOK(handle, comms, ring, &box);
    if (error)
        return error;
    for (unsigned i = 0; i < TD_COMMS && taken < room; i++)
        taken += copy_comm(&box->comms[i].comm, &out[taken]);
    td_look_away();
    return taken;
}

/* Copy the newest operation that has begun and not ended. Return 1, or 0 if the ring has no such operation. */
int taskd_box_open_event(struct taskd_handle *handle, struct taskd_event *out)
{
    struct td_box *box;
    uint64_t head;
    int found = 0, error = look_at_ring(handle, &box, &head);
    if (error)
        return error;
    for (uint64_t back = 0; !found && back < TD_RING && back < head; back++)
        found = copy_event(&box->ring[(head - back - 1) % TD_RING], head - back, out) && !out->left_ns;
    td_look_away();
    return found;
}

/* Wait for the death of the box's owner. Return 1 if it is dead, 0 if not within timeout_ms (negative: no limit),
 * -ECANCELED after taskd_box_cancel. A box without an owner yet is waited for as well. */
int taskd_box_await_death(struct taskd_handle *handle, int timeout_ms)
{
    td_u32 *word = &handle->box->life.word;
    int64_t end_ns = deadline(timeout_ms);
    while (!atomic_load(&handle->cancelled)) {
        uint32_t seen;
        int error = td_read_word(handle, word, &seen);
        if (error)
            return error;
        if (seen & FUTEX_OWNER_DIED) {
            td_futex_wake_all(word);            /* the kernel wakes one waiter; the others are ours to wake */
            return 1;
        }
        if ((seen & FUTEX_TID_MASK) && !(seen & FUTEX_WAITERS)) {       /* the kernel wakes nobody without the mark */
            if (!td_change_word(word, FUTEX_OP_OR | FUTEX_OP_OPARG_SHIFT, WAITERS_BIT, 0))
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

/* End every wait on this handle, present and future. */
void taskd_box_cancel(struct taskd_handle *handle)
{
    atomic_store(&handle->cancelled, 1);
    td_futex_wake_all(&handle->box->life.word);
    td_futex_wake_all(&handle->box->command.acked);
}

static int order(struct taskd_handle *handle, int op, uint32_t *asked)
{
    struct td_command *to = &handle->box->command;
    int error = td_read_word(handle, &to->asked, asked);
    ++*asked;
    if (!error)
        error = td_change_word(&to->op, FUTEX_OP_SET, op, 0);
    if (!error)
        error = td_change_word(&to->asked, FUTEX_OP_ADD, 1, 0);
    return error ? error : td_change_word(&to->doorbell, FUTEX_OP_ADD, 1, INT_MAX);
}

static int command(struct taskd_handle *handle, int op, int64_t end_ns)
{
    struct td_command *to = &handle->box->command;
    uint32_t asked, acked = 0, life = 0, result = 0;
    int error = order(handle, op, &asked);
    while (!error) {
        if ((error = td_read_word(handle, &to->acked, &acked)))
            break;
        if (acked == asked)
            return (error = td_read_word(handle, (td_u32 *)&to->result, &result)) ? error : (int)result;
        if (atomic_load(&handle->cancelled))
            return -ECANCELED;
        if ((error = td_read_word(handle, &handle->box->life.word, &life)))
            break;
        if (life_of(life) == TASKD_LIFE_LOST)
            return -ESRCH;
        int64_t left_ns = end_ns - td_now_ns(), slice_ns = LONGEST_SLEEP_MS * 1000000LL;
        if (left_ns <= 0)
            return -ETIMEDOUT;
        td_futex_wait(&to->acked, acked, left_ns < slice_ns ? left_ns : slice_ns);
    }
    return error == -EFAULT ? -ENODATA : error;
}

/* Let the beat thread execute TASKD_COMMAND_*, and return its answer. -ENOTCONN: the box has no owner; -ESRCH: its
 * owner is dead; -ETIMEDOUT: no answer; -ENOSYS: the worker does not support this command. */
int taskd_box_command(struct taskd_handle *handle, int op, int timeout_ms)
{
    uint32_t life;
    int error = td_read_word(handle, &handle->box->life.word, &life);
    if (error)
        return error;
    if (life_of(life) == TASKD_LIFE_NONE)
        return -ENOTCONN;
    pthread_mutex_lock(&handle->commanding);
    int result = command(handle, op, deadline(timeout_ms));
    pthread_mutex_unlock(&handle->commanding);
    return result;
}

void taskd_box_close(struct taskd_handle *handle)
{
    munmap(handle->box, sizeof *handle->box);
    close(handle->fd);
    pthread_mutex_destroy(&handle->commanding);
    free(handle);
}
