/* binding.h - gloo's own definitions, before which those of gloo.c stand. */
#ifndef TASKD_BINDING_H
#define TASKD_BINDING_H

#include <stdbool.h>
#include <stdint.h>

#define TD_TCP(rest) "_ZN4gloo9transport3tcp" rest
#define TD_MILLISECONDS "NSt6chrono8durationIlSt5ratioILl1ELl1000EEEE"
#define TD_GLOO_REGISTER TD_TCP("6Device18registerDescriptorEiiPNS1_7HandlerE")
#define TD_GLOO_UNREGISTER TD_TCP("6Device20unregisterDescriptorEiPNS1_7HandlerE")
#define TD_GLOO_WAIT_SEND TD_TCP("13UnboundBuffer8waitSendEPi" TD_MILLISECONDS)
#define TD_GLOO_WAIT_RECV TD_TCP("13UnboundBuffer8waitRecvEPi" TD_MILLISECONDS)
#define TD_GLOO_ABORT_SEND TD_TCP("13UnboundBuffer13abortWaitSendEv")
#define TD_GLOO_ABORT_RECV TD_TCP("13UnboundBuffer13abortWaitRecvEv")

typedef void td_add_fn(void *device, int fd, int events, void *handler);
typedef void td_drop_fn(void *device, int fd, void *handler);
typedef bool td_wait_fn(void *buffer, int *peer, long timeout_ms);
typedef void td_abort_fn(void *buffer);

/* The gloo that the code between `low` and `high` uses. */
struct td_gloo {
    uintptr_t low, high;
    td_add_fn *add;
    td_drop_fn *drop;
    td_wait_fn *wait_send;
    td_wait_fn *wait_recv;
    td_abort_fn *abort_send;
    td_abort_fn *abort_recv;
};

const struct td_gloo *td_gloo_of(const void *caller);

#endif
