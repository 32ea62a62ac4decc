/* Handlers by sigaction and signal, with any libc: each is called, found again, and stays. A read goes on after one. */
#include <signal.h>
#include <unistd.h>

static int ends[2];

static void first(int signum)
{
    (void)signum;
    (void)!write(1, "first\n", 6);
}

static void second(int signum)
{
    (void)signum;
    (void)!write(1, "second\n", 7);
}

static void refill(int signum)
{
    (void)signum;
    (void)!write(ends[1], "x", 1);
}

int main(void)
{
    struct sigaction action = {.sa_handler = first}, seen;
    char byte = 0;
    if (sigaction(SIGUSR1, &action, NULL) || raise(SIGUSR1) || sigaction(SIGUSR1, NULL, &seen))
        return 1;
    if (seen.sa_handler != first)
        return 2;
    if (signal(SIGUSR2, second) == SIG_ERR || raise(SIGUSR2) || raise(SIGUSR2))
        return 3;
    if (signal(SIGUSR2, SIG_DFL) != second)
        return 4;
    if (pipe(ends) || signal(SIGALRM, refill) == SIG_ERR)
        return 5;
    alarm(1);
    if (read(ends[0], &byte, 1) != 1 || byte != 'x')        /* with EINTR, were signal that of System V */
        return 6;
    (void)!write(1, "ended\n", 6);
    return 0;
}
