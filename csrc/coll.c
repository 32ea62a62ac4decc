/* coll.c - communicators of this process, and numbers of its collectives.
 *
 * Rules:
 * 1. A communicator is found by its address, in a table of the box with open addressing. Opening and closing take a
 *    lock; a search does not. If one thread uses a communicator while another closes it, a wrong number is the least
 *    damage.
 * 2. Collectives of one communicator are numbered from 1 in the order of their calls, which is the same on all ranks.
 *    gloo's collectives have numbers of their own. Transfers between two ranks have none, because their order differs.
 * 3. When the table is full, the oldest communicator is removed. */
#define _GNU_SOURCE
#include "coll.h"

#include <pthread.h>

#define RELAXED memory_order_relaxed

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

uint64_t td_hash(uint64_t hash, const void *bytes, size_t count)
{
    for (const unsigned char *at = bytes; count--; at++)
        hash = (hash ^ *at) * 0x100000001b3ull;
    return hash;
}

static unsigned place_of(uint64_t handle)
{
    return (unsigned)((handle >> 4) * 0x9e3779b97f4a7c15ull >> 57) % TD_COMMS;
}

static struct td_comm *find(struct td_box *box, uint64_t handle)
{
    unsigned at = place_of(handle);
    for (unsigned tried = 0; tried < TD_COMMS; tried++, at = (at + 1) % TD_COMMS) {
        struct td_comm *comm = &box->comms[at].comm;
        if (atomic_load_explicit(&comm->handle, RELAXED) == handle)
            return comm;
        if (!atomic_load_explicit(&comm->seq, RELAXED))
            return NULL;
    }
    return NULL;
}

/* Return a free place on the search path of `find`, or the place of the oldest communicator. */
static struct td_comm *vacate(struct td_box *box, uint64_t handle)
{
    struct td_comm *oldest = &box->comms[0].comm;
    unsigned at = place_of(handle);
    for (unsigned tried = 0; tried < TD_COMMS; tried++, at = (at + 1) % TD_COMMS) {
        struct td_comm *comm = &box->comms[at].comm;
        if (!atomic_load_explicit(&comm->handle, RELAXED))
            return comm;
        if (atomic_load_explicit(&comm->opened_ns, RELAXED) < atomic_load_explicit(&oldest->opened_ns, RELAXED))
            oldest = comm;
    }
    return oldest;
}

static uint64_t begin(struct td_comm *comm)
{
    uint64_t seq = atomic_load_explicit(&comm->seq, RELAXED) | 1;     /* odd already if an exec killed a thread here */
    atomic_store_explicit(&comm->seq, seq, RELAXED);
    atomic_thread_fence(memory_order_release);
    return seq;
}

/* Record that `handle` is now the communicator `id`, in which this process is `rank` of `ranks`; -1: not known. */
void td_comm_open(const void *handle, uint32_t backend, uint64_t id, int rank, int ranks)
{
    struct td_box *box = td_current();
    uint64_t address = (uint64_t)(uintptr_t)handle;
    pthread_mutex_lock(&opening);
    struct td_comm *comm = find(box, address);
    if (!comm)
        comm = vacate(box, address);
    uint64_t seq = begin(comm);
    atomic_store_explicit(&comm->handle, address, RELAXED);
    atomic_store_explicit(&comm->id, id, RELAXED);
    atomic_store_explicit(&comm->number, 0, RELAXED);
    atomic_store_explicit(&comm->parts, 0, RELAXED);
    atomic_store_explicit(&comm->opened_ns, td_now_ns(), RELAXED);
    atomic_store_explicit(&comm->ranks, ranks, RELAXED);
    atomic_store_explicit(&comm->rank, rank, RELAXED);
    atomic_store_explicit(&comm->backend, backend, RELAXED);
    atomic_store_explicit(&comm->seq, seq + 1, memory_order_release);
    pthread_mutex_unlock(&opening);
}

void td_comm_close(const void *handle)
{
    pthread_mutex_lock(&opening);
    struct td_comm *comm = handle ? find(td_current(), (uint64_t)(uintptr_t)handle) : NULL;
    if (comm) {
        uint64_t seq = begin(comm);
        atomic_store_explicit(&comm->handle, 0, RELAXED);
        atomic_store_explicit(&comm->seq, seq + 1, memory_order_release);
    }
    pthread_mutex_unlock(&opening);
}

/* Record the number of a communicator's collective, if it is the highest so far. */
void td_comm_reached(const void *handle, uint64_t number)
{
    struct td_comm *comm = handle ? find(td_current(), (uint64_t)(uintptr_t)handle) : NULL;
    uint64_t seen = comm ? atomic_load_explicit(&comm->number, RELAXED) : number;
    while (seen < number && !atomic_compare_exchange_weak(&comm->number, &seen, number))
        ;
}

/* Return the communicator's id, 0 if it is not known. */
uint64_t td_comm_id(const void *handle)
{
    struct td_comm *comm = handle ? find(td_current(), (uint64_t)(uintptr_t)handle) : NULL;
    return comm ? atomic_load_explicit(&comm->id, RELAXED) : 0;
}

/* Count a split of the communicator, and return the number of earlier ones. All its ranks agree on that number. */
uint32_t td_comm_next_part(const void *handle)
{
    struct td_comm *comm = handle ? find(td_current(), (uint64_t)(uintptr_t)handle) : NULL;
    return comm ? atomic_fetch_add_explicit(&comm->parts, 1, RELAXED) : 0;
}

static int is_numbered(uint32_t op)
{
    uint32_t kind = op & ((1u << TASKD_BACKEND_SHIFT) - 1);
    return kind >= TASKD_OP_ALLREDUCE && kind <= TASKD_OP_BARRIER;
}

/* Record the start of an operation on the communicator at `handle`; return the ticket for taskd_leave. */
uint64_t td_collective(uint32_t op, const void *handle, uint64_t bytes, uint32_t dtype, int32_t peer)
{
    struct td_comm *comm = handle ? find(td_current(), (uint64_t)(uintptr_t)handle) : NULL;
    if (!comm)
        return td_enter(op, 0, 0, bytes, dtype, peer);
    uint64_t number = is_numbered(op) ? atomic_fetch_add_explicit(&comm->number, 1, RELAXED) + 1 : 0;
    return td_enter(op, atomic_load_explicit(&comm->id, RELAXED), number, bytes, dtype, peer);
}

void td_coll_after_fork(void)
{
    pthread_mutex_init(&opening, NULL);
}
