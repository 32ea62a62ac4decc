/* libraries.c - map of the loaded libraries, for readers of a crash's frames.
 *
 * Rules:
 * 1. The beat thread records the map whenever the loader's counters have changed. A fault handler must not walk the
 *    loader's lists, because it may have interrupted the loader.
 * 2. The walk holds a lock of the loader, which a child forked meanwhile would never get. So a fork waits for the
 *    walk. */
#define _GNU_SOURCE
#include "core.h"

#include <link.h>
#include <pthread.h>
#include <string.h>

static pthread_mutex_t walking = PTHREAD_MUTEX_INITIALIZER;
static struct td_box *told;                     /* box that has the map as of `changes`; only the beat thread uses it */
static uint64_t changes;

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void put_name(struct td_library *to, const char *path)
{
    char name[TASKD_MODULE_BYTES] = "";
    uint64_t words[TASKD_MODULE_BYTES / 8];
    const char *base = base_name(path);
    memcpy(name, base, strnlen(base, sizeof name - 1));
    memcpy(words, name, sizeof words);
    for (unsigned i = 0; i < TASKD_MODULE_BYTES / 8; i++)
        atomic_store_explicit(&to->name[i], words[i], memory_order_relaxed);
}

static int put(struct dl_phdr_info *info, size_t size, void *data)
{
    struct td_box *box = data;
    uint32_t number = atomic_load_explicit(&box->libraries.count, memory_order_relaxed);
    uint64_t low = UINT64_MAX, high = 0;
    char program[PATH_MAX];
    const char *name = info->dlpi_name;
    (void)size;
    if (number == TD_LIBRARIES)
        return 1;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uint64_t start = info->dlpi_addr + part->p_vaddr;
        if (part->p_type != PT_LOAD)
            continue;
        low = start < low ? start : low;
        high = start + part->p_memsz > high ? start + part->p_memsz : high;
    }
    if (!*name) {
        ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
        program[length > 0 ? length : 0] = 0;
        name = program;
    }
    struct td_library *to = &box->library[number];
    put_name(to, name);
    atomic_store_explicit(&to->bias, info->dlpi_addr, memory_order_relaxed);
    atomic_store_explicit(&to->low, low, memory_order_relaxed);
    atomic_store_explicit(&to->high, high, memory_order_relaxed);
    atomic_store_explicit(&box->libraries.count, number + 1, memory_order_relaxed);
    return 0;
}

static int count_changes(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    *(uint64_t *)data = info->dlpi_adds + info->dlpi_subs;      /* each only rises */
    return 1;
}

/* Record the map in `box`, if it has changed. Called by the beat thread. */
void td_libraries_note(struct td_box *box)
{
    uint64_t now = 0;
    pthread_mutex_lock(&walking);
    dl_iterate_phdr(count_changes, &now);
    if (box != told || now != changes) {
        uint64_t seq = atomic_load_explicit(&box->libraries.seq, memory_order_relaxed) | 1;
        atomic_store_explicit(&box->libraries.seq, seq, memory_order_relaxed);
        atomic_thread_fence(memory_order_release);
        atomic_store_explicit(&box->libraries.count, 0, memory_order_relaxed);
        dl_iterate_phdr(put, box);
        atomic_store_explicit(&box->libraries.seq, seq + 1, memory_order_release);
        told = box;
        changes = now;
    }
    pthread_mutex_unlock(&walking);
}

void td_libraries_before_fork(void)
{
    pthread_mutex_lock(&walking);
}

void td_libraries_in_parent(void)
{
    pthread_mutex_unlock(&walking);
}

void td_libraries_after_fork(void)
{
    pthread_mutex_init(&walking, NULL);
    told = NULL;
}
