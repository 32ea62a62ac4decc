/* gate.c - libtaskd.so, the preloaded object: is this process a worker of the job? Then load the core; else do nothing.
 *
 * Rules:
 * 1. A preloaded object that cannot be linked kills every process of its container, those of an older libc or of musl
 *    too. So it names no library and no version of a symbol (`csrc/objects.py` checks that), every function of libc's is
 *    weak, and one that is missing is done without: before glibc 2.34, a program without libdl has no dlopen and dlsym.
 * 2. The cheap questions come first, since this runs in every child of a container: on, box, executable's name, core, claim.
 * 3. Any "no" and any failure is silence. errno is left as it was. A core that was cut short is not loaded: the loader
 *    would die of it, and with it the program. The worker says so itself (`taskd/runtime/box/shim.py`).
 * 4. A process that took its box removes this library from LD_PRELOAD, so that its own children never see it;
 *    TASKD_PRELOAD_KEEP=on leaves it there (Ascend's loader wants it non-empty; a worker that replaces itself needs it).
 * 5. sigaction and signal go to libc, or to the core from when it asks for them: in a worker at once, in a warm process
 *    when it has become a worker. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

typedef int sigaction_fn(int, const struct sigaction *, struct sigaction *);
typedef void (*handler_fn)(int);
typedef handler_fn signal_fn(int, handler_fn);
typedef int attach_fn(const char *, int, int);

/* glibc's other names of both: what is called where dlsym is missing. */
extern int __sigaction(int, const struct sigaction *, struct sigaction *);
extern handler_fn ssignal(int, handler_fn);

#pragma weak __errno_location
#pragma weak __sigaction
#pragma weak close
#pragma weak dladdr
#pragma weak dlopen
#pragma weak dlsym
#pragma weak getenv
#pragma weak lseek
#pragma weak open
#pragma weak pread
#pragma weak readlink
#pragma weak setenv
#pragma weak ssignal
#pragma weak unsetenv

static const char GATE_NAME[] = "libtaskd.so";
static const char CORE_NAME[] = "libtaskd_core.so";

static sigaction_fn *libc_sigaction;
static sigaction_fn *next_sigaction;
static signal_fn *next_signal;

static void find_libc(void)
{
    sigaction_fn *found_sigaction = dlsym ? (sigaction_fn *)dlsym(RTLD_NEXT, "sigaction") : NULL;
    signal_fn *found_signal = dlsym ? (signal_fn *)dlsym(RTLD_NEXT, "signal") : NULL;
    next_sigaction = libc_sigaction = found_sigaction ? found_sigaction : __sigaction;
    next_signal = found_signal ? found_signal : ssignal;
}

static void set_errno(int value)
{
    if (__errno_location)
        errno = value;
}

/* Another library's constructor may call these before ours has run. */
EXPORTED int sigaction(int signum, const struct sigaction *act, struct sigaction *old)
{
    if (!next_sigaction)
        find_libc();
    if (next_sigaction)
        return next_sigaction(signum, act, old);
    set_errno(ENOSYS);
    return -1;
}

EXPORTED handler_fn signal(int signum, handler_fn handler)
{
    if (!next_signal)
        find_libc();
    if (next_signal)
        return next_signal(signum, handler);
    set_errno(ENOSYS);
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

/* What follows of string.h is our own: compilers call the weak names, or others of them, where they like. */
static size_t length_of(const char *text)
{
    size_t length = 0;
    while (text[length])
        length++;
    return length;
}

static void copy(char *to, const char *from, size_t length)
{
    for (size_t i = 0; i < length; i++)
        ((volatile char *)to)[i] = from[i];     /* volatile: else the loop becomes a call of memcpy */
}

static int begins_with(const char *text, const char *start, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (text[i] != start[i])
            return 0;
    return 1;
}

static size_t folder_length(const char *path)
{
    size_t length = length_of(path);
    while (length && path[length - 1] != '/')
        length--;
    return length;
}

static const char *value_of(const char *name)
{
    return getenv ? getenv(name) : NULL;
}

static int is_on(const char *name)
{
    const char *value = value_of(name);
    return value && begins_with(value, "on", sizeof "on");
}

static int is_python(void)
{
    char path[4096];
    ssize_t length = readlink ? readlink("/proc/self/exe", path, sizeof path - 1) : 0;
    if (length <= 0)
        return 0;
    path[length] = 0;
    return begins_with(path + folder_length(path), "python", sizeof "python" - 1);
}

/* A decimal number as strtol reads it, without what nobody writes: a plus, blanks, or more digits than an int has. */
static int number(const char *name, int otherwise)
{
    const char *value = value_of(name);
    if (!value || !*value)
        return otherwise;
    int sign = *value == '-' ? -1 : 1, parsed = 0;
    for (const char *digit = value + (sign < 0); *digit; digit++) {
        if (*digit < '0' || *digit > '9' || parsed > 99999999)
            return otherwise;
        parsed = 10 * parsed + *digit - '0';
    }
    return sign * parsed;
}

static int lies_within(uint64_t start, uint64_t bytes, uint64_t size)
{
    return start <= size && bytes <= size - start;
}

/* All that the headers of a library name lies within the file: as `flaw` of taskd/runtime/box/elf.py. */
static int is_whole(int fd)
{
    Elf64_Ehdr head;
    Elf64_Phdr part;
    off_t size = lseek(fd, 0, SEEK_END);
    if (size < 0 || pread(fd, &head, sizeof head, 0) != sizeof head || head.e_phentsize != sizeof part)
        return 0;
    if (!lies_within(head.e_shoff, (uint64_t)head.e_shnum * head.e_shentsize, (uint64_t)size))
        return 0;
    for (int i = 0; i < head.e_phnum; i++) {
        uint64_t at = head.e_phoff + (uint64_t)i * sizeof part;
        if (!lies_within(at, sizeof part, (uint64_t)size) || pread(fd, &part, sizeof part, (off_t)at) != sizeof part)
            return 0;
        if (!lies_within(part.p_offset, part.p_filesz, (uint64_t)size))
            return 0;
    }
    return 1;
}

static int may_be_loaded(const char *path)
{
    if (!open || !close || !lseek || !pread)
        return 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int whole = fd >= 0 && is_whole(fd);
    if (fd >= 0)
        close(fd);
    return whole;
}

/* The core lies beside this library, whatever path this one was preloaded by. */
static void *load_core(void)
{
    Dl_info self;
    char path[4096];
    if (!dladdr || !dlopen || !dladdr((void *)load_core, &self) || !self.dli_fname)
        return NULL;
    size_t length = folder_length(self.dli_fname);
    if (length + sizeof CORE_NAME > sizeof path)
        return NULL;
    copy(path, self.dli_fname, length);
    copy(path + length, CORE_NAME, sizeof CORE_NAME);
    return may_be_loaded(path) ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
}

static int is_gate(const char *entry, size_t length)
{
    size_t name = sizeof GATE_NAME - 1;
    if (length < name || !begins_with(entry + length - name, GATE_NAME, name))
        return 0;
    return length == name || entry[length - name - 1] == '/';
}

static int separates(char byte)
{
    return byte == ':' || byte == ' ';
}

static void leave_preload(void)
{
    const char *list = value_of("LD_PRELOAD");
    char kept[8192];
    size_t used = 0;
    if (!list || !setenv || !unsetenv || length_of(list) >= sizeof kept)
        return;
    for (const char *entry = list; *entry;) {
        size_t length = 0;
        while (entry[length] && !separates(entry[length]))
            length++;
        if (length && !is_gate(entry, length)) {
            if (used)
                kept[used++] = ':';
            copy(kept + used, entry, length);
            used += length;
        }
        entry += length;
        while (separates(*entry))
            entry++;
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
    attach_fn *attach = core && dlsym ? (attach_fn *)dlsym(core, "taskd_attach") : NULL;
    if (!attach || attach(box, number("RANK", -1), number("TASKD_INCARNATION", 0)))
        return;
    if (!is_on("TASKD_PRELOAD_KEEP"))
        leave_preload();
}

__attribute__((constructor)) static void gate(void)
{
    int saved = __errno_location ? errno : 0;
    if (!next_sigaction)
        find_libc();
    const char *box = is_on("TASKD_PROCESS_ENABLE") ? value_of("TASKD_BLACKBOX") : NULL;
    if (box && *box && is_python() && !value_of("TASKD_WRAPPED"))   /* of a wrapper's processes one is the rank: start.py */
        arm(box);
    set_errno(saved);
}
