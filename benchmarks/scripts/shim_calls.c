/* shim_calls.c - what benchmarks/shim.py times. Compiled three times:
 *   -DLIBRARY  gloo and NCCL as far as one collective goes, doing nothing
 *   -DCALLER   loops that call it, linked to it as torch's libraries are to theirs
 *   neither    the program: MAIN CALLER ROUNDS [CORE BOX]; prints "name nanoseconds" for each thing, the median of batches */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TCP "_ZN4gloo9transport3tcp13UnboundBuffer"
void buffer_made(void *buffer, void *const *context, void *memory, size_t bytes) __asm__(TCP "C1ERKSt10shared_ptrINS1_7ContextEEPvm");
void buffer_sent(void *buffer, int peer, uint64_t slot, size_t offset, size_t bytes) __asm__(TCP "4sendEimmm");
void gloo_allreduce(void *options) __asm__("_ZN4gloo9allreduceERKNS_16AllreduceOptionsE");
void context_made(void *context, void *device, int rank, int size)
    __asm__("_ZN4gloo9transport3tcp7ContextC1ESt10shared_ptrINS1_6DeviceEEii");
_Bool sent(void *buffer, int *peer, long timeout_ms) __asm__(TCP "8waitSendEPiNSt6chrono8durationIlSt5ratioILl1ELl1000EEEE");
int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream);
struct id {
    char internal[128];
};
int ncclCommInitRankConfig(void **comm, int ranks, struct id id, int rank, void *config);

#ifdef LIBRARY
_Bool sent(void *buffer, int *peer, long timeout_ms) { return buffer && !peer && timeout_ms; }
void buffer_made(void *buffer, void *const *context, void *memory, size_t bytes) { (void)buffer, (void)context, (void)memory, (void)bytes; }
void buffer_sent(void *buffer, int peer, uint64_t slot, size_t offset, size_t bytes) { (void)buffer, (void)peer, (void)slot, (void)offset, (void)bytes; }
void context_made(void *context, void *device, int rank, int size) { (void)context, (void)device, (void)rank, (void)size; }
void gloo_allreduce(void *options) { buffer_sent(options, 1, 5ull << 24, 0, 4); }
int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream)
{
    return send && recv && comm && stream ? (int)count + type + op : 0;
}
int ncclCommInitRankConfig(void **comm, int ranks, struct id id, int rank, void *config)
{
    static int one;
    *comm = &one;
    return ranks < rank || config || id.internal[0];
}
#elif defined CALLER
static void *comm, *context[4];

void prepare(void)
{
    ncclCommInitRankConfig(&comm, 2, (struct id){{0}}, 0, NULL);
    context_made(context, NULL, 0, 2);
}

void call_nccl(int times)
{
    while (times--)
        ncclAllReduce(context, context, 100, 7, 0, comm, context);
}

void call_gloo(int times)
{
    void *shared[2] = {context, NULL};
    char buffer[64];
    while (times--) {
        buffer_made(buffer, shared, NULL, 4);
        gloo_allreduce(buffer);
    }
}
#else
enum { BATCH = 1000 };
static uint64_t (*enter)(uint32_t, uint64_t, uint64_t, uint32_t, int32_t);
static void (*leave)(uint64_t);
static void (*phase)(int);

static int64_t now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000ll + at.tv_nsec;
}

static void read_clock(int times)
{
    while (times--)
        now();
}

static void write_phase(int times)
{
    while (times--)
        phase(times & 3);
}

static void note(int times)
{
    while (times--)
        leave(enter(1, 2, 3, 4, -1));
}

static int compare(const void *left, const void *right)
{
    const int64_t *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

static void measure(const char *name, void (*call)(int), int rounds)
{
    int64_t *times = malloc((size_t)rounds * sizeof *times);
    for (int i = 0; i < rounds; i++) {
        int64_t begun = now();
        call(BATCH);
        times[i] = now() - begun;
    }
    qsort(times, (size_t)rounds, sizeof *times, compare);
    printf("%s %.2f\n", name, (double)times[rounds / 2] / BATCH);
    free(times);
}

int main(int count, char **words)
{
    void *core = count > 4 ? dlopen(words[3], RTLD_NOW | RTLD_GLOBAL) : NULL;
    int rounds = atoi(words[2]);
    if (core) {
        int (*attach)(const char *, int, int) = (int (*)(const char *, int, int))dlsym(core, "taskd_attach");
        enter = (uint64_t(*)(uint32_t, uint64_t, uint64_t, uint32_t, int32_t))dlsym(core, "taskd_enter");
        leave = (void (*)(uint64_t))dlsym(core, "taskd_leave");
        phase = (void (*)(int))dlsym(core, "taskd_phase");
        int64_t begun = now();
        if (attach(words[4], 0, 0))
            return 3;
        printf("attach %.0f\n", (double)(now() - begun));
        measure("write", write_phase, rounds);
        measure("note", note, rounds);
    }
    void *caller = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
    if (!caller)
        return 4;
    ((void (*)(void))dlsym(caller, "prepare"))();
    measure("clock", read_clock, rounds);
    measure("nccl", (void (*)(int))dlsym(caller, "call_nccl"), rounds);
    measure("gloo", (void (*)(int))dlsym(caller, "call_gloo"), rounds);
    return 0;
}
#endif
