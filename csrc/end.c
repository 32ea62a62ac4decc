/* end.c - the process's own record of its end: its exit status and its last words.
 *
 * Rules:
 * 1. on_exit covers a return from main as well as exit(), unlike an interposed exit(). _exit and signals leave no
 *    record here; the agent gets them from waitid.
 * 2. The first exit stays, and the newest words. Only the owner of the box writes them, never a forked child. */
#define _GNU_SOURCE
#include "core.h"

#include <stdlib.h>
#include <string.h>

static void record_exit(int status, void *unused)
{
    (void)unused;
    struct td_box *box = td_current();
    uint32_t nobody = 0;
    if (atomic_load(&box->identity.owner) != getpid() || !atomic_compare_exchange_strong(&box->end.claimed, &nobody, 1))
        return;
    atomic_store(&box->end.status, status & 0xff);
    atomic_store(&box->end.end_ns, td_now_ns());
    atomic_store_explicit(&box->end.cause, TASKD_END_EXIT, memory_order_release);
}

/* Register the record of an exit. Called when a box has been attached; a forked child inherits the registration. */
void td_end_watch(void)
{
    static int watching;
    if (!watching)
        watching = on_exit(record_exit, NULL) == 0;
}

/* Return the length of the text that fits, without a cut in the middle of a UTF-8 character. */
static int cut(const char *text, int bytes)
{
    if (bytes <= TASKD_WORDS_BYTES)
        return bytes;
    for (bytes = TASKD_WORDS_BYTES; bytes > TASKD_WORDS_BYTES - 4 && (text[bytes] & 0xc0) == 0x80;)
        bytes--;
    return bytes;
}

/* Record why this process will end, for example an exception: the first TASKD_WORDS_BYTES of `text`. Return the number
 * of recorded bytes. -EBUSY: another thread is recording; -ENOTCONN: this process has no box. */
int taskd_last_words(const char *text, int bytes)
{
    struct td_box *box = td_current();
    struct td_words *to = &box->words;
    uint64_t seq = atomic_load(&to->seq);
    if (!text || bytes < 0)
        return -EINVAL;
    if (atomic_load(&box->identity.owner) != getpid())
        return -ENOTCONN;
    if (seq & 1 || !atomic_compare_exchange_strong(&to->seq, &seq, seq + 1))
        return -EBUSY;
    atomic_thread_fence(memory_order_release);
    bytes = cut(text, bytes);
    for (int done = 0; done < bytes; done += 8) {
        uint64_t word = 0;
        memcpy(&word, text + done, (size_t)(bytes - done < 8 ? bytes - done : 8));
        atomic_store_explicit(&to->text[done / 8], word, memory_order_relaxed);
    }
    atomic_store_explicit(&to->bytes, (uint32_t)bytes, memory_order_relaxed);
    atomic_store_explicit(&to->tid, (int32_t)syscall(SYS_gettid), memory_order_relaxed);
    atomic_store_explicit(&to->at_ns, td_now_ns(), memory_order_relaxed);
    atomic_store_explicit(&to->seq, seq + 2, memory_order_release);
    return bytes;
}
