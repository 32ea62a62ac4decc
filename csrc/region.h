/* region.h - the black box: fixed layout of a file in /dev/shm. One worker writes it, and its agent reads it, also
 * after the worker's death.
 *
 * Rules:
 * 1. Each group has its own cache lines, so no two writers share one. Offsets are asserted, because two processes map
 *    the file.
 * 2. Every field that may change while another process reads it is at least a relaxed atomic.
 * 3. Zero means "nothing has happened yet". The creator fills in the fields that cannot be zero, the magic number last.
 * 4. The reader trusts nothing: it copies numbers out, and follows no pointer or index that it finds in the file. */
#ifndef TASKD_REGION_H
#define TASKD_REGION_H

#include "taskd.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define TD_MAGIC 0x31784f4264735461ull      /* "aTsdBOx1" */
#define TD_RING 1024u                       /* a power of two */
#define TD_LIBRARIES 512u
#define TD_COMMS 128u                       /* a power of two */
#define TD_LINE 64

typedef _Atomic uint64_t td_u64;
typedef _Atomic int64_t td_i64;
typedef _Atomic uint32_t td_u32;
typedef _Atomic int32_t td_i32;

/* seq: ticket of a complete entry, TD_BUSY while a thread writes it, 0 if never used. */
#define TD_BUSY UINT64_MAX
struct td_event {
    td_u64 seq;
    td_i64 entered_ns;
    td_i64 left_ns;
    td_u64 comm;
    td_u64 number;
    td_u64 bytes;
    td_u32 op;
    td_u32 dtype;
    td_u32 tid;
    td_i32 peer;
};

struct td_identity {
    td_u64 magic;
    uint32_t version;
    uint32_t size;
    td_i32 owner;
    td_i32 rank;
    td_i32 incarnation;
    td_u32 claims;
    td_i64 claimed_ns;
};

struct td_beats {
    td_i64 native_ns;
    td_u64 native_count;
    td_i64 gil_ns;
    td_i64 main_ns;
    td_i64 gil_asked_ns;                    /* time of the open request; 0: none is open */
    td_i64 main_asked_ns;
};

/* step (signed, 56 bits) and phase (8 bits) share one word, so no reader can get half a change. */
struct td_progress {
    td_u64 word;
    td_i64 step_ns;
    td_i64 phase_ns;
    td_i64 data_ns;         /* value at the commit of the step, like work */
    td_i64 work;
    td_i64 data_since_ns;
    td_i64 data_now_ns;
    td_i64 work_now;
};

/* The beat thread sleeps on the futex `doorbell`. To get its attention, add one and wake the futex. */
struct td_command {
    td_u32 doorbell;
    td_u32 asked;
    td_u32 op;
    td_u32 acked;
    td_i32 result;
    td_i64 acked_ns;
};

/* Robust futex. entry: list node that the kernel walks in the worker; word: futex that it marks when the thread
 * dies. */
struct td_life {
    td_u64 entry;
    td_u32 word;
};

struct td_end {
    td_u32 claimed;
    td_i32 status;
    td_i64 end_ns;
    td_u32 cause;                           /* stored last: a cause means that the record is complete */
};

struct td_rings {
    td_u64 head;
    td_u64 dropped;
};

/* `seq` is odd during a write. A reader accepts what it has read between two equal, even values of `seq`. */
struct td_request {
    td_u64 seq;
    td_u32 count;
    td_i32 code;
    td_i32 from_pid;
    td_i32 from_uid;
    td_i64 at_ns;
};

/* `serial` rises with each new record; `state` is TASKD_FAULT_*. */
struct td_fault {
    td_u32 state;
    td_u32 serial;
    td_i32 signum;
    td_i32 code;
    td_i32 from_pid;
    td_i32 from_uid;
    td_i32 tid;
    td_u32 frames;
    td_u64 address;
    td_u64 pc;
    td_i64 at_ns;
    td_u64 spare;
    td_u64 thread[TASKD_THREAD_NAME_BYTES / 8];
    td_u64 frame[TASKD_FRAMES];
};

struct td_words {
    td_u64 seq;
    td_i64 at_ns;
    td_i32 tid;
    td_u32 bytes;
    td_u64 spare[5];
    td_u64 text[TASKD_WORDS_BYTES / 8];
};

/* Addresses of one library of the process, recorded by the beat thread. A fault handler must not call the loader. */
struct td_library {
    td_u64 name[TASKD_MODULE_BYTES / 8];
    td_u64 bias;                            /* addr2line takes an address minus the bias */
    td_u64 low;
    td_u64 high;
};

struct td_libraries {
    td_u64 seq;
    td_u32 count;
};

/* A communicator. seq: as in td_request, 0 if never used. handle: its address in the process, 0 once it is closed.
 * number: number of its newest collective; it rises without the lock. */
struct td_comm {
    td_u64 seq;
    td_u64 handle;
    td_u64 id;
    td_u64 number;
    td_i64 opened_ns;
    td_i32 ranks;
    td_i32 rank;
    td_u32 backend;
    td_u32 parts;                           /* number of its splits */
};

struct td_box {
    _Alignas(TD_LINE) struct td_identity identity;
    _Alignas(TD_LINE) struct td_beats beats;
    _Alignas(TD_LINE) struct td_progress progress;
    _Alignas(TD_LINE) struct td_command command;
    _Alignas(TD_LINE) struct td_life life;
    _Alignas(TD_LINE) struct td_end end;
    _Alignas(TD_LINE) struct td_rings rings;
    _Alignas(TD_LINE) struct td_request request;
    _Alignas(TD_LINE) struct td_fault fault;
    _Alignas(TD_LINE) struct td_words words;
    _Alignas(TD_LINE) struct td_libraries libraries;
    _Alignas(TD_LINE) struct td_library library[TD_LIBRARIES];
    _Alignas(TD_LINE) struct td_comm_line {
        _Alignas(TD_LINE) struct td_comm comm;
    } comms[TD_COMMS];
    _Alignas(TD_LINE) struct td_event ring[TD_RING];
};

#define TD_WORDS_LINE 16
#define TD_LIBRARIES_LINE (TD_WORDS_LINE + 1 + TASKD_WORDS_BYTES / TD_LINE)
#define TD_COMMS_LINE (TD_LIBRARIES_LINE + 1 + TD_LIBRARIES)
#define TD_RING_LINE (TD_COMMS_LINE + TD_COMMS)
#define TD_AT_LINE(group, line) _Static_assert(offsetof(struct td_box, group) == (line) * TD_LINE, #group " has moved")

_Static_assert(sizeof(struct td_event) == TD_LINE, "an event is one cache line");
_Static_assert(sizeof(struct td_library) == TD_LINE, "a library is one cache line");
_Static_assert(sizeof(struct td_fault) == 8 * TD_LINE, "a fault is eight cache lines");
TD_AT_LINE(beats, 1);
TD_AT_LINE(progress, 2);
TD_AT_LINE(command, 3);
TD_AT_LINE(life, 4);
TD_AT_LINE(end, 5);
TD_AT_LINE(rings, 6);
TD_AT_LINE(request, 7);
TD_AT_LINE(fault, 8);
TD_AT_LINE(words, TD_WORDS_LINE);
TD_AT_LINE(libraries, TD_LIBRARIES_LINE);
TD_AT_LINE(library, TD_LIBRARIES_LINE + 1);
TD_AT_LINE(comms, TD_COMMS_LINE);
TD_AT_LINE(ring, TD_RING_LINE);
_Static_assert(sizeof(struct td_box) == (TD_RING_LINE + TD_RING) * TD_LINE, "no hidden padding");

#define TD_PROGRESS_STEP_SHIFT 8
#define TD_PROGRESS_START (UINT64_MAX << TD_PROGRESS_STEP_SHIFT)    /* step -1, phase 0 */

#endif
