/* tear.c CORE BOX - four threads write events whose fields follow from one number, until somebody kills the process. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t (*enter)(uint32_t, uint64_t, uint64_t, uint32_t, int32_t);
static void (*leave)(uint64_t);

static void *write_events(void *seed)
{
    for (uint64_t n = (uint64_t)(uintptr_t)seed;; n += 4)
        leave(enter((uint32_t)n, n, ~n, (uint32_t)~n, (int32_t)(n & 0xffff)));
    return NULL;
}

int main(int count, char **words)
{
    void *core = count == 3 ? dlopen(words[1], RTLD_NOW) : NULL;
    if (!core)
        return 2;
    int (*attach)(const char *, int, int) = (int (*)(const char *, int, int))dlsym(core, "taskd_attach");
    enter = (uint64_t(*)(uint32_t, uint64_t, uint64_t, uint32_t, int32_t))dlsym(core, "taskd_enter");
    leave = (void (*)(uint64_t))dlsym(core, "taskd_leave");
    if (attach(words[2], 0, 0))
        return 3;
    pthread_t thread;
    for (uintptr_t seed = 1; seed < 4; seed++)
        pthread_create(&thread, NULL, write_events, (void *)seed);
    write_events((void *)4);
}
