/* native.c - native code that a rank of tests/faults calls in order to fail there. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <unistd.h>

static __attribute__((noinline)) void write_to(volatile int *place)
{
    *place = 1;
}

/* Called without the GIL: ends by SIGSEGV. */
void crash(void)
{
    write_to((int *)(uintptr_t)16);
}

/* Called with the GIL (ctypes.PyDLL), and never gives it back. */
void spin(void)
{
    for (volatile unsigned long turns = 0;; turns++)
        ;
}

/* A parent by vfork is in uninterruptible sleep until its child ends; this child ends only when the parent is killed. */
void sleep_uninterruptibly(void)
{
    pid_t child = vfork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
}
