"""Every kind of write of a process to its box. As a program it prints whether they reached a box."""

from taskd.runtime.box.recorder import BoxPhase, Recorder

r = Recorder()


def write(recorder: Recorder) -> bool:
    recorder.step(99)
    recorder.phase(BoxPhase.FINISHED)
    recorder.gil_beat()
    recorder.last_words(ValueError("a child's"))
    recorder._core.taskd_leave(recorder._core.taskd_enter(1, 2, 3, 4, 5))
    return recorder.attached


if __name__ == "__main__":
    print(write(r))
