/* crash.c - ways to die, for Python to call: crash(NAME) in this thread, crash_thread(NAME) in a thread called "guilty". */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ucontext.h>
#include <unistd.h>

static volatile int zero;

static int overflow(volatile char *above)
{
    volatile char here[4096];
    here[0] = above ? above[0] : 1;
    return overflow(here) + here[0];
}

static void read_past_the_end_of_a_file(void)
{
    int fd = fileno(tmpfile());
    volatile char *page = ftruncate(fd, 0) ? NULL : mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    zero = page[0];
}

/* The unwinder will read the return address where this frame pointer says, and there is nothing. */
static void spoil_the_stack(void)
{
#ifdef __x86_64__
    __asm__ volatile("movq $16, %rbp\n\tmovl $0, 8");
#else
    *(volatile int *)8 = 0;
#endif
}

void crash(const char *name)
{
    if (!strcmp(name, "segv"))
        *(volatile int *)0x40 = 1;
    else if (!strcmp(name, "jump"))
        ((void (*)(void))(uintptr_t)zero)();
    else if (!strcmp(name, "bus"))
        read_past_the_end_of_a_file();
    else if (!strcmp(name, "fpe"))
        zero = getpid() / zero;
    else if (!strcmp(name, "ill"))
        __builtin_trap();
    else if (!strcmp(name, "abort"))
        abort();
    else if (!strcmp(name, "overflow"))
        zero = overflow(NULL);
    else if (!strcmp(name, "spoilt"))
        spoil_the_stack();
}

static void *run(void *name)
{
    pthread_setname_np(pthread_self(), "guilty");
    crash(name);
    return NULL;
}

void crash_thread(const char *name)
{
    pthread_t thread;
    pthread_create(&thread, NULL, run, (void *)name);
    pthread_join(thread, NULL);
}

static void skip(int signum, siginfo_t *info, void *context)
{
    (void)signum, (void)info;
#ifdef __x86_64__
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;   /* over the ud2 */
#elif defined __aarch64__
    ((ucontext_t *)context)->uc_mcontext.pc += 4;
#endif
}

/* A program that handles SIGILL and goes on. */
void survive(void)
{
    struct sigaction action = {.sa_sigaction = skip, .sa_flags = SA_SIGINFO}, old;
    sigaction(SIGILL, &action, &old);
    __asm__ volatile(
#ifdef __x86_64__
        "ud2"
#elif defined __aarch64__
        "udf #0"
#endif
    );
    sigaction(SIGILL, &old, NULL);
}
