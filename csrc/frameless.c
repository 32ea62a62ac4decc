/* frameless.c - a callable that replaces another one, without a frame between that one and its caller.
 *
 * Rules:
 * 1. A wrapper written in Python is a frame. `warnings.warn(stacklevel=2)` then names the wrapper's line, and every
 *    traceback shows it. A function called from C has its caller's frame right above its own.
 * 2. Only the part `original` is visible: attributes, class, hash, equality and repr are the original's. So inspect,
 *    pickle, torch.compile and tables keyed by functions treat both as the same.
 * 3. `around` is a generator function, called with the arguments. At each `yield` it has no frame on the stack. If it
 *    yields None, the original is called with the given arguments. If it yields (call, args, options), that call is
 *    made. The result is sent to the generator, or the error is thrown into it.
 *    `chosen` does less: given the first argument, it returns the callable that gets the other arguments.
 * 4. An error that passes through the generator leaves with its original traceback.
 * 5. All of this uses Python's stable ABI, declared here as in pulse.c. Python code gives the offset of our fields. */
#include "core.h"

#include <string.h>

#define STABLE_ABI extern __attribute__((weak, visibility("default")))

typedef struct object PyObject;
STABLE_ABI PyObject _Py_NoneStruct;
STABLE_ABI PyObject *PyExc_StopIteration, *PyExc_RuntimeError, *PyExc_TypeError, *PyExc_AttributeError;
STABLE_ABI void Py_IncRef(PyObject *);
STABLE_ABI void Py_DecRef(PyObject *);
STABLE_ABI ssize_t PyLong_AsSsize_t(PyObject *);
STABLE_ABI ssize_t PyTuple_Size(PyObject *);
STABLE_ABI PyObject *PyTuple_GetItem(PyObject *, ssize_t);
STABLE_ABI PyObject *PyTuple_GetSlice(PyObject *, ssize_t, ssize_t);
STABLE_ABI PyObject *PyUnicode_InternFromString(const char *);
STABLE_ABI int PyUnicode_CompareWithASCIIString(PyObject *, const char *);
STABLE_ABI PyObject *PyDict_New(void);
STABLE_ABI int PyDict_SetItemString(PyObject *, const char *, PyObject *);
STABLE_ABI PyObject *PyObject_Type(PyObject *);
STABLE_ABI PyObject *PyObject_GetAttr(PyObject *, PyObject *);
STABLE_ABI int PyObject_SetAttr(PyObject *, PyObject *, PyObject *);
STABLE_ABI ssize_t PyObject_Hash(PyObject *);
STABLE_ABI PyObject *PyObject_Repr(PyObject *);
STABLE_ABI PyObject *PyObject_RichCompare(PyObject *, PyObject *, int);
STABLE_ABI PyObject *PyObject_Call(PyObject *, PyObject *, PyObject *);
STABLE_ABI PyObject *PyObject_CallFunctionObjArgs(PyObject *, ...);
STABLE_ABI PyObject *PyObject_CallMethodObjArgs(PyObject *, PyObject *, ...);
STABLE_ABI int PyIter_Send(PyObject *, PyObject *, PyObject **);
STABLE_ABI void PyErr_SetString(PyObject *, const char *);
STABLE_ABI int PyErr_ExceptionMatches(PyObject *);
STABLE_ABI int PyErr_GivenExceptionMatches(PyObject *, PyObject *);
STABLE_ABI void PyErr_Fetch(PyObject **, PyObject **, PyObject **);
STABLE_ABI void PyErr_Clear(void);
STABLE_ABI void PyErr_Restore(PyObject *, PyObject *, PyObject *);
STABLE_ABI void PyErr_NormalizeException(PyObject **, PyObject **, PyObject **);
STABLE_ABI PyObject *PyErr_Occurred(void);
STABLE_ABI int PyException_SetTraceback(PyObject *, PyObject *);
STABLE_ABI PyObject *PyException_GetCause(PyObject *);
STABLE_ABI PyObject *PyType_FromSpec(void *);
STABLE_ABI PyObject *PyType_GenericAlloc(PyObject *, ssize_t);
STABLE_ABI void PyObject_GC_UnTrack(void *);
STABLE_ABI void PyObject_GC_Del(void *);
STABLE_ABI void PyObject_ClearWeakRefs(PyObject *);

struct method {                                 /* PyMethodDef */
    const char *name;
    void *call;
    int flags;
    const char *doc;
};
struct member {                                 /* PyMemberDef */
    const char *name;
    int type;
    ssize_t offset;
    int flags;
    const char *doc;
};
struct getter {                                 /* PyGetSetDef */
    const char *name;
    void *get, *set;
    const char *doc;
    void *closure;
};
struct slot {                                   /* PyType_Slot */
    int which;
    void *does;
};
struct spec {                                   /* PyType_Spec */
    const char *name;
    int bytes, item_bytes;
    unsigned flags;
    struct slot *slots;
};
enum {
    TP_CALL = 50, TP_CLEAR = 51, TP_DEALLOC = 52, TP_DESCR_GET = 54, TP_GETATTRO = 58, TP_HASH = 59, TP_NEW = 65,
    TP_REPR = 66, TP_RICHCOMPARE = 67, TP_SETATTRO = 69, TP_TRAVERSE = 71, TP_MEMBERS = 72, TP_GETSET = 73,
};
enum { IMMUTABLE = 1 << 8, HAVE_GC = 1 << 14, METHOD_DESCRIPTOR = 1 << 17 };
enum { VARARGS = 0x01, OBJECT = 6, SSIZE = 19, READ_ONLY = 1 };
enum { RETURNED = 0, RAISED = -1 };             /* results of PyIter_Send */

struct parts {
    PyObject *original, *around, *chosen, *returned, *failed, *weak;
};

static ssize_t head;                            /* bytes of an object before its own fields */
static PyObject *kind, *method_type, *throw_name, *value_name;

static struct parts *parts(PyObject *self)
{
    return (struct parts *)((char *)self + head);
}

static PyObject *held(PyObject *object)
{
    Py_IncRef(object);
    return object;
}

static void drop(PyObject *object)
{
    if (object)
        Py_DecRef(object);
}

struct error {
    PyObject *type, *value, *trace;
};

static struct error fetch(void)
{
    struct error error = {0};
    PyErr_Fetch(&error.type, &error.value, &error.trace);
    PyErr_NormalizeException(&error.type, &error.value, &error.trace);
    if (error.trace)
        PyException_SetTraceback(error.value, error.trace);
    return error;
}

static void restore(struct error error)
{
    PyException_SetTraceback(error.value, error.trace ? error.trace : &_Py_NoneStruct);
    PyErr_Restore(error.type, error.value, error.trace);
}

static void forget(struct error error)
{
    drop(error.type), drop(error.value), drop(error.trace);
}

/* Return whether `outer` is the error into which a generator turns a StopIteration (`inner`) that passes through it. */
static int stands_for(PyObject *outer, PyObject *inner)
{
    if (!PyErr_GivenExceptionMatches(inner, PyExc_StopIteration))
        return 0;
    if (!PyErr_GivenExceptionMatches(outer, PyExc_RuntimeError))
        return 0;
    PyObject *cause = PyException_GetCause(outer);
    drop(cause);
    return cause == inner;
}

/* Throw the error that Python has raised into the generator. Return like PyIter_Send; an error that comes back keeps
 * its original traceback. */
static int send_error(PyObject *generator, PyObject **next)
{
    struct error error = fetch();
    *next = PyObject_CallMethodObjArgs(generator, throw_name, error.value, NULL);
    if (*next) {
        forget(error);
        return 1;
    }
    struct error left = fetch();
    if (left.value == error.value || stands_for(left.value, error.value)) {
        forget(left);
        restore(error);
        return RAISED;
    }
    forget(error);
    if (PyErr_GivenExceptionMatches(left.value, PyExc_StopIteration)) {
        *next = PyObject_GetAttr(left.value, value_name);
        forget(left);
        return *next ? RETURNED : RAISED;
    }
    restore(left);
    return RAISED;
}

static PyObject *call_other(PyObject *wanted)
{
    PyObject *other = PyTuple_GetItem(wanted, 0), *args = other ? PyTuple_GetItem(wanted, 1) : NULL;
    PyObject *options = args ? PyTuple_GetItem(wanted, 2) : NULL;
    return options ? PyObject_Call(other, args, options) : NULL;
}

static PyObject *call_around(const struct parts *of, PyObject *args, PyObject *options)
{
    PyObject *original = held(of->original), *next = NULL, *result = NULL;
    PyObject *generator = PyObject_Call(of->around, args, options);
    int state = generator ? PyIter_Send(generator, &_Py_NoneStruct, &next) : RAISED;
    while (state > RETURNED) {
        result = next == &_Py_NoneStruct ? PyObject_Call(original, args, options) : call_other(next);
        drop(next);
        next = NULL;
        state = result ? PyIter_Send(generator, result, &next) : send_error(generator, &next);
        drop(result);
    }
    drop(generator);
    Py_DecRef(original);
    return state == RETURNED ? next : NULL;
}

static PyObject *call_chosen(const struct parts *of, PyObject *args, PyObject *options)
{
    PyObject *first = PyTuple_GetItem(args, 0), *result = NULL;
    PyObject *choice = first ? PyObject_CallFunctionObjArgs(of->chosen, first, NULL) : NULL;
    PyObject *rest = choice ? PyTuple_GetSlice(args, 1, PyTuple_Size(args)) : NULL;
    if (rest)
        result = PyObject_Call(choice, rest, options);
    drop(choice), drop(rest);
    return result;
}

static PyObject *call(PyObject *self, PyObject *args, PyObject *options)
{
    struct parts *of = parts(self);
    if (of->around)
        return call_around(of, args, options);
    if (of->chosen)
        return call_chosen(of, args, options);
    PyObject *returned = of->returned ? held(of->returned) : NULL, *said;
    PyObject *failed = of->failed ? held(of->failed) : NULL;
    PyObject *original = held(of->original), *result = PyObject_Call(original, args, options);
    Py_DecRef(original);
    if (result && returned) {
        said = PyObject_CallFunctionObjArgs(returned, NULL);
        if (!said)
            Py_DecRef(result), result = NULL;
        drop(said);
    } else if (!result && failed) {
        struct error error = fetch();
        said = PyObject_CallFunctionObjArgs(failed, error.value, NULL);
        if (said)
            restore(error);
        else
            forget(error);
        drop(said);
    }
    drop(returned), drop(failed);
    return result;
}

static PyObject *bind(PyObject *self, PyObject *object, PyObject *owner)
{
    (void)owner;
    if (!object || object == &_Py_NoneStruct)
        return held(self);
    return PyObject_CallFunctionObjArgs(method_type, self, object, NULL);
}

#define INLINED "_torchdynamo_inline"           /* attribute with the function that torch.compile inlines instead */

static PyObject *get(PyObject *self, PyObject *name)
{
    PyObject *original = parts(self)->original, *found = PyObject_GetAttr(original, name);
    if (found || !PyErr_ExceptionMatches(PyExc_AttributeError) || PyUnicode_CompareWithASCIIString(name, INLINED))
        return found;
    PyErr_Clear();
    return held(original);
}

/* Return a dictionary for `inspect.getattr_static` alone, which torch.compile uses. All others get the original's. */
static PyObject *own_dict(PyObject *self, void *closure)
{
    (void)closure;
    PyObject *found = PyDict_New();
    if (found && PyDict_SetItemString(found, INLINED, parts(self)->original) < 0)
        Py_DecRef(found), found = NULL;
    return found;
}

static int set(PyObject *self, PyObject *name, PyObject *value)
{
    return PyObject_SetAttr(parts(self)->original, name, value);
}

static ssize_t hash(PyObject *self)
{
    return PyObject_Hash(parts(self)->original);
}

static PyObject *show(PyObject *self)
{
    return PyObject_Repr(parts(self)->original);
}

static PyObject *compare(PyObject *self, PyObject *other, int how)
{
    PyObject *type = PyObject_Type(other);
    drop(type);
    return PyObject_RichCompare(parts(self)->original, type == kind ? parts(other)->original : other, how);
}

static int traverse(PyObject *self, int (*visit)(PyObject *, void *), void *argument)
{
    struct parts *of = parts(self);
    PyObject *all[] = {kind, of->original, of->around, of->chosen, of->returned, of->failed};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int stop = all[i] ? visit(all[i], argument) : 0;
        if (stop)
            return stop;
    }
    return 0;
}

/* `original` is never NULL: it becomes None, so a later call raises, as with any cleared object. */
static int clear(PyObject *self)
{
    struct parts *of = parts(self), former = *of;
    of->around = of->chosen = of->returned = of->failed = NULL;
    of->original = held(&_Py_NoneStruct);
    drop(former.around), drop(former.chosen), drop(former.returned), drop(former.failed), drop(former.original);
    return 0;
}

static void dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    if (parts(self)->weak)
        PyObject_ClearWeakRefs(self);
    clear(self);
    Py_DecRef(parts(self)->original);
    PyObject_GC_Del(self);
    Py_DecRef(kind);
}

/* Arguments: (original, around, chosen, returned, failed). Each but the first may be None, for nothing. */
static PyObject *make(PyObject *type, PyObject *args, PyObject *options)
{
    (void)options;
    if (PyTuple_Size(args) != 5) {
        PyErr_SetString(PyExc_TypeError, "expected original, around, chosen, returned and failed");
        return NULL;
    }
    PyObject *self = PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    struct parts *of = parts(self);
    PyObject **fields[] = {&of->original, &of->around, &of->chosen, &of->returned, &of->failed};
    for (int i = 0; i < 5; i++) {
        PyObject *part = PyTuple_GetItem(args, i);
        *fields[i] = i && part == &_Py_NoneStruct ? NULL : held(part);
    }
    return self;
}

static PyObject *make_kind(PyObject *self, PyObject *args)
{
    static struct member members[3];
    static struct getter getters[] = {{"__dict__", own_dict, NULL, NULL, NULL}, {0}};
    static struct slot slots[] = {
        {TP_CALL, call}, {TP_DESCR_GET, bind}, {TP_GETATTRO, get}, {TP_SETATTRO, set}, {TP_HASH, hash}, {TP_REPR, show},
        {TP_RICHCOMPARE, compare}, {TP_TRAVERSE, traverse}, {TP_CLEAR, clear}, {TP_DEALLOC, dealloc}, {TP_NEW, make},
        {TP_MEMBERS, members}, {TP_GETSET, getters}, {0, NULL},
    };
    (void)self;
    if (kind)
        return held(kind);
    head = PyLong_AsSsize_t(PyTuple_GetItem(args, 0));
    method_type = held(PyTuple_GetItem(args, 1));
    throw_name = PyUnicode_InternFromString("throw");
    value_name = PyUnicode_InternFromString("value");
    if (!throw_name || !value_name || PyErr_Occurred())
        return NULL;
    members[0] = (struct member){"original", OBJECT, head, READ_ONLY, "What it stands for."};
    ssize_t weak = head + (ssize_t)offsetof(struct parts, weak);
    members[1] = (struct member){"__weaklistoffset__", SSIZE, weak, READ_ONLY, NULL};
    struct spec spec = {"taskd.Frameless", (int)(head + (ssize_t)sizeof(struct parts)), 0,
                        IMMUTABLE | HAVE_GC | METHOD_DESCRIPTOR, slots};
    kind = PyType_FromSpec(&spec);
    return kind ? held(kind) : NULL;
}

/* Return the PyMethodDef of make_kind(object.__basicsize__, types.MethodType); NULL if this Python lacks a symbol. */
void *taskd_frameless_method(void)
{
    static struct method method = {"make_kind", make_kind, VARARGS, "The class of callables without a frame."};
    int whole = &_Py_NoneStruct && &PyExc_StopIteration && &PyExc_RuntimeError && &PyExc_TypeError
        && &PyExc_AttributeError && PyErr_ExceptionMatches && Py_IncRef && Py_DecRef
        && PyLong_AsSsize_t && PyTuple_Size && PyTuple_GetItem && PyTuple_GetSlice && PyUnicode_InternFromString
        && PyUnicode_CompareWithASCIIString && PyDict_New && PyDict_SetItemString && PyObject_Type && PyObject_GetAttr
        && PyObject_SetAttr && PyObject_Hash && PyObject_Repr && PyObject_RichCompare && PyObject_Call
        && PyObject_CallFunctionObjArgs && PyObject_CallMethodObjArgs && PyIter_Send && PyErr_SetString
        && PyErr_GivenExceptionMatches && PyErr_Fetch && PyErr_Clear && PyErr_Restore && PyErr_NormalizeException
        && PyErr_Occurred && PyException_SetTraceback && PyException_GetCause && PyType_FromSpec && PyType_GenericAlloc
        && PyObject_GC_UnTrack && PyObject_GC_Del && PyObject_ClearWeakRefs;
    return whole ? &method : NULL;
}
