/* busy.c CORE BOX SEED - attaches, lets four threads allocate, load libraries and print, and has one of them crash. */
#define _GNU_SOURCE
#include "../../../csrc/taskd.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 4 };
static unsigned seed;
static volatile int zero;

static int compare(const void *left, const void *right)
{
    return *(const int *)left - *(const int *)right;
}

static void work(unsigned *state)
{
    static const char *const libraries[] = {"libm.so.6", "libresolv.so.2", "libutil.so.1", "libanl.so.1"};
    char text[200];
    int numbers[64];
    void *memory = malloc(rand_r(state) % 5000 + 1);
    void *library = dlopen(libraries[rand_r(state) % 4], RTLD_NOW);
    for (int i = 0; i < 64; i++)
        numbers[i] = rand_r(state);
    qsort(numbers, 64, sizeof *numbers, compare);
    snprintf(text, sizeof text, "%d %s", numbers[0], "words");
    if (library)
        dlclose(library);
    free(memory);
}

static void die(unsigned *state)
{
    switch (rand_r(state) % 4) {
    case 0:
        *(volatile int *)0x40 = 1;
        break;
    case 1:
        zero = getpid() / zero;
        break;
    case 2:
        abort();
    default:
        raise(SIGSEGV);
    }
}

static void *run(void *number)
{
    unsigned state = seed * THREADS + (unsigned)(uintptr_t)number;
    unsigned guilty = seed % THREADS, rounds = 200 + rand_r(&state) % 3000;
    for (unsigned round = 0;; round++) {
        work(&state);
        if ((unsigned)(uintptr_t)number == guilty && round == rounds)
            die(&state);
    }
    return NULL;
}

int main(int count, char **words)
{
    void *core = count == 4 ? dlopen(words[1], RTLD_NOW) : NULL;
    __typeof__(taskd_attach) *attach = core ? dlsym(core, "taskd_attach") : NULL;
    if (!attach || attach(words[2], 0, 0))
        return 3;
    seed = (unsigned)atoi(words[3]);
    for (uintptr_t number = 1; number < THREADS; number++) {
        pthread_t thread;
        pthread_create(&thread, NULL, run, (void *)number);
    }
    run((void *)0);
}
