/* box.c - the worker's side of the black box: map it, claim it, write into it.
 *
 * Rules:
 * 1. A process without a box writes into a private sink, so no writer has to check for a box.
 * 2. A box has one owner, the process whose compare-and-swap on `owner` came first; after exec the same pid may claim again.
 * 3. A forked child loses the box before any code of its own runs; it may then attach to another one.
 * 4. Writers take no lock and allocate nothing. */
#define _GNU_SOURCE
#include "core.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define RELAXED memory_order_relaxed

static struct td_box sink;
static struct td_box *_Atomic current = &sink;
static char attached_path[PATH_MAX];
static pthread_mutex_t attaching = PTHREAD_MUTEX_INITIALIZER;
enum { GUARDED = 64, TAKEN = 1 };
static struct {
    _Atomic uintptr_t at;                       /* 0: free; TAKEN: bytes is being written */
    _Atomic int64_t bytes;
} guarded[GUARDED];

struct td_box *td_current(void)
{
    return atomic_load_explicit(&current, memory_order_acquire);
}

int taskd_version(void)
{
    return TASKD_VERSION;
}

int taskd_attached(void)
{
    return td_current() != &sink;
}

static void after_fork(void)
{
    struct td_box *inherited = td_current();
    atomic_store(&current, &sink);
    if (inherited != &sink)
        munmap(inherited, sizeof *inherited);   /* so nothing in the child can reach it */
    attached_path[0] = 0;
    pthread_mutex_init(&attaching, NULL);
    td_beat_after_fork();
    td_gloo_after_fork();
    td_binding_after_fork();
    td_pulse_after_fork();
    td_libraries_after_fork();
    td_clocks_after_fork();
    td_notes_after_fork();
    td_coll_after_fork();
    td_gloo_ops_after_fork();
    td_device_time_after_fork();
    td_look_after_fork();
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(td_libraries_before_fork, td_libraries_in_parent, after_fork);
}

static int check(int fd)
{
    struct stat file;
    struct td_identity known;
    if (syscall(SYS_fstat, fd, &file))          /* not fstat: held.h; on 64-bit machines both fill the same struct */
        return -errno;
    if (file.st_uid != geteuid())
        return -EPERM;
    if (!S_ISREG(file.st_mode) || file.st_size != (off_t)sizeof(struct td_box))
        return -EINVAL;
    if (pread(fd, &known, sizeof known, offsetof(struct td_box, identity)) != sizeof known)
        return -EINVAL;
    return known.magic == TD_MAGIC && known.version == TASKD_VERSION && known.size == sizeof(struct td_box) ? 0 : -EPROTO;
}

/* Map an existing box into *out, after a check of its user, size and version. `opened`, if not NULL, gets its
 * descriptor. */
int td_map(const char *path, struct td_box **out, int *opened)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    int error = check(fd);
    struct td_box *box = MAP_FAILED;
    if (!error) {
        box = mmap(NULL, sizeof *box, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        error = box == MAP_FAILED ? -errno : 0;
    }
    if (error || !opened)
        close(fd);
    else
        *opened = fd;
    if (!error)
        *out = box;
    return error;
}

/* Guard the memory of a file that somebody may cut; a call with 0 bytes ends the guard. Any thread may call this.
 * Return 0, or -ENOSPC. */
int taskd_guard(const void *at, int64_t bytes)
{
    for (int i = 0; i < GUARDED; i++) {
        uintptr_t expected = bytes ? 0 : (uintptr_t)at;
        if (atomic_compare_exchange_strong(&guarded[i].at, &expected, TAKEN)) {
            atomic_store(&guarded[i].bytes, bytes);
            atomic_store(&guarded[i].at, bytes ? (uintptr_t)at : 0);
            return 0;
        }
    }
    return -ENOSPC;
}

static int is_guarded(uintptr_t address)
{
    struct td_box *box = td_current();
    if (box != &sink && address - (uintptr_t)box < sizeof *box)
        return 1;
    for (int i = 0; i < GUARDED; i++)
        if (address - atomic_load(&guarded[i].at) < (uintptr_t)atomic_load(&guarded[i].bytes))
            return 1;
    return 0;
}

/* Called by the handler of a SIGBUS. If the address is in a box or another guarded file, that file was cut. Replace the
 * missing page by a private one, whose content no other process gets. Return whether the page was replaced. */
int td_replace_cut(const void *address)
{
    uintptr_t at = (uintptr_t)address, bytes = (uintptr_t)getpagesize();
    if (!is_guarded(at))
        return 0;
    void *page = (void *)(at & ~(bytes - 1));
    return mmap(page, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page;
}

static int claim(struct td_box *box)
{
    int32_t nobody = 0, self = getpid();
    if (!atomic_compare_exchange_strong(&box->identity.owner, &nobody, self) && nobody != self)
        return -EBUSY;
    atomic_fetch_add(&box->identity.claims, 1);
    atomic_store(&box->identity.claimed_ns, td_now_ns());
    return 0;
}

/* Undo a claim whose beat thread did not start: without it the owner's death would not be detected. The mapping stays,
 * because a thread that is merely late may still read it. */
static void let_go(struct td_box *box)
{
    atomic_store(&current, &sink);
    atomic_store(&box->identity.owner, 0);
}

/* Let the beat thread work on `box`, and wait until it holds the life futex. From then on a death is detected. */
static int come_alive(struct td_box *box)
{
    td_u32 *word = &box->life.word;
    int64_t deadline_ns = td_now_ns() + 2000000000;
    uint32_t seen = atomic_load(word);
    int error = td_beat_start();
    if (error)
        return error;
    td_beat_ring(&sink);
    for (; !(seen & FUTEX_TID_MASK) || (seen & FUTEX_OWNER_DIED); seen = atomic_load(word)) {
        int64_t left_ns = deadline_ns - td_now_ns();
        if (left_ns <= 0)
            return -ETIMEDOUT;
        td_futex_wait(word, seen, left_ns);
    }
    return 0;
}

/* Cannot fail: the beat thread is running, and a value that is no pid is not watched. */
static void watch_agent(void)
{
    const char *pid = getenv("TASKD_AGENT_PID");
    if (pid)
        taskd_watch_parent(atoi(pid));
}

static int attach(const char *path, int rank, int incarnation)
{
    struct td_box *box = td_current();
    int fresh = box == &sink;
    if (!fresh && strcmp(path, attached_path))
        return -EALREADY;
    if (strlen(path) >= sizeof attached_path)
        return -ENAMETOOLONG;
    int error = fresh ? td_map(path, &box, NULL) : 0;
    if (error)
        return error;
    if (fresh && (error = claim(box))) {
        munmap(box, sizeof *box);
        return error;
    }
    atomic_store(&box->identity.rank, rank);
    atomic_store(&box->identity.incarnation, incarnation);
    if (!fresh)
        return 0;
    atomic_store(&current, box);
    if ((error = come_alive(box))) {
        let_go(box);
        return error;
    }
    strcpy(attached_path, path);
    td_end_watch();
    td_death_watch();
    watch_agent();
    return 0;
}

/* Claim the box at `path` for this process and start its beat. A repeated call for the same path changes only rank and
 * incarnation. -EBUSY: another process has it; -EALREADY: this process has another one; -EPERM, -EINVAL, -EPROTO: not a
 * box of ours. */
int taskd_attach(const char *path, int rank, int incarnation)
{
    if (!path || !*path)
        return -EINVAL;
    pthread_mutex_lock(&attaching);
    int error = attach(path, rank, incarnation);
    pthread_mutex_unlock(&attaching);
    return error;
}

_Static_assert(sizeof(struct td_progress) == TASKD_PROGRESS_BYTES, "what Python maps");

/* Return the memory where the one thread that counts steps stores each step and its time. It does so by itself, because
 * the first call into C after a step costs more than all the rest. The address changes with taskd_attach and with
 * fork. */
int64_t *taskd_progress(void)
{
    return (int64_t *)&td_current()->progress;
}

/* Record the main thread's next phase: 0 to 255, in the caller's own numbering. Called by the thread that counts
 * steps. */
void taskd_phase(int phase)
{
    struct td_progress *progress = &td_current()->progress;
    uint64_t step = atomic_load_explicit(&progress->word, RELAXED) & ~0xffull;
    atomic_store_explicit(&progress->word, step | ((uint64_t)phase & 0xff), memory_order_release);
    atomic_store_explicit(&progress->phase_ns, td_now_ns(), RELAXED);
}
