/* A core that has a chain of signal handlers, and says when it is asked. */
#include <signal.h>
#include <unistd.h>

typedef int action_fn(int, const struct sigaction *, struct sigaction *);
typedef sighandler_t signal_fn(int, sighandler_t);
action_fn *taskd_gate_chain(action_fn *, signal_fn *);

static int ours(int signum, const struct sigaction *action, struct sigaction *old)
{
    (void)old;
    if (action && signum == SIGUSR2)
        (void)!write(1, "asked\n", 6);
    return 0;
}

static sighandler_t our_signal(int signum, sighandler_t handler)
{
    (void)signum;
    (void)handler;
    return SIG_DFL;
}

int taskd_attach(const char *path, int rank, int incarnation)
{
    (void)path;
    (void)rank;
    (void)incarnation;
    return taskd_gate_chain(ours, our_signal) == ours;
}
