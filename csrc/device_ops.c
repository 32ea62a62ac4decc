/* device_ops.c - records of NCCL's and HCCL's collectives, as the host enqueues them.
 *
 * Rules:
 * 1. Both are C interfaces that their makers allow others to interpose. A hook records the start, calls the true
 *    function, and records the return. The return means "enqueued", not "done": the library's own profiler reports the
 *    activity of the device (nccl_profiler.c).
 * 2. The id of a communicator comes from data that all its ranks share: NCCL's unique id, or HCCL's root information.
 *    For a part of a communicator, it comes from the id of the whole and the arguments of the split.
 * 3. If the true function is missing, the hook returns the library's code for an internal error. */
#define _GNU_SOURCE
#include "binding.h"
#include "coll.h"

#define EXPORTED __attribute__((visibility("default")))

enum { NCCL_INTERNAL_ERROR = 3, NCCL_IN_PROGRESS = 7, HCCL_INTERNAL_ERROR = 4 };
enum { NCCL_ID_BYTES = 128, HCCL_ROOT_BYTES = 4108, NOBODY = -1 };

struct nccl_id {
    char internal[NCCL_ID_BYTES];
};

/* Define `real`, the true function. It has the type of the hook that contains this macro. */
#define REAL(name, error)                                                                                                    \
    __typeof__(&name) real = (__typeof__(&name))td_device_function(TD_CALLER(), TD_##name);                                  \
    if (!real)                                                                                                               \
        return error

#define NCCL(name, op, comm, elements, type, peer)                                                                           \
    REAL(name, NCCL_INTERNAL_ERROR);                                                                                         \
    td_device_time_renew();                                                                                                  \
    TD_NOTED(op, TASKD_BACKEND_NCCL, comm, (elements) * nccl_bytes(type), (uint32_t)(type), peer)

#define HCCL(name, op, comm, elements, type, peer)                                                                           \
    REAL(name, HCCL_INTERNAL_ERROR);                                                                                         \
    TD_NOTED(op, TASKD_BACKEND_HCCL, comm, (elements) * hccl_bytes(type), (uint32_t)(type), peer)

/* i8 u8 i32 u32 i64 u64 f16 f32 f64 bf16 f8e4m3 f8e5m2 */
static uint64_t nccl_bytes(int type)
{
    static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < (int)sizeof bytes ? bytes[type] : 0;
}

/* i8 i16 i32 f16 f32 i64 u64 u8 u16 u32 f64 bf16 i128 - hif8 f8e4m3 f8e5m2 f8e8m0 */
static uint64_t hccl_bytes(int type)
{
    static const uint8_t bytes[] = {1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2, 16, 0, 1, 1, 1, 1};
    return type >= 0 && type < (int)sizeof bytes ? bytes[type] : 0;
}

static uint64_t part_of(const void *whole, const void *which, size_t bytes)
{
    uint64_t id = td_comm_id(whole);
    return td_hash(td_hash(TD_HASH_START, &id, sizeof id), which, bytes);
}

/* NCCL. */

EXPORTED int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream)
{
    NCCL(ncclAllReduce, TASKD_OP_ALLREDUCE, comm, count, type, NOBODY);
    return real(send, recv, count, type, op, comm, stream);
}

EXPORTED int ncclAllGather(const void *send, void *recv, size_t count, int type, void *comm, void *stream)
{
    NCCL(ncclAllGather, TASKD_OP_ALLGATHER, comm, count, type, NOBODY);
    return real(send, recv, count, type, comm, stream);
}

EXPORTED int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream)
{
    NCCL(ncclReduceScatter, TASKD_OP_REDUCE_SCATTER, comm, count, type, NOBODY);
    return real(send, recv, count, type, op, comm, stream);
}

EXPORTED int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, void *comm, void *stream)
{
    NCCL(ncclBroadcast, TASKD_OP_BROADCAST, comm, count, type, root);
    return real(send, recv, count, type, root, comm, stream);
}

EXPORTED int ncclReduce(const void *send, void *recv, size_t count, int type, int op, int root, void *comm, void *stream)
{
    NCCL(ncclReduce, TASKD_OP_REDUCE, comm, count, type, root);
    return real(send, recv, count, type, op, root, comm, stream);
}

EXPORTED int ncclAlltoAll(const void *send, void *recv, size_t count, int type, void *comm, void *stream)
{
    NCCL(ncclAlltoAll, TASKD_OP_ALLTOALL, comm, count, type, NOBODY);
    return real(send, recv, count, type, comm, stream);
}

EXPORTED int ncclSend(const void *send, size_t count, int type, int peer, void *comm, void *stream)
{
    NCCL(ncclSend, TASKD_OP_SEND, comm, count, type, peer);
    return real(send, count, type, peer, comm, stream);
}

EXPORTED int ncclRecv(void *recv, size_t count, int type, int peer, void *comm, void *stream)
{
    NCCL(ncclRecv, TASKD_OP_RECV, comm, count, type, peer);
    return real(recv, count, type, peer, comm, stream);
}

/* Return whether the new communicator is usable, or will be without another call. */
static int opened(int result, void *const *comm)
{
    return (!result || result == NCCL_IN_PROGRESS) && comm && *comm;
}

static int open_nccl(int result, void *const *comm, const struct nccl_id *id, int rank, int ranks)
{
    if (opened(result, comm))
        td_comm_open(*comm, TASKD_BACKEND_NCCL, td_hash(TD_HASH_START, id, sizeof *id), rank, ranks);
    return result;
}

EXPORTED int ncclCommInitRank(void **comm, int ranks, struct nccl_id id, int rank)
{
    NCCL(ncclCommInitRank, TASKD_OP_OPEN, NULL, (uint64_t)0, 0, NOBODY);
    return open_nccl(real(comm, ranks, id, rank), comm, &id, rank, ranks);
}

EXPORTED int ncclCommInitRankConfig(void **comm, int ranks, struct nccl_id id, int rank, void *config)
{
    NCCL(ncclCommInitRankConfig, TASKD_OP_OPEN, NULL, (uint64_t)0, 0, NOBODY);
    return open_nccl(real(comm, ranks, id, rank, config), comm, &id, rank, ranks);
}

EXPORTED int ncclCommInitRankScalable(void **comm, int ranks, int rank, int ids, struct nccl_id *id, void *config)
{
    NCCL(ncclCommInitRankScalable, TASKD_OP_OPEN, NULL, (uint64_t)0, 0, NOBODY);
    return open_nccl(real(comm, ranks, rank, ids, id, config), comm, id, rank, ranks);
}

typedef int ask_fn(void *comm, int *answer);

static int ask(const void *caller, enum td_device_function which, void *comm)
{
    ask_fn *real = (ask_fn *)td_device_function(caller, which);
    int answer = NOBODY;
    return real && !real(comm, &answer) ? answer : NOBODY;
}

EXPORTED int ncclCommSplit(void *comm, int color, int key, void **part, void *config)
{
    NCCL(ncclCommSplit, TASKD_OP_OPEN, comm, (uint64_t)0, 0, NOBODY);
    struct {
        int32_t color;
        uint32_t number;
    } which = {color, td_comm_next_part(comm)};
    int result = real(comm, color, key, part, config), rank = NOBODY, ranks = NOBODY;
    if (!opened(result, part))
        return result;
    if (!result) {                              /* else the part cannot answer yet */
        rank = ask(TD_CALLER(), TD_ncclCommUserRank, *part);
        ranks = ask(TD_CALLER(), TD_ncclCommCount, *part);
    }
    td_comm_open(*part, TASKD_BACKEND_NCCL, part_of(comm, &which, sizeof which), rank, ranks);
    return result;
}

EXPORTED int ncclCommAbort(void *comm)
{
    NCCL(ncclCommAbort, TASKD_OP_CLOSE, comm, (uint64_t)0, 0, NOBODY);
    td_comm_close(comm);
    return real(comm);
}

EXPORTED int ncclCommDestroy(void *comm)
{
    NCCL(ncclCommDestroy, TASKD_OP_CLOSE, comm, (uint64_t)0, 0, NOBODY);
    td_comm_close(comm);
    return real(comm);
}

/* HCCL. */

EXPORTED int HcclAllReduce(void *send, void *recv, uint64_t count, int type, int op, void *comm, void *stream)
{
    HCCL(HcclAllReduce, TASKD_OP_ALLREDUCE, comm, count, type, NOBODY);
    return real(send, recv, count, type, op, comm, stream);
}

EXPORTED int HcclAllGather(void *send, void *recv, uint64_t count, int type, void *comm, void *stream)
{
    HCCL(HcclAllGather, TASKD_OP_ALLGATHER, comm, count, type, NOBODY);
    return real(send, recv, count, type, comm, stream);
}

EXPORTED int HcclReduceScatter(void *send, void *recv, uint64_t count, int type, int op, void *comm, void *stream)
{
    HCCL(HcclReduceScatter, TASKD_OP_REDUCE_SCATTER, comm, count, type, NOBODY);
    return real(send, recv, count, type, op, comm, stream);
}

EXPORTED int HcclBroadcast(void *data, uint64_t count, int type, uint32_t root, void *comm, void *stream)
{
    HCCL(HcclBroadcast, TASKD_OP_BROADCAST, comm, count, type, (int32_t)root);
    return real(data, count, type, root, comm, stream);
}

EXPORTED int HcclReduce(void *send, void *recv, uint64_t count, int type, int op, uint32_t root, void *comm, void *stream)
{
    HCCL(HcclReduce, TASKD_OP_REDUCE, comm, count, type, (int32_t)root);
    return real(send, recv, count, type, op, root, comm, stream);
}

EXPORTED int HcclAlltoAll(const void *send, uint64_t count, int type, const void *recv, uint64_t recv_count, int recv_type,
                          void *comm, void *stream)
{
    HCCL(HcclAlltoAll, TASKD_OP_ALLTOALL, comm, count, type, NOBODY);
    return real(send, count, type, recv, recv_count, recv_type, comm, stream);
}

EXPORTED int HcclBarrier(void *comm, void *stream)
{
    HCCL(HcclBarrier, TASKD_OP_BARRIER, comm, (uint64_t)0, 0, NOBODY);
    return real(comm, stream);
}

EXPORTED int HcclSend(void *send, uint64_t count, int type, uint32_t peer, void *comm, void *stream)
{
    HCCL(HcclSend, TASKD_OP_SEND, comm, count, type, (int32_t)peer);
    return real(send, count, type, peer, comm, stream);
}

EXPORTED int HcclRecv(void *recv, uint64_t count, int type, uint32_t peer, void *comm, void *stream)
{
    HCCL(HcclRecv, TASKD_OP_RECV, comm, count, type, (int32_t)peer);
    return real(recv, count, type, peer, comm, stream);
}

static int open_hccl(int result, void *const *comm, uint64_t id, uint32_t rank, uint32_t ranks)
{
    if (!result && comm && *comm)
        td_comm_open(*comm, TASKD_BACKEND_HCCL, id, (int)rank, (int)ranks);
    return result;
}

EXPORTED int HcclCommInitRootInfo(uint32_t ranks, const void *root, uint32_t rank, void **comm)
{
    HCCL(HcclCommInitRootInfo, TASKD_OP_OPEN, NULL, (uint64_t)0, 0, NOBODY);
    uint64_t id = td_hash(TD_HASH_START, root, HCCL_ROOT_BYTES);
    return open_hccl(real(ranks, root, rank, comm), comm, id, rank, ranks);
}

EXPORTED int HcclCommInitRootInfoConfig(uint32_t ranks, const void *root, uint32_t rank, const void *config, void **comm)
{
    HCCL(HcclCommInitRootInfoConfig, TASKD_OP_OPEN, NULL, (uint64_t)0, 0, NOBODY);
    uint64_t id = td_hash(TD_HASH_START, root, HCCL_ROOT_BYTES);
    return open_hccl(real(ranks, root, rank, config, comm), comm, id, rank, ranks);
}

EXPORTED int HcclCreateSubCommConfig(void **comm, uint32_t ranks, uint32_t *members, uint64_t number, uint32_t rank,
                                     void *config, void **part)
{
    HCCL(HcclCreateSubCommConfig, TASKD_OP_OPEN, comm ? *comm : NULL, (uint64_t)0, 0, NOBODY);
    uint64_t id = part_of(comm ? *comm : NULL, &number, sizeof number);
    return open_hccl(real(comm, ranks, members, number, rank, config, part), part, id, rank, ranks);
}

EXPORTED int HcclCommDestroy(void *comm)
{
    HCCL(HcclCommDestroy, TASKD_OP_CLOSE, comm, (uint64_t)0, 0, NOBODY);
    td_comm_close(comm);
    return real(comm);
}
