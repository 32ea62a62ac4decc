/* tear.c CORE BOX write        four threads write events whose fields follow from one number, until somebody kills them
 * tear.c CORE BOX read ROUNDS  read the whole ring so many times; prints how many events were taken; 1 if one was torn */
#include "taskd.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RING = 1024 };
static void *core;
static __typeof__(taskd_enter) *enter;
static __typeof__(taskd_leave) *leave;

static void *write_events(void *seed)
{
    for (uint64_t n = (uint64_t)(uintptr_t)seed;; n += 4)
        leave(enter((uint32_t)n, n, ~n, (uint32_t)~n, (int32_t)(n & 0xffff)));
    return NULL;
}

static int write_for_ever(const char *box)
{
    __typeof__(taskd_attach) *attach = dlsym(core, "taskd_attach");
    enter = dlsym(core, "taskd_enter");
    leave = dlsym(core, "taskd_leave");
    if (attach(box, 0, 0))
        return 3;
    pthread_t thread;
    for (uintptr_t seed = 1; seed < 4; seed++)
        pthread_create(&thread, NULL, write_events, (void *)seed);
    write_events((void *)4);
    return 0;
}

static int whole(const struct taskd_event *event, uint64_t before)
{
    uint64_t n = event->comm;
    return event->op == (uint32_t)n && event->bytes == ~n && event->dtype == (uint32_t)~n &&
           event->peer == (int32_t)(n & 0xffff) && event->ticket < before &&
           (!event->left_ns || event->left_ns >= event->entered_ns);
}

static int read_often(const char *box, long rounds)
{
    __typeof__(taskd_box_open) *open_box = dlsym(core, "taskd_box_open");
    __typeof__(taskd_box_events) *events = dlsym(core, "taskd_box_events");
    static struct taskd_event read[RING];
    struct taskd_handle *handle;
    uint64_t taken = 0;
    if (open_box(box, &handle))
        return 3;
    for (long round = 0; round < rounds; round++) {
        int count = events(handle, read, RING);
        uint64_t before = UINT64_MAX;
        for (int i = 0; i < count; before = read[i++].ticket)
            if (!whole(&read[i], before)) {
                printf("torn: ticket %lu\n", (unsigned long)read[i].ticket);
                return 1;
            }
        taken += (uint64_t)count;
    }
    printf("%lu\n", (unsigned long)taken);
    return 0;
}

int main(int count, char **words)
{
    core = count >= 4 ? dlopen(words[1], RTLD_NOW) : NULL;
    if (!core)
        return 2;
    return strcmp(words[3], "read") ? write_for_ever(words[2]) : read_often(words[2], atol(words[4]));
}
