// fake_gloo.cc - gloo's UnboundBuffer as far as waiting goes, for a libtorch_cpu.so that does what a test needs at the moment it needs it.
//
// The mangled names are gloo's own, because the classes are named and nested as there. The rules of a wait are those of
// gloo/transport/tcp/unbound_buffer.cc: an abort mark makes one wait return false and is taken off by it; a timeout throws.
#include "fake_gloo.h"

#include <stdexcept>

#ifndef PEER
#define PEER 7
#endif

namespace gloo::transport::tcp {

bool UnboundBuffer::wait(int *peer, std::chrono::milliseconds timeout)
{
    std::unique_lock<std::mutex> guard(lock);
    waits++;
    if (!changed.wait_for(guard, timeout, [&] { return aborted || completions > 0; }))
        throw std::runtime_error("timed out");
    if (aborted) {
        aborted = false;
        return false;
    }
    completions--;
    *peer = PEER;
    guard.unlock();
    if (before_return)
        before_return();
    return true;
}

bool UnboundBuffer::waitRecv(int *peer, std::chrono::milliseconds timeout) { return wait(peer, timeout); }
bool UnboundBuffer::waitSend(int *peer, std::chrono::milliseconds timeout) { return wait(peer, timeout); }

void UnboundBuffer::abort()
{
    std::lock_guard<std::mutex> guard(lock);
    aborted = true;
    changed.notify_one();
    if (on_abort)
        on_abort();
}

void UnboundBuffer::abortWaitRecv() { abort(); }
void UnboundBuffer::abortWaitSend() { abort(); }

}

/* Ends with a jump, so that the wait seems to be called by whoever called this. */
extern "C" bool receive_by_a_jump()
{
    static gloo::transport::tcp::UnboundBuffer buffer;
    static int peer;
    buffer.completions = 1;
    return buffer.waitRecv(&peer, std::chrono::milliseconds(1000));
}

extern "C" int receive_one()
{
    gloo::transport::tcp::UnboundBuffer buffer;
    int peer = 0;
    buffer.completions = 1;
    return buffer.waitRecv(&peer, std::chrono::milliseconds(1000)) ? peer : -1;
}
