/* death.c - fatal signals and SIGTERM leave a record in the box, and then take their original effect.
 *
 * Rules:
 * 1. The kernel has our handler. The program's own handler is kept here, returned to callers of sigaction, and called
 *    from ours. With the gate, that holds for every sigaction and signal; without it, for handlers set before the
 *    attach.
 * 2. The exit status does not change. If the program has no handler, the default is restored and the signal comes
 *    again: by itself (a fault repeats), or sent from here with the same siginfo.
 * 3. A handler takes no lock, allocates nothing and does not call the loader. It records numbers; the agent resolves
 *    them.
 * 4. The record is complete before the stack is walked. A fault during the walk ends only the walk.
 * 5. A cut box is no fault of the program, which continues without it.
 * 6. The first fault stays, unless the program has handled it and continued. A signal that a handler sends again to its
 *    own process is the same fault. A handler that leaves by a jump is treated as one that lets the process die. */
#define _GNU_SOURCE
#include "core.h"

#include <execinfo.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <ucontext.h>

#define RELAXED memory_order_relaxed

enum { STACK_BYTES = 256 * 1024, GUARD_BYTES = 64 * 1024, OWN_FRAMES = 8 };
enum { KEPT_FLAGS = SA_RESTART | SA_NODEFER | SA_ONSTACK };

typedef int sigaction_fn(int, const struct sigaction *, struct sigaction *);
typedef sighandler_t signal_fn(int, sighandler_t);

/* In libtaskd.so, if that was preloaded: redirects both functions to this file, and returns the true sigaction. */
extern __attribute__((weak, visibility("default"))) sigaction_fn *taskd_gate_chain(sigaction_fn *, signal_fn *);

static const int watched[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTERM};

static struct {
    _Atomic(void *) handler;                    /* the program's own handler */
    struct sigaction action;                    /* the same with its options, for callers of sigaction */
} program[_NSIG];
static sigaction_fn *true_sigaction;
static pthread_key_t stack_key;
static int has_stack_key;
static __thread sigjmp_buf *escape __attribute__((tls_model("initial-exec")));

static int is_watched(int signum)
{
    for (unsigned i = 0; i < sizeof watched / sizeof *watched; i++)
        if (watched[i] == signum)
            return 1;
    return 0;
}

static int was_sent(const siginfo_t *info)
{
    return info->si_code <= 0;
}

static void note_request(struct td_request *to, const siginfo_t *info)
{
    uint64_t seq = atomic_load_explicit(&to->seq, RELAXED);
    if (seq & 1 || !atomic_compare_exchange_strong(&to->seq, &seq, seq + 1))
        return;
    atomic_thread_fence(memory_order_release);
    atomic_fetch_add_explicit(&to->count, 1, RELAXED);
    atomic_store_explicit(&to->code, info->si_code, RELAXED);
    atomic_store_explicit(&to->from_pid, was_sent(info) ? info->si_pid : -1, RELAXED);
    atomic_store_explicit(&to->from_uid, was_sent(info) ? (int32_t)info->si_uid : -1, RELAXED);
    atomic_store_explicit(&to->at_ns, td_now_ns(), RELAXED);
    atomic_store_explicit(&to->seq, seq + 2, memory_order_release);
}

static uint64_t pc_of(const void *context)
{
#if defined __x86_64__
    return (uint64_t)((const ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#elif defined __aarch64__
    return ((const ucontext_t *)context)->uc_mcontext.pc;
#else
    (void)context;
    return 0;
#endif
}

/* Return the caller of the interrupted code, if that is a function at its start. A call of an address without code
 * leaves no other trace. */
static uint64_t caller_of(const void *context)
{
#if defined __x86_64__
    return *(const uint64_t *)((const ucontext_t *)context)->uc_mcontext.gregs[REG_RSP];
#elif defined __aarch64__
    return ((const ucontext_t *)context)->uc_mcontext.regs[30];
#else
    (void)context;
    return 0;
#endif
}

/* Try to take the record for this thread; return whether this thread must write it. */
static int take(struct td_fault *fault, int signum, const siginfo_t *info)
{
    uint32_t state = TASKD_FAULT_NONE;
    if (atomic_compare_exchange_strong(&fault->state, &state, TASKD_FAULT_WRITING))
        return 1;
    if (state != TASKD_FAULT_HANDLED)
        return 0;
    int again = was_sent(info) && info->si_pid == getpid() && signum == atomic_load(&fault->signum);
    return atomic_compare_exchange_strong(&fault->state, &state, again ? TASKD_FAULT_TRACED : TASKD_FAULT_WRITING) && !again;
}

/* Store the frames, without our own. If the walk found no caller, store the one caller that is known. */
static void put_frames(struct td_fault *fault, void *const *found, int count, uint64_t caller)
{
    uint64_t pc = atomic_load_explicit(&fault->pc, RELAXED);
    int first = 0, used = 0;
    while (first < count && (uint64_t)(uintptr_t)found[first] != pc)
        first++;
    atomic_store_explicit(&fault->frame[used++], pc, RELAXED);
    if (first + 1 >= count && caller)
        atomic_store_explicit(&fault->frame[used++], caller, RELAXED);
    for (first++; first < count && used < TASKD_FRAMES; first++, used++)
        atomic_store_explicit(&fault->frame[used], (uint64_t)(uintptr_t)found[first], RELAXED);
    atomic_store_explicit(&fault->frames, (uint32_t)used, RELAXED);
}

/* Walk the stack. A corrupt stack may make the unwinder fault; that signal returns to the sigsetjmp. */
static void trace(struct td_fault *fault, const void *context)
{
    void *found[TASKD_FRAMES + OWN_FRAMES];
    volatile int count = 0;
    volatile uint64_t caller = 0;
    sigjmp_buf back;
    sigset_t faults, before;
    sigemptyset(&faults);
    sigaddset(&faults, SIGSEGV);
    sigaddset(&faults, SIGBUS);
    pthread_sigmask(SIG_UNBLOCK, &faults, &before);
    if (!sigsetjmp(back, 0)) {
        escape = &back;
        caller = caller_of(context);
        count = backtrace(found, TASKD_FRAMES + OWN_FRAMES);
    }
    escape = NULL;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    put_frames(fault, found, count, caller);
}

/* Record a fault, and return whether this call wrote the record. */
static int record(struct td_fault *fault, int signum, const siginfo_t *info, const void *context)
{
    char name[TASKD_THREAD_NAME_BYTES] = "";
    uint64_t words[TASKD_THREAD_NAME_BYTES / 8];
    if (!take(fault, signum, info))
        return 0;
    prctl(PR_GET_NAME, name);
    memcpy(words, name, sizeof words);
    for (int i = 0; i < TASKD_THREAD_NAME_BYTES / 8; i++)
        atomic_store_explicit(&fault->thread[i], words[i], RELAXED);
    atomic_fetch_add_explicit(&fault->serial, 1, RELAXED);
    atomic_store_explicit(&fault->signum, signum, RELAXED);
    atomic_store_explicit(&fault->code, info->si_code, RELAXED);
    atomic_store_explicit(&fault->from_pid, was_sent(info) ? info->si_pid : -1, RELAXED);
    atomic_store_explicit(&fault->from_uid, was_sent(info) ? (int32_t)info->si_uid : -1, RELAXED);
    atomic_store_explicit(&fault->address, was_sent(info) ? 0 : (uint64_t)(uintptr_t)info->si_addr, RELAXED);
    atomic_store_explicit(&fault->tid, (int32_t)syscall(SYS_gettid), RELAXED);
    atomic_store_explicit(&fault->pc, pc_of(context), RELAXED);
    atomic_store_explicit(&fault->at_ns, td_now_ns(), RELAXED);
    atomic_store_explicit(&fault->frames, 0, RELAXED);
    atomic_store_explicit(&fault->state, TASKD_FAULT_WHOLE, memory_order_release);
    trace(fault, context);
    atomic_store_explicit(&fault->state, TASKD_FAULT_TRACED, memory_order_release);
    return 1;
}

static void believe(int signum, const struct sigaction *action)
{
    program[signum].action = *action;
    atomic_store(&program[signum].handler, (void *)action->sa_handler);
}

/* Restore the default action. A signal that was sent is sent again, and arrives when the handler returns. A fault
 * repeats by itself. */
static void die(int signum, siginfo_t *info)
{
    struct sigaction action = {.sa_handler = SIG_DFL};
    true_sigaction(signum, &action, NULL);
    if (was_sent(info) || (signum == SIGBUS && info->si_code == BUS_MCEERR_AO))
        syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), signum, info);
}

/* Call the program's handler, or restore the default. Return whether the program had a handler, which has returned. */
static int pass_on(int signum, siginfo_t *info, void *context)
{
    void *handler = atomic_load(&program[signum].handler);
    if (handler == (void *)SIG_IGN)                     /* another thread has set it just now */
        return 1;
    if (handler == (void *)SIG_DFL) {
        die(signum, info);
        return 0;
    }
    if (program[signum].action.sa_flags & SA_RESETHAND)
        believe(signum, &(struct sigaction){.sa_handler = SIG_DFL});
    ((void (*)(int, siginfo_t *, void *))handler)(signum, info, context);      /* may ignore all but the number */
    return 1;
}

static void on_signal(int signum, siginfo_t *info, void *context)
{
    if (escape && (signum == SIGSEGV || signum == SIGBUS) && !was_sent(info))
        siglongjmp(*escape, 1);
    int saved = errno, written = 0;
    if (signum == SIGBUS && !was_sent(info) && td_replace_cut(info->si_addr)) {
        errno = saved;
        return;
    }
    struct td_box *box = td_current();
    int owned = atomic_load(&box->identity.owner) == getpid();      /* false in a forked child */
    if (owned && signum == SIGTERM)
        note_request(&box->request, info);
    else if (owned)
        written = record(&box->fault, signum, info, context);
    errno = saved;
    if (pass_on(signum, info, context) && written) {
        uint32_t state = TASKD_FAULT_TRACED;
        atomic_compare_exchange_strong(&box->fault.state, &state, TASKD_FAULT_HANDLED);
    }
}

/* Install our handler for the program's `action`, or let the kernel ignore the signal. */
static int install(int signum, const struct sigaction *action)
{
    if (action->sa_handler == SIG_IGN)
        return true_sigaction(signum, action, NULL);
    struct sigaction ours = {.sa_sigaction = on_signal, .sa_mask = action->sa_mask};
    ours.sa_flags = (action->sa_flags & KEPT_FLAGS) | SA_SIGINFO | (signum == SIGTERM ? 0 : SA_ONSTACK);
    return true_sigaction(signum, &ours, NULL);
}

static int chained_sigaction(int signum, const struct sigaction *action, struct sigaction *old)
{
    if (!is_watched(signum))
        return true_sigaction(signum, action, old);
    struct sigaction before = program[signum].action;
    if (action) {
        struct sigaction wanted = *action;
        believe(signum, &wanted);               /* first: a signal may come as soon as it is installed */
        if (install(signum, &wanted)) {
            believe(signum, &before);
            return -1;
        }
    }
    if (old)
        *old = before;
    return 0;
}

static sighandler_t chained_signal(int signum, sighandler_t handler)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, signum);
    return chained_sigaction(signum, &action, &old) ? SIG_ERR : old.sa_handler;
}

static void drop_stack(void *memory)
{
    stack_t none = {.ss_flags = SS_DISABLE};
    stack_t current;
    if (!sigaltstack(NULL, &current) && current.ss_sp == (char *)memory + GUARD_BYTES)
        sigaltstack(&none, NULL);
    munmap(memory, GUARD_BYTES + STACK_BYTES);
}

__attribute__((constructor)) static void make_stack_key(void)
{
    has_stack_key = !pthread_key_create(&stack_key, drop_stack);
}

/* Give the calling thread a stack for handlers, unless it has one. Then an overflow of its own stack can be
 * recorded. */
void td_death_stack(void)
{
    stack_t current;
    int saved = errno;
    if (has_stack_key && !sigaltstack(NULL, &current) && current.ss_flags & SS_DISABLE) {
        char *memory = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
        if (memory != MAP_FAILED) {
            stack_t ours = {.ss_sp = memory + GUARD_BYTES, .ss_size = STACK_BYTES};
            mprotect(memory, GUARD_BYTES, PROT_NONE);
            if (sigaltstack(&ours, NULL))
                munmap(memory, GUARD_BYTES + STACK_BYTES);
            else
                pthread_setspecific(stack_key, memory);
        }
    }
    errno = saved;
}

/* Install our handlers. Called by the thread that has attached a box. They outlive the box, and forked children inherit
 * them. */
void td_death_watch(void)
{
    void *frames[2];
    if (!true_sigaction) {
        backtrace(frames, 2);                   /* loads the unwinder now, not in a handler */
        true_sigaction = taskd_gate_chain ? taskd_gate_chain(NULL, NULL) : sigaction;
        for (unsigned i = 0; i < sizeof watched / sizeof *watched; i++) {
            struct sigaction found;
            if (!true_sigaction(watched[i], NULL, &found)) {
                believe(watched[i], &found);
                install(watched[i], &found);
            }
        }
        if (taskd_gate_chain)
            taskd_gate_chain(chained_sigaction, chained_signal);
    }
    td_death_stack();
}
