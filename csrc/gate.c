/* gate.c - libtaskd.so, the preloaded object: is this process a worker of the job? Then load the core; else do nothing.
 *
 * Rules:
 * 1. It needs libc alone and uses only what every libc has: a preloaded object that cannot be linked kills every process.
 * 2. The cheap questions come first, since this runs in every child of a container: on, box, executable's name, core, claim.
 * 3. Any "no" and any failure is silence. errno is left as it was.
 * 4. A process that took its box removes this library from LD_PRELOAD, so that its own children never see it;
 *    TASKD_PRELOAD_KEEP=on leaves it there (Ascend's loader wants it non-empty; a worker that replaces itself needs it).
 * 5. sigaction and signal go to libc, or to the core from when it asks for them: in a worker at once, in a warm process
 *    when it has become a worker. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

typedef int sigaction_fn(int, const struct sigaction *, struct sigaction *);
typedef void (*handler_fn)(int);
typedef handler_fn signal_fn(int, handler_fn);
typedef int attach_fn(const char *, int, int);

static const char GATE_NAME[] = "libtaskd.so";
static const char CORE_NAME[] = "libtaskd_core.so";

static sigaction_fn *libc_sigaction;
static sigaction_fn *next_sigaction;
static signal_fn *next_signal;

static void find_libc(void)
{
    next_sigaction = libc_sigaction = (sigaction_fn *)dlsym(RTLD_NEXT, "sigaction");
    next_signal = (signal_fn *)dlsym(RTLD_NEXT, "signal");
}

/* Another library's constructor may call these before ours has run. */
EXPORTED int sigaction(int signum, const struct sigaction *act, struct sigaction *old)
{
    if (!next_sigaction)
        find_libc();
    if (next_sigaction)
        return next_sigaction(signum, act, old);
    errno = ENOSYS;
    return -1;
}

EXPORTED handler_fn signal(int signum, handler_fn handler)
{
    if (!next_signal)
        find_libc();
    if (next_signal)
        return next_signal(signum, handler);
    errno = ENOSYS;
    return SIG_ERR;
}

/* Sends both to the core, if it gives functions for them. Returns libc's sigaction. */
EXPORTED sigaction_fn *taskd_gate_chain(sigaction_fn *to_sigaction, signal_fn *to_signal)
{
    if (!libc_sigaction)
        find_libc();
    if (to_sigaction && to_signal) {
        next_sigaction = to_sigaction;
        next_signal = to_signal;
    }
    return libc_sigaction;
}

static int is_on(const char *name)
{
    const char *value = getenv(name);
    return value && !strcmp(value, "on");
}

static int is_python(void)
{
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0)
        return 0;
    path[length] = 0;
    const char *slash = strrchr(path, '/');
    return !strncmp(slash ? slash + 1 : path, "python", 6);
}

static int number(const char *name, int otherwise)
{
    const char *value = getenv(name);
    char *end;
    if (!value || !*value)
        return otherwise;
    long parsed = strtol(value, &end, 10);
    return *end ? otherwise : (int)parsed;
}

/* The core lies beside this library, whatever path this one was preloaded by. */
static void *load_core(void)
{
    Dl_info self;
    char path[4096];
    if (!dladdr((void *)load_core, &self) || !self.dli_fname)
        return NULL;
    const char *slash = strrchr(self.dli_fname, '/');
    size_t length = slash ? (size_t)(slash + 1 - self.dli_fname) : 0;
    if (length + sizeof CORE_NAME > sizeof path)
        return NULL;
    memcpy(path, self.dli_fname, length);
    memcpy(path + length, CORE_NAME, sizeof CORE_NAME);
    return dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}

static int is_gate(const char *entry, size_t length)
{
    size_t name = sizeof GATE_NAME - 1;
    if (length < name || memcmp(entry + length - name, GATE_NAME, name))
        return 0;
    return length == name || entry[length - name - 1] == '/';
}

static void leave_preload(void)
{
    const char *list = getenv("LD_PRELOAD");
    char kept[8192];
    size_t used = 0;
    if (!list || strlen(list) >= sizeof kept)
        return;
    for (const char *entry = list; *entry;) {
        size_t length = strcspn(entry, ": ");
        if (length && !is_gate(entry, length)) {
            if (used)
                kept[used++] = ':';
            memcpy(kept + used, entry, length);
            used += length;
        }
        entry += length;
        entry += strspn(entry, ": ");
    }
    kept[used] = 0;
    if (used)
        setenv("LD_PRELOAD", kept, 1);
    else
        unsetenv("LD_PRELOAD");
}

static void arm(const char *box)
{
    void *core = load_core();
    attach_fn *attach = core ? (attach_fn *)dlsym(core, "taskd_attach") : NULL;
    if (!attach || attach(box, number("RANK", -1), number("TASKD_INCARNATION", 0)))
        return;
    if (!is_on("TASKD_PRELOAD_KEEP"))
        leave_preload();
}

__attribute__((constructor)) static void gate(void)
{
    int saved = errno;
    if (!next_sigaction)
        find_libc();
    const char *box = is_on("TASKD_PROCESS_ENABLE") ? getenv("TASKD_BLACKBOX") : NULL;
    if (box && *box && is_python())
        arm(box);
    errno = saved;
}
