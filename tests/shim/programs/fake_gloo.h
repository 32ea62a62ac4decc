#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

namespace gloo::transport::tcp {

struct UnboundBuffer {
    bool waitRecv(int *peer, std::chrono::milliseconds timeout);
    bool waitSend(int *peer, std::chrono::milliseconds timeout);
    void abortWaitRecv();
    void abortWaitSend();

    bool wait(int *peer, std::chrono::milliseconds timeout);
    void abort();

    std::mutex lock;
    std::condition_variable changed;
    int completions = 0, waits = 0;
    bool aborted = false;
    std::function<void()> before_return, on_abort;
};

}
