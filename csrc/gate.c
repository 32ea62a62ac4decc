/* gate.c - libtaskd.so, the preloaded object: it loads the core if this process is a worker of the job, else does
 * nothing.
 *
 * Rules:
 * 1. A preloaded object that cannot be linked kills every process of its container, also those of an older libc or of
 *    musl. So it names no library and no version of a symbol (`csrc/objects.py` checks that), and every libc function
 *    is weak. It works without a missing one: before glibc 2.34, a program without libdl has no dlopen and dlsym.
 * 2. The cheap checks come first, because this runs in every process of a container. The order is: switch, box, name of
 *    the executable, core, claim.
 * 3. A failed check and any other failure are silent, and errno stays as it was. A core that was cut short is not
 *    loaded: the loader would crash, and with it the program. The worker reports that itself
 *    (`taskd/runtime/box/shim.py`).
 * 4. A process that took its box removes this library from LD_PRELOAD, so its own children never load it.
 *    TASKD_PRELOAD_KEEP=on leaves it there: Ascend's loader requires a non-empty variable, and a worker that replaces
 *    itself needs the library.
 * 5. sigaction and signal go to libc, or to the core once it has requested that: in a worker at once, in a warm process
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

/* glibc's other names of both, called if dlsym is missing. */
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

/* Redirect both to the core, if it passes functions for them. Return libc's sigaction. */
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

/* Our own versions of string.h's functions. Compilers call the weak names, or others of string.h, where they like. */
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
        ((volatile char *)to)[i] = from[i];     /* volatile: otherwise the loop becomes a call of memcpy */
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

/* Parse a decimal number like strtol, but accept no plus, no blanks, and no more digits than an int has. */
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

/* Return whether all parts that a library's headers name lie within the file, as `flaw` of taskd/runtime/box/elf.py. */
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

/* Load the core. It lies beside this library, by whatever path this one was preloaded. */
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
    if (box && *box && is_python() && !value_of("TASKD_WRAPPED"))   /* start.py chooses a wrapper's rank */
        arm(box);
    set_errno(saved);
}
