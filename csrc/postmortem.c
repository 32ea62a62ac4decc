/* postmortem.c - the agent's reads of a process's end: the fatal signal, the sender of a SIGTERM, the last words.
 *
 * Rules:
 * 1. A record that was being written during the read, or when the process died, is left out: each answer is complete.
 * 2. A number from the box is limited to its range before it limits anything else.
 * 3. Addresses get names here, from the map that the process has recorded. The process may be long gone. */
#define _GNU_SOURCE
#include "core.h"
#include "handle.h"

#include <string.h>

#define RELAXED memory_order_relaxed

enum { MOST_TRIES = 20 };

/* Copy words of a box to plain memory. */
static void copy_words(void *to, td_u64 *from, size_t bytes)
{
    for (size_t done = 0; done < bytes; done += 8) {
        uint64_t word = atomic_load_explicit(&from[done / 8], RELAXED);
        memcpy((char *)to + done, &word, 8);
    }
}

static int whole(td_u64 *seq)
{
    uint64_t mark = atomic_load_explicit(seq, RELAXED);
    return mark && !(mark & 1) && td_steady(seq, sizeof *seq);
}

static int copy_fault(struct td_fault *from, struct taskd_fault *out)
{
    uint32_t state = atomic_load_explicit(&from->state, memory_order_acquire);
    memset(out, 0, sizeof *out);
    if (state < TASKD_FAULT_WHOLE || state > TASKD_FAULT_HANDLED)
        return 0;
    out->state = (int32_t)state;
    out->signum = atomic_load_explicit(&from->signum, RELAXED);
    out->code = atomic_load_explicit(&from->code, RELAXED);
    out->from_pid = atomic_load_explicit(&from->from_pid, RELAXED);
    out->from_uid = atomic_load_explicit(&from->from_uid, RELAXED);
    out->tid = atomic_load_explicit(&from->tid, RELAXED);
    out->address = atomic_load_explicit(&from->address, RELAXED);
    out->pc = atomic_load_explicit(&from->pc, RELAXED);
    out->at_ns = atomic_load_explicit(&from->at_ns, RELAXED);
    copy_words(out->thread, from->thread, sizeof out->thread);
    uint32_t frames = state == TASKD_FAULT_WHOLE ? 0 : atomic_load_explicit(&from->frames, RELAXED);
    out->frames = frames < TASKD_FRAMES ? (int32_t)frames : TASKD_FRAMES;
    for (int i = 0; i < out->frames; i++)
        out->frame[i].address = atomic_load_explicit(&from->frame[i], RELAXED);
    return td_steady(&from->state, sizeof from->state) && td_steady(&from->serial, sizeof from->serial);
}

static void name_frame(struct td_box *box, uint32_t libraries, struct taskd_frame *frame)
{
    for (uint32_t i = 0; i < libraries; i++) {
        struct td_library *one = &box->library[i];
        uint64_t low = atomic_load_explicit(&one->low, RELAXED), high = atomic_load_explicit(&one->high, RELAXED);
        if (frame->address < low || frame->address >= high)
            continue;
        frame->offset = frame->address - atomic_load_explicit(&one->bias, RELAXED);
        copy_words(frame->module, one->name, sizeof frame->module);
        frame->module[sizeof frame->module - 1] = 0;
        return;
    }
}

static void forget_names(struct taskd_fault *fault)
{
    for (int i = 0; i < fault->frames; i++) {
        fault->frame[i].offset = 0;
        memset(fault->frame[i].module, 0, sizeof fault->frame[i].module);
    }
}

static int name_frames(struct td_box *box, struct taskd_fault *fault)
{
    uint32_t count = atomic_load_explicit(&box->libraries.count, RELAXED);
    for (int i = 0; i < fault->frames; i++)
        name_frame(box, count < TD_LIBRARIES ? count : TD_LIBRARIES, &fault->frame[i]);
    if (whole(&box->libraries.seq))
        return 1;
    forget_names(fault);
    return 0;
}

/* Read the fatal signal that the process got. Return 1, or 0 if there was none. */
int taskd_box_fault(struct taskd_handle *handle, struct taskd_fault *out)
{
    struct td_box *box;
    int found = 0, named = 0, error = 0;
    for (int tries = MOST_TRIES; tries-- && !found && !(error = TD_LOOK(handle, fault, words, &box));) {
        found = copy_fault(&box->fault, out);
        td_look_away();
        if (!out->state)
            return 0;
    }
    for (int tries = MOST_TRIES; found && tries-- && !named && !(error = TD_LOOK(handle, libraries, comms, &box));) {
        named = name_frames(box, out);
        td_look_away();
    }
    return error ? error : found;
}

static int copy_request(struct td_request *from, struct taskd_request *out)
{
    out->count = (int32_t)atomic_load_explicit(&from->count, RELAXED);
    out->code = atomic_load_explicit(&from->code, RELAXED);
    out->from_pid = atomic_load_explicit(&from->from_pid, RELAXED);
    out->from_uid = atomic_load_explicit(&from->from_uid, RELAXED);
    out->at_ns = atomic_load_explicit(&from->at_ns, RELAXED);
    return whole(&from->seq);
}

/* Read the newest SIGTERM. Return 1, or 0 if there was none. */
int taskd_box_request(struct taskd_handle *handle, struct taskd_request *out)
{
    struct td_box *box;
    int found = 0, error = 0, noted = 1;
    for (int tries = MOST_TRIES; tries-- && noted && !found && !(error = TD_LOOK(handle, request, fault, &box));) {
        noted = atomic_load_explicit(&box->request.seq, RELAXED) != 0;
        found = copy_request(&box->request, out);
        td_look_away();
    }
    return error ? error : found;
}

static int copy_text(struct td_words *from, struct taskd_words *out)
{
    uint32_t bytes = atomic_load_explicit(&from->bytes, RELAXED);
    out->bytes = bytes < TASKD_WORDS_BYTES ? (int32_t)bytes : TASKD_WORDS_BYTES;
    out->tid = atomic_load_explicit(&from->tid, RELAXED);
    out->at_ns = atomic_load_explicit(&from->at_ns, RELAXED);
    copy_words(out->text, from->text, sizeof out->text);
    return whole(&from->seq);
}

/* Read the last words of the process. Return 1, or 0 if it has left none. */
int taskd_box_words(struct taskd_handle *handle, struct taskd_words *out)
{
    struct td_box *box;
    int found = 0, error = 0, noted = 1;
    for (int tries = MOST_TRIES; tries-- && noted && !found && !(error = TD_LOOK(handle, words, libraries, &box));) {
        noted = atomic_load_explicit(&box->words.seq, RELAXED) != 0;
        found = copy_text(&box->words, out);
        td_look_away();
    }
    return error ? error : found;
}
