/* exercise.c - every function of the core, both sides, in one program that is built with sanitizers.
 *
 *   exercise use BOX          workers that note, speak, break, end well and crash, with an agent that reads meanwhile
 *   exercise fuzz FILE SEED ROUNDS   boxes of random content and size, read in every way; prints how many were opened
 */
#define _GNU_SOURCE
#include "core.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define CHECK(condition)                                                                                                     \
    do {                                                                                                                     \
        if (!(condition)) {                                                                                                  \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                                          \
            exit(1);                                                                                                         \
        }                                                                                                                    \
    } while (0)

int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream);
void td_comm_open(const void *handle, uint32_t backend, uint64_t id, int rank, int ranks);
void td_comm_close(const void *handle);
uint64_t td_collective(uint32_t op, const void *handle, uint64_t bytes, uint32_t dtype, int32_t peer);

extern const void *const ncclProfiler_v4[];
typedef int init_fn(void **context, int *wanted, const char *name, uint64_t id, int nodes, int ranks, int rank, void *log);
typedef int start_fn(void *context, void **handle, const uint8_t *kind);
typedef int call_fn(void *context_or_handle);

enum { THREADS = 4, NOTES = 20000 };
static volatile int zero;

/* Communicators come and go, and some with kernels under way. */
static void profile(uintptr_t i)
{
    const uint8_t kind = i % 3 ? 64 : 2;
    void *context = NULL, *handle = &handle;
    int wanted = 0;
    CHECK(!((init_fn *)ncclProfiler_v4[1])(&context, &wanted, "", 1, 1, 2, 0, NULL) && wanted == 64);
    CHECK(!((start_fn *)ncclProfiler_v4[2])(context, &handle, &kind) && !!handle == (kind == 64));
    if (i % 4)
        CHECK(!((call_fn *)ncclProfiler_v4[3])(handle));
    CHECK(!((call_fn *)ncclProfiler_v4[5])(context));
}

static void *note(void *seed)
{
    static char handles[300];
    for (uintptr_t i = 0; i < NOTES; i++) {
        uint64_t ticket = td_collective((uint32_t)(i % 14), &handles[i * (uintptr_t)seed % 300], i, 0, -1);
        if (i % 16 == 0)
            td_comm_open(&handles[i / 16 % 300], 1, i, 0, 2);
        if (i % 64 == 0)
            td_comm_close(&handles[i / 32 % 300]);
        taskd_leave(i % 5 ? ticket : ticket + 1);
        if (i % 8 == 0)
            profile(i / 8);
    }
    return NULL;
}

static void work(void)
{
    pthread_t thread[THREADS];
    char text[TASKD_WORDS_BYTES * 2];
    struct taskd_census census;
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&thread[i], NULL, note, (void *)(i + 1)));
    memset(text, 0xe2, sizeof text);
    for (int bytes = 0; bytes < (int)sizeof text; bytes += 97)
        CHECK(taskd_last_words(text, bytes) <= TASKD_WORDS_BYTES);
    CHECK(taskd_last_words(text, -1) == -EINVAL && taskd_last_words(NULL, 1) == -EINVAL);
    CHECK(ncclAllReduce(NULL, NULL, 1, 99, 0, NULL, NULL) == 3);
    taskd_phase(300);
    taskd_break();
    taskd_census(&census);
    CHECK(taskd_broken() && census.broken);
    taskd_mend();
    taskd_gil_beat();
    taskd_name_comm(5);
    CHECK(taskd_probe(1) == 0);                 /* there is no Python */
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
}

__attribute__((no_sanitize("undefined", "address"))) static void crash(int how)
{
    raise(SIGTERM);
    switch (how) {
    case 1:
        abort();
    case 2:
        raise(SIGSEGV);
        break;
    case 3:
        *(volatile int *)(uintptr_t)zero = 1;
    }
}

static void ignore(int signum)
{
    (void)signum;
}

static void be_worker(const char *path, int how)
{
    signal(SIGTERM, ignore);                    /* found at the attach: the chain keeps it */
    CHECK(taskd_attach("", 0, 0) == -EINVAL && taskd_attach("/nowhere", 0, 0) == -ENOENT);
    CHECK(!taskd_attach(path, 3, 4) && !taskd_attach(path, 5, 6) && taskd_attach("/dev/null", 0, 0) == -EALREADY);
    work();
    if (!fork()) {
        taskd_last_words("a child's", 9);
        taskd_leave(taskd_enter(1, 2, 3, 4, 5));
        _exit(taskd_attached());
    }
    CHECK(wait(NULL) > 0);
    usleep(250000);                             /* a beat, so that the map of libraries is there */
    crash(how);
    exit(how);
}

static void read_all(struct taskd_handle *box)
{
    static struct taskd_event events[2048];
    static struct taskd_comm comms[256];
    struct taskd_reading reading;
    struct taskd_fault fault;
    struct taskd_request request;
    struct taskd_words words;
    taskd_box_read(box, &reading);
    int count = taskd_box_events(box, events, 2048);
    CHECK(count >= 0 && count <= (int)TD_RING && taskd_box_events(box, events, 3) <= 3 && !taskd_box_events(box, events, 0));
    count = taskd_box_comms(box, comms, 256);
    CHECK(count >= 0 && count <= (int)TD_COMMS && taskd_box_comms(box, comms, 2) <= 2);
    taskd_box_open_event(box, events);
    taskd_box_request(box, &request);
    if (taskd_box_fault(box, &fault)) {
        CHECK(fault.frames >= 0 && fault.frames <= TASKD_FRAMES);
        for (int i = 0; i < fault.frames; i++)
            CHECK(strnlen(fault.frame[i].module, sizeof fault.frame[i].module) < sizeof fault.frame[i].module);
    }
    if (taskd_box_words(box, &words))
        CHECK(words.bytes >= 0 && words.bytes <= TASKD_WORDS_BYTES);
}

static void use(const char *path)
{
    static const int deaths[] = {0, SIGABRT, SIGSEGV, SIGSEGV};
    for (int how = 0; how < 4; how++) {
        struct taskd_handle *box;
        struct taskd_fault fault;
        struct taskd_request request;
        struct taskd_words words;
        int status;
        CHECK(!taskd_box_create(path, &box));
        CHECK(taskd_box_command(box, TASKD_COMMAND_PING, 0) == -ENOTCONN);
        pid_t worker = fork();
        if (!worker)
            be_worker(path, how);
        for (int i = 0; !taskd_box_await_death(box, 1); i++)
            read_all(box);
        CHECK(taskd_box_command(box, TASKD_COMMAND_PING, 100) == -ESRCH);
        CHECK(waitpid(worker, &status, 0) == worker);
        read_all(box);
        CHECK(how ? WIFSIGNALED(status) && WTERMSIG(status) == deaths[how] : WIFEXITED(status) && !WEXITSTATUS(status));
        CHECK(taskd_box_fault(box, &fault) == !!how && (!how || (fault.signum == deaths[how] && fault.frames > 0)));
        CHECK(taskd_box_request(box, &request) && request.from_pid == worker && request.count == 1);
        CHECK(taskd_box_words(box, &words) && words.text[0] == '\xe2');
        taskd_box_cancel(box);
        CHECK(taskd_box_await_death(box, -1) == -ECANCELED);
        taskd_box_close(box);
        unlink(path);
    }
}

static void fill(int fd, size_t size, unsigned *seed)
{
    static unsigned char content[2 * sizeof(struct td_box)];
    struct td_identity identity = {.magic = TD_MAGIC, .version = TASKD_VERSION, .size = sizeof(struct td_box)};
    int sparse = rand_r(seed) % 3;
    for (size_t i = 0; i < size; i++)
        content[i] = sparse && rand_r(seed) % 50 ? (sparse == 1 ? 0 : 255) : (unsigned char)rand_r(seed);
    if (rand_r(seed) % 8)
        memcpy(content, &identity, offsetof(struct td_identity, owner));
    CHECK(pwrite(fd, content, size, 0) == (ssize_t)size && !ftruncate(fd, (off_t)size));
}

static void fuzz(const char *path, unsigned seed, int rounds)
{
    int opened = 0, fd = open(path, O_RDWR | O_CREAT, 0600);
    for (int round = 0; round < rounds; round++) {
        struct taskd_handle *box;
        size_t size = rand_r(&seed) % 10 ? sizeof(struct td_box) : (size_t)rand_r(&seed) % (2 * sizeof(struct td_box));
        fill(fd, size, &seed);
        int error = taskd_box_open(path, &box);
        CHECK(!error || error == -EINVAL || error == -EPROTO);
        if (error)
            continue;
        opened++;
        read_all(box);
        taskd_box_await_death(box, 0);
        taskd_box_command(box, rand_r(&seed) % 5, 0);
        taskd_box_close(box);
    }
    printf("%d\n", opened);
}

int main(int count, char **words)
{
    CHECK(count >= 3 && taskd_version() == TASKD_VERSION);
    if (!strcmp(words[1], "use"))
        use(words[2]);
    else
        fuzz(words[2], (unsigned)atoi(words[3]), atoi(words[4]));
    return 0;
}
