/* look.c - a reader's access to a box: the kernel makes copies of the box, and changes its futexes.
 *
 * Rules:
 * 1. A reader touches no memory of a box. A process that may write to the file may also cut it. A load behind its end
 *    is a SIGBUS in the agent; for the kernel it is an error.
 * 2. Three copies are made, one after the other. If a record has the same mark in all three, it was not being written
 *    while the second was made, and is taken from that one.
 * 3. There is one place for the copies, with a lock, because reads are rare and short. */
#define _GNU_SOURCE
#include "core.h"
#include "handle.h"

#include <string.h>

enum { COPIES = 3, TAKEN = 1 };

static struct td_box copies[COPIES];
static pthread_mutex_t looking = PTHREAD_MUTEX_INITIALIZER;

static int copy(int fd, void *to, size_t bytes, size_t at)
{
    ssize_t got = pread(fd, to, bytes, (off_t)at);
    return got == (ssize_t)bytes ? 0 : got < 0 ? -errno : -ENODATA;
}

/* Copy these bytes of the box to *out, at their own place. They are valid until td_look_away, which must follow. After
 * an error it must not follow. -ENODATA: the file was cut. */
int td_look(struct taskd_handle *handle, size_t at, size_t bytes, struct td_box **out)
{
    int error = 0;
    pthread_mutex_lock(&looking);
    for (int i = 0; i < COPIES && !error; i++) {
        error = copy(handle->fd, (char *)&copies[i] + at, bytes, at);
        atomic_thread_fence(memory_order_seq_cst);
    }
    if (error)
        pthread_mutex_unlock(&looking);
    *out = &copies[TAKEN];
    return error;
}

void td_look_away(void)
{
    pthread_mutex_unlock(&looking);
}

void td_look_after_fork(void)
{
    pthread_mutex_init(&looking, NULL);
}

/* Return whether a field of td_look's copy is the same in the copies before and after it. */
int td_steady(const void *field, size_t bytes)
{
    size_t at = (size_t)((const char *)field - (const char *)&copies[TAKEN]);
    for (int i = 0; i < COPIES; i++)
        if (memcmp((const char *)&copies[i] + at, field, bytes))
            return 0;
    return 1;
}

/* Read one word of the box. */
int td_read_word(struct taskd_handle *handle, const td_u32 *word, uint32_t *out)
{
    return copy(handle->fd, out, sizeof *out, (size_t)((const char *)word - (const char *)handle->box));
}

/* Let the kernel change a word of the box by FUTEX_OP_*, and wake `wake` of its waiters. Return 0 or -errno. */
int td_change_word(td_u32 *word, int op, int argument, int wake)
{
    uint32_t what = (uint32_t)op << 28 | (uint32_t)(argument & 0xfff) << 12;
    return syscall(SYS_futex, word, FUTEX_WAKE_OP, wake, (void *)0, word, what) < 0 ? -errno : 0;
}
