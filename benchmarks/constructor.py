"""Cost of the preloaded gate to a process in which it is inert.

Method: a C program is compiled on the fly and started anew for each sample. taskd is switched on and a box is named, as
in a child of a training process that kept the preload. The program times one `dlopen(libtaskd.so, RTLD_NOW)`: mapping
the file, relocating it and running its constructor. That is an upper bound of the constructor alone, and exactly the
cost that a preload adds. The program's name is not python, so the gate makes all checks that come before the core's.
The result is the median of the samples, in microseconds.
"""

import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from taskd.runtime.box.blackbox import library_path

_PROGRAM = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>
int main(int count, char **words)
{
    struct timespec begun, ended;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    void *gate = count == 2 ? dlopen(words[1], RTLD_NOW) : NULL;
    clock_gettime(CLOCK_MONOTONIC, &ended);
    if (!gate)
        return 1;
    printf("%ld\n", (ended.tv_sec - begun.tv_sec) * 1000000000L + ended.tv_nsec - begun.tv_nsec);
    return 0;
}
"""


def constructor_us(samples: int = 200) -> float:
    """Return the median cost of the inert gate over `samples` processes, in microseconds."""
    environment = {**os.environ, "TASKD_PROCESS_ENABLE": "on", "TASKD_BLACKBOX": "/dev/shm/no-such-box"}
    environment.pop("LD_PRELOAD", None)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "timed"
        compiler = os.environ.get("CC", "cc").split()
        subprocess.run([*compiler, "-O2", "-x", "c", "-o", program, "-", "-ldl"], input=_PROGRAM, text=True, check=True)
        command = [program, library_path("libtaskd.so")]
        times_ns = [int(subprocess.check_output(command, env=environment)) for _ in range(samples)]
    return statistics.median(times_ns) / 1000


if __name__ == "__main__":
    print(f"constructor_us: {constructor_us():.1f}")
