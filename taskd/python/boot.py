"""A rank's process: `python -u -m taskd.python.boot script.py …` runs the script as `python -u script.py …` would."""

import sys

from taskd.adaptors.torchrun.script import forget_start_directory, prepare_rank, run_script

if __name__ == "__main__":
    forget_start_directory()
    prepare_rank()
    run_script(sys.argv[1:])
