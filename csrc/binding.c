/* binding.c - finds the functions of gloo, NCCL or HCCL that a caller of our hooks means.
 *
 * Rules:
 * 1. Python loads torch privately, so the next definition in the global scope is not torch's. The calling library is
 *    searched instead: it defines gloo, or depends on a library that does. So a second gloo in the process, of another
 *    package, uses only its own code.
 * 2. A library is searched once; after that, a call costs the comparison of an address. Entries are never changed or
 *    freed, because a library that links gloo stays loaded. The same holds for NCCL and HCCL, one function at a time.
 * 3. A function that a hook has called may end with a jump to another hook. The first hook then seems to be the caller
 *    of the second. The true caller is the newest one of this thread.
 *    If any other function ends with a jump to a hook, its own caller seems to call the hook. If that caller has no
 *    gloo, the gloo of any loaded library is used.
 * 4. A caller may not depend on the library of a function, because it requested any definition from dlsym. Then that
 *    library is searched among the loaded ones, or loaded by its own name. If it does not exist, the hook returns an
 *    error code; the process never ends. */
#define _GNU_SOURCE
#include "binding.h"
#include "core.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <string.h>

enum { MOST_CALLERS = 16 };

struct caller {
    struct td_gloo gloo;                        /* first member: td_gloo_of returns its address */
    void *library;
    _Atomic(void *) device[TD_DEVICE_FUNCTION_COUNT];
};

static struct caller known[MOST_CALLERS];
static _Atomic int count;
static __thread struct caller *newest __attribute__((tls_model("initial-exec")));       /* per thread */
static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;

struct object {
    uintptr_t address, low, high;
    const char *name;                           /* lives as long as the object */
};

static int covers(struct dl_phdr_info *info, size_t size, void *data)
{
    struct object *wanted = data;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t low = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && wanted->address >= low && wanted->address - low < part->p_memsz) {
            *wanted = (struct object){wanted->address, low, low + part->p_memsz, info->dlpi_name};
            return 1;
        }
    }
    return 0;
}

/* Do the same with all segments of the object, because code and data lie in different ones. */
static int covers_any(struct dl_phdr_info *info, size_t size, void *data)
{
    struct object *wanted = data;
    if (!covers(info, size, data))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t low = info->dlpi_addr + part->p_vaddr;
        if (part->p_type != PT_LOAD)
            continue;
        wanted->low = low < wanted->low ? low : wanted->low;
        wanted->high = low + part->p_memsz > wanted->high ? low + part->p_memsz : wanted->high;
    }
    return 1;
}

static struct object own;

__attribute__((constructor)) static void find_own(void)
{
    own.address = (uintptr_t)known;             /* any part of this library */
    dl_iterate_phdr(covers_any, &own);
}

static int is_ours(const void *address)
{
    return (uintptr_t)address >= own.low && (uintptr_t)address < own.high;
}

/* Return the definition of `name` in `library` or its dependencies, else the next one after our own. In a program
 * linked with the core, the first definition is ours. (dladdr could detect that too, but takes a millisecond: it goes
 * through all symbols of a library, of which torch's has hundreds of thousands.) */
static void *next_of(void *library, const char *name)
{
    void *symbol = library ? dlsym(library, name) : NULL;
    if (symbol && !is_ours(symbol))
        return symbol;
    return dlsym(RTLD_NEXT, name);
}

struct turn {
    int number;
    char name[PATH_MAX];
};

static int is_turn(struct dl_phdr_info *info, size_t size, void *data)
{
    struct turn *turn = data;
    (void)size;
    if (turn->number--)
        return 0;
    turn->name[0] = 0;
    strncat(turn->name, info->dlpi_name, sizeof turn->name - 1);
    return 1;
}

/* Return the first loaded object that has `name` or depends on a library that has it; NULL if there is none. Each
 * object is opened separately, because the loader must not be called during a walk of its list. */
static void *provider(const char *name)
{
    struct turn turn;
    for (int i = 0; turn.number = i, dl_iterate_phdr(is_turn, &turn); i++) {
        void *library = dlopen(turn.name[0] ? turn.name : NULL, RTLD_LAZY | RTLD_NOLOAD);
        if (library && next_of(library, name))
            return library;
        if (library)
            dlclose(library);
    }
    return NULL;
}

/* Return a symbol that the caller has or depends on, else that of any loaded library. A gloo may lack some symbols, but
 * a hook is called only if its symbol exists. */
static void *gloo_symbol(void *library, const char *name)
{
    void *symbol = next_of(library, name);
    return symbol ? symbol : next_of(provider(name), name);
}

static void find(struct caller *to, const struct object *caller)
{
    struct td_gloo *gloo = &to->gloo;
    const char *name = caller->name && *caller->name ? caller->name : NULL;
    void *library = to->library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);        /* stays referenced */
    gloo->add = (td_add_fn *)gloo_symbol(library, TD_GLOO_REGISTER);
    gloo->drop = (td_drop_fn *)gloo_symbol(library, TD_GLOO_UNREGISTER);
    gloo->wait_send = (td_wait_fn *)gloo_symbol(library, TD_GLOO_WAIT_SEND);
    gloo->wait_recv = (td_wait_fn *)gloo_symbol(library, TD_GLOO_WAIT_RECV);
    gloo->abort_send = (td_abort_fn *)gloo_symbol(library, TD_GLOO_ABORT_SEND);
    gloo->abort_recv = (td_abort_fn *)gloo_symbol(library, TD_GLOO_ABORT_RECV);
    gloo->context = (td_context_fn *)gloo_symbol(library, TD_GLOO_CONTEXT);
    gloo->buffer = (td_buffer_fn *)gloo_symbol(library, TD_GLOO_BUFFER);
    gloo->send = (td_transfer_fn *)gloo_symbol(library, TD_GLOO_SEND);
    gloo->recv = (td_transfer_fn *)gloo_symbol(library, TD_GLOO_RECV);
#define TD_FIND(own, name, op) gloo->collective[TD_GLOO_##own] = (td_collective_fn *)gloo_symbol(library, name);
    TD_GLOO_COLLECTIVES(TD_FIND)
#undef TD_FIND
    gloo->low = caller->low;
    gloo->high = caller->high;
}

static struct caller *search(uintptr_t address, int upto)
{
    for (int i = 0; i < upto; i++)
        if (address >= known[i].gloo.low && address < known[i].gloo.high)
            return &known[i];
    return NULL;
}

static struct caller *add(uintptr_t address)
{
    struct object caller = {.address = address};
    pthread_mutex_lock(&adding);
    int upto = atomic_load(&count);
    struct caller *found = search(address, upto);               /* another thread may have been quicker */
    if (!found && upto < MOST_CALLERS) {
        dl_iterate_phdr(covers, &caller);
        find(&known[upto], &caller);
        atomic_store(&count, upto + 1);
        found = &known[upto];
    }
    pthread_mutex_unlock(&adding);
    return found ? found : &known[0];
}

/* Return the entry of the caller at `address`, which is made at its first call. Never NULL. */
static struct caller *caller_at(const void *address)
{
    if (newest && is_ours(address))
        return newest;
    struct caller *found = search((uintptr_t)address, atomic_load_explicit(&count, memory_order_acquire));
    int saved = errno;
    if (!found)
        found = add((uintptr_t)address);
    errno = saved;
    newest = found;
    return found;
}

/* Return the gloo of `caller`, an address in the code that called a hook. Never NULL. */
const struct td_gloo *td_gloo_of(const void *caller)
{
    return &caller_at(caller)->gloo;
}

static const struct {
    const char *name, *library;
} device_functions[] = {
#define TD_NAME(name, soname) {#name, soname},
    TD_DEVICE_FUNCTIONS(TD_NAME)
#undef TD_NAME
};

static void *find_device(struct caller *caller, enum td_device_function which)
{
    const char *name = device_functions[which].name, *soname = device_functions[which].library;
    void *found = next_of(caller->library, name);
    if (found)
        return found;
    void *library = dlopen(soname, RTLD_LAZY | RTLD_NOLOAD);
    if (!library)
        library = dlopen(soname, RTLD_LAZY);
    return library ? dlsym(library, name) : NULL;
}

/* Return the function that `caller` means by the name of one of our hooks; NULL if there is none. */
void *td_device_function(const void *caller, enum td_device_function which)
{
    struct caller *from = caller_at(caller);
    void *found = atomic_load_explicit(&from->device[which], memory_order_relaxed);
    if (!found) {
        int saved = errno;
        found = find_device(from, which);
        atomic_store_explicit(&from->device[which], found, memory_order_relaxed);
        errno = saved;
    }
    return found;
}

void td_binding_after_fork(void)
{
    pthread_mutex_init(&adding, NULL);
}
