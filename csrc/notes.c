/* notes.c - records of this process's operations in the ring of its box: their starts and ends.
 *
 * Rules:
 * 1. A writer takes a slot by compare-and-swap. If another writer, a whole lap behind, still holds it, the new event is
 *    dropped. So two events are never mixed.
 * 2. A record costs two clock readings and no lock. */
#define _GNU_SOURCE
#include "core.h"

#define RELAXED memory_order_relaxed

static __thread uint32_t own_tid __attribute__((tls_model("initial-exec")));

static uint32_t tid(void)
{
    if (!own_tid) {
        own_tid = (uint32_t)syscall(SYS_gettid);
        td_death_stack();
    }
    return own_tid;
}

void td_notes_after_fork(void)
{
    own_tid = 0;
}

uint64_t td_enter(uint32_t op, uint64_t comm, uint64_t number, uint64_t bytes, uint32_t dtype, int32_t peer)
{
    struct td_box *box = td_current();
    uint64_t ticket = atomic_fetch_add_explicit(&box->rings.head, 1, RELAXED) + 1;
    struct td_event *slot = &box->ring[(ticket - 1) % TD_RING];
    uint64_t seen = atomic_load_explicit(&slot->seq, RELAXED);
    if (seen >= ticket || !atomic_compare_exchange_strong(&slot->seq, &seen, TD_BUSY)) {   /* TD_BUSY is above every ticket */
        atomic_fetch_add_explicit(&box->rings.dropped, 1, RELAXED);
        return 0;
    }
    atomic_thread_fence(memory_order_release);  /* no field is written before the mark */
    atomic_store_explicit(&slot->entered_ns, td_now_ns(), RELAXED);
    atomic_store_explicit(&slot->left_ns, 0, RELAXED);
    atomic_store_explicit(&slot->comm, comm, RELAXED);
    atomic_store_explicit(&slot->number, number, RELAXED);
    atomic_store_explicit(&slot->bytes, bytes, RELAXED);
    atomic_store_explicit(&slot->op, op, RELAXED);
    atomic_store_explicit(&slot->dtype, dtype, RELAXED);
    atomic_store_explicit(&slot->tid, tid(), RELAXED);
    atomic_store_explicit(&slot->peer, peer, RELAXED);
    atomic_store_explicit(&slot->seq, ticket, memory_order_release);
    return ticket;
}

/* Record the start of an operation. Return the ticket for taskd_leave, 0 if the event was dropped. */
uint64_t taskd_enter(uint32_t op, uint64_t comm, uint64_t bytes, uint32_t dtype, int32_t peer)
{
    return td_enter(op, comm, 0, bytes, dtype, peer);
}

/* Take the slot of `ticket` for the caller, and return it; NULL if a newer event has the slot. */
static struct td_event *hold(uint64_t ticket)
{
    struct td_event *slot = &td_current()->ring[(ticket - 1) % TD_RING];
    uint64_t seen = ticket;
    if (!ticket || !atomic_compare_exchange_strong(&slot->seq, &seen, TD_BUSY))
        return NULL;
    atomic_thread_fence(memory_order_release);
    return slot;
}

/* Record the number that the open operation of `ticket` has among the collectives of its communicator. */
void td_number(uint64_t ticket, uint64_t number)
{
    struct td_event *slot = hold(ticket);
    if (!slot)
        return;
    atomic_store_explicit(&slot->number, number, RELAXED);
    atomic_store_explicit(&slot->seq, ticket, memory_order_release);
}

/* Record the end of the operation of `ticket`; do nothing if a newer one has its slot. */
void taskd_leave(uint64_t ticket)
{
    struct td_event *slot = hold(ticket);
    if (!slot)
        return;
    atomic_store_explicit(&slot->left_ns, td_now_ns(), RELAXED);
    atomic_store_explicit(&slot->seq, ticket, memory_order_release);
}
