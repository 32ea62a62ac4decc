/* binding.h - the functions that our hooks interpose: gloo's, and those of the libraries for devices. */
#ifndef TASKD_BINDING_H
#define TASKD_BINDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TD_TCP(rest) "_ZN4gloo9transport3tcp" rest
#define TD_MILLISECONDS "NSt6chrono8durationIlSt5ratioILl1ELl1000EEEE"
#define TD_GLOO_REGISTER TD_TCP("6Device18registerDescriptorEiiPNS1_7HandlerE")
#define TD_GLOO_UNREGISTER TD_TCP("6Device20unregisterDescriptorEiPNS1_7HandlerE")
#define TD_GLOO_WAIT_SEND TD_TCP("13UnboundBuffer8waitSendEPi" TD_MILLISECONDS)
#define TD_GLOO_WAIT_RECV TD_TCP("13UnboundBuffer8waitRecvEPi" TD_MILLISECONDS)
#define TD_GLOO_ABORT_SEND TD_TCP("13UnboundBuffer13abortWaitSendEv")
#define TD_GLOO_ABORT_RECV TD_TCP("13UnboundBuffer13abortWaitRecvEv")
#define TD_GLOO_SEND TD_TCP("13UnboundBuffer4sendEimmm")
#define TD_GLOO_RECV TD_TCP("13UnboundBuffer4recvEimmm")
#define TD_GLOO_CONTEXT TD_TCP("7ContextC1ESt10shared_ptrINS1_6DeviceEEii")
#define TD_GLOO_BUFFER TD_TCP("13UnboundBufferC1ERKSt10shared_ptrINS1_7ContextEEPvm")

/* gloo's collectives: our name, gloo's symbol, kind of operation. Each function takes one reference to its options. */
#define TD_GLOO_COLLECTIVES(DO)                                                                                              \
    DO(allreduce, "_ZN4gloo9allreduceERKNS_16AllreduceOptionsE", TASKD_OP_ALLREDUCE)                                         \
    DO(allgather, "_ZN4gloo9allgatherERNS_16AllgatherOptionsE", TASKD_OP_ALLGATHER)                                          \
    DO(allgatherv, "_ZN4gloo10allgathervERNS_17AllgathervOptionsE", TASKD_OP_ALLGATHER)                                      \
    DO(broadcast, "_ZN4gloo9broadcastERNS_16BroadcastOptionsE", TASKD_OP_BROADCAST)                                          \
    DO(reduce, "_ZN4gloo6reduceERNS_13ReduceOptionsE", TASKD_OP_REDUCE)                                                      \
    DO(gather, "_ZN4gloo6gatherERNS_13GatherOptionsE", TASKD_OP_GATHER)                                                      \
    DO(scatter, "_ZN4gloo7scatterERNS_14ScatterOptionsE", TASKD_OP_SCATTER)                                                  \
    DO(alltoall, "_ZN4gloo8alltoallERNS_15AlltoallOptionsE", TASKD_OP_ALLTOALL)                                              \
    DO(alltoallv, "_ZN4gloo9alltoallvERNS_16AlltoallvOptionsE", TASKD_OP_ALLTOALL)                                           \
    DO(barrier, "_ZN4gloo7barrierERNS_14BarrierOptionsE", TASKD_OP_BARRIER)

#define TD_ENUMERATE(name, ...) TD_GLOO_##name,
enum td_gloo_collective { TD_GLOO_COLLECTIVES(TD_ENUMERATE) TD_GLOO_COLLECTIVE_COUNT };
#undef TD_ENUMERATE

/* The functions that have a hook in the libraries of collectives on devices, each with its library's own name. */
#define TD_NCCL "libnccl.so.2"
#define TD_HCCL "libhccl.so"
#define TD_DEVICE_FUNCTIONS(DO)                                                                                              \
    DO(ncclAllReduce, TD_NCCL) DO(ncclAllGather, TD_NCCL) DO(ncclReduceScatter, TD_NCCL) DO(ncclBroadcast, TD_NCCL)          \
    DO(ncclReduce, TD_NCCL) DO(ncclAlltoAll, TD_NCCL) DO(ncclSend, TD_NCCL) DO(ncclRecv, TD_NCCL)                            \
    DO(ncclCommInitRank, TD_NCCL) DO(ncclCommInitRankConfig, TD_NCCL) DO(ncclCommInitRankScalable, TD_NCCL)                  \
    DO(ncclCommSplit, TD_NCCL) DO(ncclCommAbort, TD_NCCL) DO(ncclCommDestroy, TD_NCCL)                                       \
    DO(ncclCommCount, TD_NCCL) DO(ncclCommUserRank, TD_NCCL)                                                                 \
    DO(HcclAllReduce, TD_HCCL) DO(HcclAllGather, TD_HCCL) DO(HcclReduceScatter, TD_HCCL) DO(HcclBroadcast, TD_HCCL)          \
    DO(HcclReduce, TD_HCCL) DO(HcclAlltoAll, TD_HCCL) DO(HcclBarrier, TD_HCCL) DO(HcclSend, TD_HCCL) DO(HcclRecv, TD_HCCL)   \
    DO(HcclCommInitRootInfo, TD_HCCL) DO(HcclCommInitRootInfoConfig, TD_HCCL) DO(HcclCreateSubCommConfig, TD_HCCL)           \
    DO(HcclCommDestroy, TD_HCCL)

#define TD_ENUMERATE(name, soname) TD_##name,
enum td_device_function { TD_DEVICE_FUNCTIONS(TD_ENUMERATE) TD_DEVICE_FUNCTION_COUNT };
#undef TD_ENUMERATE

typedef void td_context_fn(void *context, void *device, int rank, int size);
typedef void td_buffer_fn(void *buffer, void *const *context, void *memory, size_t bytes);
typedef void td_transfer_fn(void *buffer, int peer, uint64_t slot, size_t offset, size_t bytes);
typedef void td_collective_fn(void *options);
typedef void td_add_fn(void *device, int fd, int events, void *handler);
typedef void td_drop_fn(void *device, int fd, void *handler);
typedef bool td_wait_fn(void *buffer, int *peer, long timeout_ms);
typedef void td_abort_fn(void *buffer);

/* Functions of the gloo that the code between `low` and `high` uses. */
struct td_gloo {
    uintptr_t low, high;
    td_add_fn *add;
    td_drop_fn *drop;
    td_wait_fn *wait_send;
    td_wait_fn *wait_recv;
    td_abort_fn *abort_send;
    td_abort_fn *abort_recv;
    td_context_fn *context;
    td_buffer_fn *buffer;
    td_transfer_fn *send;
    td_transfer_fn *recv;
    td_collective_fn *collective[TD_GLOO_COLLECTIVE_COUNT];
};

const struct td_gloo *td_gloo_of(const void *caller);
void *td_device_function(const void *caller, enum td_device_function which);

/* Address of the code that called the function which contains this macro. */
#define TD_CALLER() __builtin_extract_return_addr(__builtin_return_address(0))

#endif
