/* pulse.c - taskd's work in every step of the training, as functions that Python calls without any glue.
 *
 * Rules:
 * 1. A step empties the processor's caches. The code after it pays for every page, of code or data, that it touches for
 *    the first time: 5 us for a function here that copies all generators, 30 us for the same in Python, 10 us for an
 *    empty function through cffi or ctypes.
 * 2. The functions are PyCFunctions, made at run time over Python's stable ABI (PEP 384). The few functions of that ABI
 *    are declared here. So the library compiles without Python's headers, serves every Python 3, and loads without any.
 * 3. An attribute is read from its object's dictionary, in 0.5 us. By way of the type it would take 2 us.
 * 4. Unusual cases are left to a callable in Python, before anything is changed: a generator that has moved, a spare
 *    normal number, a commit that must do more than count.
 * 5. Python holds the GIL and keeps alive everything that a pulse points to. A child forked later writes nothing. */
#include "core.h"

#include <string.h>

#define STABLE_ABI extern __attribute__((weak, visibility("default")))

typedef struct object PyObject;
STABLE_ABI PyObject _Py_NoneStruct;
STABLE_ABI PyObject _Py_TrueStruct;
STABLE_ABI void Py_IncRef(PyObject *);
STABLE_ABI void Py_DecRef(PyObject *);
STABLE_ABI long long PyLong_AsLongLong(PyObject *);
STABLE_ABI void *PyLong_AsVoidPtr(PyObject *);
STABLE_ABI PyObject *PyDict_GetItemWithError(PyObject *, PyObject *);
STABLE_ABI PyObject *PyObject_CallFunctionObjArgs(PyObject *, ...);
STABLE_ABI PyObject *PyErr_Occurred(void);
STABLE_ABI void PyErr_Clear(void);
STABLE_ABI int PyBytes_AsStringAndSize(PyObject *, char **, ssize_t *);

struct method {                                 /* PyMethodDef */
    const char *name;
    void *call;
    int flags;
    const char *doc;
};
enum { NO_ARGUMENTS = 0x04, ONE_ARGUMENT = 0x08, FAST_CALL = 0x80 };

static int32_t forks;                           /* a count: a warm process, itself forked, has pulses of its own */

void td_pulse_after_fork(void)
{
    forks++;
}

static int forked(const struct taskd_pulse *pulse)
{
    return pulse->forks != forks;
}

static PyObject *none(void)
{
    Py_IncRef(&_Py_NoneStruct);
    return &_Py_NoneStruct;
}

/* Return whether `dictionary` has the object `wanted` under `name`; -1 if Python has raised. */
static int is(PyObject *dictionary, PyObject *name, const PyObject *wanted)
{
    const PyObject *found = PyDict_GetItemWithError(dictionary, name);      /* borrowed */
    return found ? found == wanted : PyErr_Occurred() ? -1 : 0;
}

/* Return whether no generator has moved and Python's has no spare normal number; -1 if Python has raised. */
static int usual(const struct taskd_pulse *pulse)
{
    if (pulse->pointer && *pulse->pointer != pulse->pointed)
        return 0;
    return pulse->numbers ? is(pulse->numbers, pulse->spare_name, &_Py_NoneStruct) : 1;
}

/* Return whether the slot has the span already. A twister changes all of its words or none, so its ends are
 * sufficient. */
static int same(const char *slot, const struct taskd_span *span)
{
    enum { END = 64 };
    size_t bytes = (size_t)span->bytes, rest = bytes - END;
    const char *at = span->at;
    if (bytes < 4 * END)
        return !memcmp(slot, at, bytes);
    return !memcmp(slot, at, END) && !memcmp(slot + rest, at + rest, END);
}

/* Data that a call records behind the generators. */
struct data {
    char *at;
    ssize_t bytes;
};

/* Return whether the slot, which this pulse has filled, already has the content of a new copy. */
static int shows(const struct taskd_pulse *pulse, int slot, const struct data *data)
{
    const char *at = pulse->slots + slot * pulse->slot_bytes;
    if (((const int64_t *)at)[2] != pulse->spans_bytes + data->bytes)
        return 0;
    at += TASKD_SLOT_HEAD;
    for (int i = 0; i < pulse->spans; at += pulse->span[i].bytes, i++)
        if (!same(at, &pulse->span[i]))
            return 0;
    return !memcmp(at, data->at, (size_t)data->bytes);
}

static void copy(struct taskd_pulse *pulse, int slot, int64_t step, const struct data *data)
{
    char *to = pulse->slots + slot * pulse->slot_bytes;
    td_i64 *head = (td_i64 *)to;
    int64_t sequence = *pulse->sequence += 2;
    atomic_store_explicit(&head[0], sequence - 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    to += TASKD_SLOT_HEAD;
    for (int i = 0; i < pulse->spans; i++) {  /* a killed process may have left half a copy */
        if (!pulse->whole[slot] || !same(to, &pulse->span[i]))
            memcpy(to, pulse->span[i].at, (size_t)pulse->span[i].bytes);
        to += pulse->span[i].bytes;
    }
    memcpy(to, data->at, (size_t)data->bytes);
    atomic_store_explicit(&head[1], step, memory_order_relaxed);
    atomic_store_explicit(&head[2], pulse->spans_bytes + data->bytes, memory_order_relaxed);
    atomic_store_explicit(&head[0], sequence, memory_order_release);
    pulse->whole[slot] = 1;
}

/* Record a step. Slots: two for committed steps, then three for tentative ones, as in position_file.py. If nothing has
 * moved since the step's tentative entry, the commit writes nothing, because its entry would be the same. The tentative
 * entry outlives two more steps, as a committed one does. */
static void put(struct taskd_pulse *pulse, int64_t step, int committed, const struct data *data)
{
    int tentative = (int)(2 + step % 3);
    if (!committed) {
        copy(pulse, tentative, step, data);
        pulse->tentative = step;
    } else if (pulse->tentative != step || !shows(pulse, tentative, data)) {
        copy(pulse, (int)(step & 1), step, data);
    }
}

static PyObject *slowly(struct taskd_pulse *pulse, int committed)
{
    memset(pulse->whole, 0, sizeof pulse->whole);
    pulse->tentative = 0;
    return PyObject_CallFunctionObjArgs(committed ? pulse->commit_slowly : pulse->forward_slowly, NULL);
}

/* Return 1 if the step is recorded, 0 if that must be done slowly, -1 if Python has raised. */
static int record_fast(struct taskd_pulse *pulse, int64_t step, int committed)
{
    struct data data = {"", 0};
    PyObject *packed = NULL;
    int64_t room = pulse->slot_bytes - TASKD_SLOT_HEAD - pulse->spans_bytes;
    int fast = usual(pulse);
    if (fast > 0 && pulse->pack) {
        packed = PyObject_CallFunctionObjArgs(pulse->pack, NULL);
        if (!packed)
            return -1;
        if (PyBytes_AsStringAndSize(packed, &data.at, &data.bytes) < 0) {
            Py_DecRef(packed);
            return -1;
        }
        fast = usual(pulse);                    /* `pack` may have drawn a number */
    }
    if (fast > 0 && data.bytes > room)
        fast = 0;
    if (fast > 0)
        put(pulse, step, committed, &data);
    if (packed)
        Py_DecRef(packed);
    return fast;
}

/* Record a step, fast or slowly. NULL if Python has raised. */
static PyObject *record(struct taskd_pulse *pulse, int64_t step, int committed)
{
    int done = record_fast(pulse, step, committed);
    return done < 0 ? NULL : done ? none() : slowly(pulse, committed);
}

static void show(struct td_progress *progress, int64_t step)
{
    uint64_t phase = atomic_load_explicit(&progress->word, memory_order_relaxed) & 0xff;
    int64_t data_ns = atomic_load_explicit(&progress->data_now_ns, memory_order_relaxed);
    int64_t work = atomic_load_explicit(&progress->work_now, memory_order_relaxed);
    atomic_store_explicit(&progress->data_ns, data_ns, memory_order_relaxed);
    atomic_store_explicit(&progress->work, work, memory_order_relaxed);
    atomic_store_explicit(&progress->word, (uint64_t)step << TD_PROGRESS_STEP_SHIFT | phase, memory_order_release);
    atomic_store_explicit(&progress->step_ns, td_now_ns(), memory_order_relaxed);
}

/* Record the commit of a step that Python counts: state.step has been raised already. */
static PyObject *commit(PyObject *self, PyObject *number)
{
    struct taskd_pulse *pulse = PyLong_AsVoidPtr(self);
    int64_t step = PyLong_AsLongLong(number);
    if (step == -1 && PyErr_Occurred())
        return NULL;
    memset(pulse->counts, 0, (size_t)pulse->optimizers * sizeof *pulse->counts);
    if (forked(pulse))
        return none();
    PyObject *result = record(pulse, step, 1);
    show(&td_current()->progress, step);
    return result;
}

/* Do a whole commit, if it only has to count: nothing can come in between, and nothing is left half done. */
static PyObject *commit_quickly(PyObject *self, PyObject *loss)
{
    struct taskd_pulse *pulse = PyLong_AsVoidPtr(self);
    struct taskd_board *board = pulse->board;
    int64_t step = board->step + 1;
    int counts_only = loss == &_Py_NoneStruct && !board->extras && step < board->due;
    if (counts_only && pulse->counts->done && !forked(pulse)) {
        int done = record_fast(pulse, step, 1);
        if (done < 0)
            PyErr_Clear();                      /* the whole commit will raise the same error, and is torn by it */
        if (done > 0) {
            board->step = step;
            board->commits++;
            memset(pulse->counts, 0, (size_t)pulse->optimizers * sizeof *pulse->counts);
            show(&td_current()->progress, step);
            return none();
        }
    }
    return PyObject_CallFunctionObjArgs(pulse->commit_whole, loss, NULL);
}

/* Forward hook: record this rank's position in case a peer commits the current step and this process dies first. */
static PyObject *after_forward(PyObject *self, PyObject *const *args, ssize_t count)
{
    (void)args, (void)count;
    struct taskd_pulse *pulse = PyLong_AsVoidPtr(self);
    return forked(pulse) ? none() : record(pulse, pulse->board->step + 1, 0);
}

static int grad_enabled(const struct taskd_pass *pass)
{
    PyObject *answer = PyObject_CallFunctionObjArgs(pass->grad_enabled, NULL);
    if (!answer)
        return -1;
    Py_DecRef(answer);                          /* True is never freed */
    return answer == &_Py_TrueStruct;
}

/* Do the same after a training pass of a module in its usual mode. */
static PyObject *after_pass(PyObject *self, PyObject *nothing)
{
    (void)nothing;
    struct taskd_pass *pass = PyLong_AsVoidPtr(self);
    int trains = *pass->trains != 0;
    if (trains)
        trains = is(pass->attributes, pass->training_name, &_Py_TrueStruct);
    if (trains > 0)
        trains = grad_enabled(pass);
    if (trains < 0)
        return NULL;
    if (!trains)
        return PyObject_CallFunctionObjArgs(pass->unusual, NULL);
    struct taskd_pulse *pulse = pass->pulse;
    return !pulse || forked(pulse) ? none() : record(pulse, pulse->board->step + 1, 0);
}

static PyObject *before_step(PyObject *self, PyObject *const *args, ssize_t count)
{
    (void)args, (void)count;
    ((struct taskd_count *)PyLong_AsVoidPtr(self))->begun++;
    return none();
}

static PyObject *after_step(PyObject *self, PyObject *const *args, ssize_t count)
{
    (void)args, (void)count;
    ((struct taskd_count *)PyLong_AsVoidPtr(self))->done++;
    return none();
}

static struct method methods[] = {
    [TASKD_PULSE_COMMIT] = {"commit", commit, ONE_ARGUMENT, "Count a step as done."},
    [TASKD_PULSE_FORWARD] = {"after_forward", after_forward, FAST_CALL, "A forward hook."},
    [TASKD_PULSE_BEFORE] = {"before_step", before_step, FAST_CALL, "An optimizer's hook."},
    [TASKD_PULSE_AFTER] = {"after_step", after_step, FAST_CALL, "An optimizer's hook."},
    [TASKD_PULSE_QUICK] = {"commit_quickly", commit_quickly, ONE_ARGUMENT, "A commit."},
    [TASKD_PULSE_PASS] = {"after_pass", after_pass, NO_ARGUMENTS, "Called after a forward pass."},
};

/* Make this process the only one that may use `pulse`. */
void taskd_pulse_own(struct taskd_pulse *pulse)
{
    pulse->forks = forks;
}

/* Return the PyMethodDef for PyCFunction_New. Its `self` is the address of a taskd_pulse (commit, quick, forward), of a
 * taskd_count (before, after) or of a taskd_pass. NULL if this Python lacks a symbol, or for an unknown number. */
void *taskd_pulse_method(int which)
{
    int whole = &_Py_NoneStruct && &_Py_TrueStruct && Py_IncRef && Py_DecRef && PyLong_AsLongLong && PyLong_AsVoidPtr
        && PyDict_GetItemWithError && PyObject_CallFunctionObjArgs && PyErr_Occurred && PyErr_Clear && PyBytes_AsStringAndSize;
    return whole && which >= 0 && which < (int)(sizeof methods / sizeof *methods) ? &methods[which] : NULL;
}
