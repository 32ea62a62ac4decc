// waits.cc - calls gloo's waits through the core, as torch does, and prints what came of each. Linked to core and fake gloo.
#include "fake_gloo.h"

extern "C" {
#include "taskd.h"
}

#include <cstdio>
#include <stdexcept>
#include <thread>

using namespace std::chrono_literals;
using gloo::transport::tcp::UnboundBuffer;
using Wait = bool (UnboundBuffer::*)(int *, std::chrono::milliseconds);

static struct taskd_census census()
{
    struct taskd_census out;
    taskd_census(&out);
    return out;
}

static void break_when_somebody_waits()
{
    while (!census().waiters)
        std::this_thread::yield();
    taskd_break();
}

static void say(const char *what, UnboundBuffer &buffer, Wait wait)
{
    int peer = 0;
    try {
        bool done = (buffer.*wait)(&peer, 20s);
        std::printf("%s: %s peer=%d left=%d marked=%d", what, done ? "true" : "false", peer, buffer.completions, buffer.aborted);
    } catch (const std::runtime_error &) {
        std::printf("%s: thrown", what);
    }
    std::printf(" listed=%d\n", census().waiters);
}

static void cases(Wait wait)
{
    UnboundBuffer completed, aborted, broken, raced, late, begun;
    completed.completions = 2;
    say("completed", completed, wait);

    aborted.aborted = true;
    say("aborted by the user", aborted, wait);

    std::thread first(break_when_somebody_waits);
    say("broken while waiting", broken, wait);
    first.join();
    taskd_mend();

    raced.on_abort = [&] { raced.completions = 1; };
    std::thread second(break_when_somebody_waits);
    say("completed with the kick", raced, wait);
    second.join();
    taskd_mend();

    late.completions = 2;
    late.before_return = [] {
        taskd_break();
        taskd_mend();
    };
    say("completed before the kick", late, wait);

    taskd_break();
    say("begun while broken", begun, wait);
    begun.completions = 1;
    say("completed while broken", begun, wait);
    taskd_mend();
}

int main()
{
    cases(&UnboundBuffer::waitRecv);
    cases(&UnboundBuffer::waitSend);
    std::printf("hooks=%d\n", census().hooks);
}
