/* taskd.h - exports of libtaskd_core.so, for the worker that writes a black box and the agent that reads it.
 *
 * Rules:
 * 1. This file is plain C that cffi can read: declarations, integer #defines, nothing clever.
 * 2. A function that can fail returns 0 or a count on success and -errno on failure. Nothing prints, exits or throws.
 * 3. Times are nanoseconds of CLOCK_MONOTONIC, which is Python's time.monotonic_ns(); 0 means "never".
 * 4. TASKD_VERSION rises with any change of a layout or a signature; both sides compare it before anything else. */
#ifndef TASKD_H
#define TASKD_H

#include <stdint.h>

#define TASKD_VERSION 5

/* How a process ended, according to its box. */
#define TASKD_END_NONE 0
#define TASKD_END_EXIT 1

/* Progress of the record of a fatal signal. */
#define TASKD_FAULT_NONE 0
#define TASKD_FAULT_WRITING 1
#define TASKD_FAULT_WHOLE 2     /* complete except for the frames */
#define TASKD_FAULT_TRACED 3
#define TASKD_FAULT_HANDLED 4   /* the program's own handler has returned, and the process continued */

#define TASKD_FRAMES 54
#define TASKD_THREAD_NAME_BYTES 16
#define TASKD_MODULE_BYTES 40
#define TASKD_WORDS_BYTES 4096

/* State of a box's life futex. */
#define TASKD_LIFE_NONE 0
#define TASKD_LIFE_HELD 1
#define TASKD_LIFE_LOST 2

/* Commands that an agent sends through the box; the beat thread executes them. */
#define TASKD_COMMAND_PING 1
#define TASKD_COMMAND_BREAK 2
#define TASKD_COMMAND_MEND 3

/* Kind of an operation: one of TASKD_OP_* plus one of TASKD_BACKEND_* shifted left by 8. Other numbers are the caller's
 * own. KERNEL: some kernel of the backend runs on the device; it belongs to no communicator. */
#define TASKD_OP_ALLREDUCE 1
#define TASKD_OP_ALLGATHER 2
#define TASKD_OP_REDUCE_SCATTER 3
#define TASKD_OP_BROADCAST 4
#define TASKD_OP_REDUCE 5
#define TASKD_OP_GATHER 6
#define TASKD_OP_SCATTER 7
#define TASKD_OP_ALLTOALL 8
#define TASKD_OP_BARRIER 9
#define TASKD_OP_SEND 10
#define TASKD_OP_RECV 11
#define TASKD_OP_OPEN 12
#define TASKD_OP_CLOSE 13
#define TASKD_OP_KERNEL 14
#define TASKD_BACKEND_GLOO 1
#define TASKD_BACKEND_NCCL 2
#define TASKD_BACKEND_HCCL 3
#define TASKD_BACKEND_SHIFT 8

/* Groups of gloo's functions that were called through this library. */
#define TASKD_HOOK_SOCKETS 1
#define TASKD_HOOK_WAITS 2
#define TASKD_HOOK_COLLECTIVES 4

/* Memory at taskd_progress(), in fields of 8 bytes: the step, shifted left by 8, with the phase; time of the step's
 * commit; start of the phase; data_ns, work and data_since_ns as in a reading; present values of data_ns and work. */
#define TASKD_PROGRESS_BYTES 64

/* One reading of a box. Every field is consistent; fields of different groups may be some ns apart. */
struct taskd_reading {
    int32_t owner_pid;      /* 0: not claimed yet */
    int32_t rank;
    int32_t incarnation;
    uint32_t claims;        /* more than 1: the process has replaced itself by exec */
    int64_t claimed_ns;
    int64_t native_ns;      /* newest beat of the native thread */
    uint64_t native_count;
    int64_t gil_ns;         /* newest beat of a thread that had the GIL */
    int64_t main_ns;        /* newest beat of the main thread between two bytecodes */
    int64_t gil_asked_ns;   /* time of the unanswered request to take the GIL; 0: no request */
    int64_t main_asked_ns;  /* the same for the main thread */
    int64_t step;           /* -1: none committed yet */
    int32_t phase;
    int64_t step_ns;
    int64_t phase_ns;
    int64_t data_ns;        /* time that the main thread had waited for batches when the step was committed */
    int64_t work;           /* amount of work in those batches, in the caller's own unit; 0: not known */
    int64_t data_since_ns;  /* start of the main thread's present wait for a batch; 0: no wait */
    int32_t life;
    int32_t end_cause;
    int32_t end_status;     /* exit status, if end_cause is TASKD_END_EXIT */
    int64_t end_ns;
    uint64_t events;        /* number of events since the claim; the ring keeps the newest 1024 */
    uint64_t dropped;       /* events not written, because a slower writer still held the slot */
};

/* One operation in the ring. left_ns is 0 while it is open: with gloo until the data have arrived, with NCCL and HCCL
 * until the host has enqueued it. */
struct taskd_event {
    uint64_t ticket;
    int64_t entered_ns;
    int64_t left_ns;
    uint64_t comm;          /* id of the communicator, the same on all its ranks; 0: not known */
    uint64_t number;        /* number of the communicator's collective, from 1; 0: not a collective, or not known yet */
    uint64_t bytes;         /* size of one rank's part */
    uint32_t op;            /* TASKD_OP_* and TASKD_BACKEND_* */
    uint32_t dtype;         /* the backend's own number */
    uint32_t tid;
    int32_t peer;           /* root or partner, -1: none or not known */
};

struct taskd_comm {
    uint64_t id;
    uint64_t number;        /* number of the newest collective */
    int64_t opened_ns;
    int32_t ranks;
    int32_t rank;
    int32_t backend;
    int32_t closed;
};

/* One frame of a native backtrace: its library and its offset there, for addr2line. module is "" if it is not known. */
struct taskd_frame {
    uint64_t address;
    uint64_t offset;
    char module[40];
};

/* A signal that is fatal unless the program handles it. */
struct taskd_fault {
    int32_t state;          /* TASKD_FAULT_* */
    int32_t signum;
    int32_t code;           /* si_code; 0 or less: sent by a process */
    int32_t from_pid;       /* sender; -1: the kernel */
    int32_t from_uid;
    int32_t tid;
    uint64_t address;       /* address that caused the fault; 0 if the signal was sent */
    uint64_t pc;            /* the instruction that was interrupted */
    int64_t at_ns;
    int32_t frames;
    char thread[16];
    struct taskd_frame frame[54];
};

/* The newest SIGTERM, however the program handled it. */
struct taskd_request {
    int32_t count;
    int32_t code;
    int32_t from_pid;       /* -1: the kernel */
    int32_t from_uid;
    int64_t at_ns;
};

/* Last words of a process, about its own end. `text` is not terminated: `bytes` is its length. */
struct taskd_words {
    int64_t at_ns;
    int32_t tid;
    int32_t bytes;
    char text[4096];
};

struct taskd_census {
    int32_t sockets;        /* connected pair sockets of gloo */
    int32_t waiters;        /* threads waiting in a transfer of gloo */
    int32_t hooks;          /* TASKD_HOOK_*: groups of hooks that gloo has called in this process */
    int32_t broken;
    uint64_t shut;          /* sockets shut so far */
    uint64_t kicked;        /* waits aborted so far */
};

/* Number of times that an optimizer's step began and ended since the last commit. */
struct taskd_count {
    int64_t begun;
    int64_t done;
};

/* Numbers of one training state that Python and pulse.c share. */
struct taskd_board {
    int64_t step;               /* number of committed steps */
    int64_t commits;            /* commits of this process with its present state */
    int64_t extras;             /* not 0: a commit must do more than count; a byte for each reason */
    int64_t due;                /* from this step on, a commit must do more than count */
};

/* Data of the functions of pulse.c. The caller owns it and everything that it points to. */
#define TASKD_SLOT_HEAD 24      /* sequence, step and length before the payload of a slot */
#define TASKD_PULSE_SPANS 12
#define TASKD_PULSE_COMMIT 0
#define TASKD_PULSE_FORWARD 1
#define TASKD_PULSE_BEFORE 2
#define TASKD_PULSE_AFTER 3
#define TASKD_PULSE_QUICK 4
#define TASKD_PULSE_PASS 5
struct taskd_span {
    const void *at;
    int64_t bytes;
};
struct taskd_pulse {
    char *slots;                /* five of them: two for committed steps, three for tentative ones */
    int64_t slot_bytes;
    int64_t *sequence;          /* sequence number of the newest entry */
    int64_t spans_bytes;        /* the sum of all spans */
    int32_t spans;
    int32_t optimizers;
    int32_t forks;              /* set by taskd_pulse_own */
    int32_t whole[5];           /* 1: this pulse has filled the slot */
    int64_t tentative;          /* the step of its newest tentative entry */
    struct taskd_span span[12];
    struct taskd_count *counts; /* one for each optimizer */
    struct taskd_board *board;
    void **pointer;             /* if not NULL: must still point at `pointed` */
    void *pointed;
    void *numbers;              /* Python objects from here on; a dictionary or NULL */
    void *spare_name;           /* key whose value must be None in it */
    void *commit_whole;         /* called with a commit's argument if it must do more than count */
    void *commit_slowly;        /* called without arguments if one of the two conditions fails */
    void *forward_slowly;
    void *pack;                 /* called without arguments, returns the bytes to put behind the spans; or NULL */
};

/* Data of the function that runs after the forward passes of one module. */
struct taskd_pass {
    struct taskd_pulse *pulse;  /* records the rank's position; NULL: nothing is recorded */
    int64_t *trains;            /* not 0: the module's mode is known to be the usual one */
    void *attributes;           /* Python objects from here on; the module's dictionary */
    void *training_name;        /* key whose value must be True in it */
    void *grad_enabled;         /* called without arguments, must return True */
    void *unusual;              /* called without arguments if one of these conditions fails */
};

struct taskd_handle;

#pragma GCC visibility push(default)

int taskd_version(void);

/* Worker side. */
int taskd_attach(const char *path, int rank, int incarnation);
int taskd_attached(void);
int taskd_guard(const void *at, int64_t bytes);
int64_t *taskd_progress(void);
void taskd_phase(int phase);
void *taskd_pulse_method(int which);
void *taskd_frameless_method(void);
void taskd_pulse_own(struct taskd_pulse *pulse);
void taskd_gil_beat(void);
int taskd_probe(int on);
int taskd_gil_wait(void);
uint64_t taskd_enter(uint32_t op, uint64_t comm, uint64_t bytes, uint32_t dtype, int32_t peer);
void taskd_leave(uint64_t ticket);
void taskd_name_comm(uint64_t id);
int taskd_last_words(const char *text, int bytes);
int taskd_watch_parent(int pid);
int taskd_break(void);
void taskd_mend(void);
int taskd_broken(void);
void taskd_census(struct taskd_census *out);

/* Agent side. No call on a handle may begin after taskd_box_close has begun. -ENODATA: the box was cut. */
int taskd_box_create(const char *path, struct taskd_handle **out);
int taskd_box_open(const char *path, struct taskd_handle **out);
int taskd_box_read(struct taskd_handle *handle, struct taskd_reading *out);
int taskd_box_events(struct taskd_handle *handle, struct taskd_event *out, int room);
int taskd_box_comms(struct taskd_handle *handle, struct taskd_comm *out, int room);
int taskd_box_open_event(struct taskd_handle *handle, struct taskd_event *out);
int taskd_box_fault(struct taskd_handle *handle, struct taskd_fault *out);
int taskd_box_request(struct taskd_handle *handle, struct taskd_request *out);
int taskd_box_words(struct taskd_handle *handle, struct taskd_words *out);
int taskd_box_await_death(struct taskd_handle *handle, int timeout_ms);
void taskd_box_cancel(struct taskd_handle *handle);
int taskd_box_command(struct taskd_handle *handle, int op, int timeout_ms);
void taskd_box_close(struct taskd_handle *handle);

#pragma GCC visibility pop

#endif
