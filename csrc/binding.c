/* binding.c - finds the gloo that a caller of our hooks means.
 *
 * Rules:
 * 1. Python loads torch privately, so "the next definition in the global scope" is not torch's. The library that called is
 *    asked instead: it defines gloo or depends on what does. So a second gloo in the process (some other package has its
 *    own) keeps to its own code.
 * 2. A library is asked once; after that, a call costs the comparison of an address. Entries are never changed or freed:
 *    who links gloo stays loaded. */
#define _GNU_SOURCE
#include "binding.h"
#include "core.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

enum { MOST_CALLERS = 16 };

static struct td_gloo known[MOST_CALLERS];
static _Atomic int count;
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

/* In a program linked with the core, the first definition is ours: then the one after it is meant. */
static void *next_of(void *library, const char *name)
{
    Dl_info own, found;
    void *symbol = library ? dlsym(library, name) : NULL;
    if (symbol && dladdr((void *)known, &own) && dladdr(symbol, &found) && own.dli_fbase != found.dli_fbase)
        return symbol;
    return dlsym(RTLD_NEXT, name);
}

static void find(struct td_gloo *gloo, const struct object *caller)
{
    const char *name = caller->name && *caller->name ? caller->name : NULL;
    void *library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);      /* stays referenced */
    gloo->add = (td_add_fn *)next_of(library, TD_GLOO_REGISTER);
    gloo->drop = (td_drop_fn *)next_of(library, TD_GLOO_UNREGISTER);
    gloo->wait_send = (td_wait_fn *)next_of(library, TD_GLOO_WAIT_SEND);
    gloo->wait_recv = (td_wait_fn *)next_of(library, TD_GLOO_WAIT_RECV);
    gloo->abort_send = (td_abort_fn *)next_of(library, TD_GLOO_ABORT_SEND);
    gloo->abort_recv = (td_abort_fn *)next_of(library, TD_GLOO_ABORT_RECV);
    gloo->low = caller->low;
    gloo->high = caller->high;
}

static const struct td_gloo *search(uintptr_t address, int upto)
{
    for (int i = 0; i < upto; i++)
        if (address >= known[i].low && address < known[i].high)
            return &known[i];
    return NULL;
}

static const struct td_gloo *add(uintptr_t address)
{
    struct object caller = {.address = address};
    pthread_mutex_lock(&adding);
    int upto = atomic_load(&count);
    const struct td_gloo *found = search(address, upto);        /* somebody may have been quicker */
    if (!found && upto < MOST_CALLERS) {
        dl_iterate_phdr(covers, &caller);
        find(&known[upto], &caller);
        atomic_store(&count, upto + 1);
        found = &known[upto];
    }
    pthread_mutex_unlock(&adding);
    return found ? found : &known[0];
}

/* Never NULL. `caller` is an address in the code that called a hook. */
const struct td_gloo *td_gloo_of(const void *caller)
{
    const struct td_gloo *found = search((uintptr_t)caller, atomic_load_explicit(&count, memory_order_acquire));
    int saved = errno;
    if (!found)
        found = add((uintptr_t)caller);
    errno = saved;
    return found;
}

void td_binding_after_fork(void)
{
    pthread_mutex_init(&adding, NULL);
}
