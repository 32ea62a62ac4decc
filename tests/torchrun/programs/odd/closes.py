"""A script that closes every descriptor but the three streams, as daemons do, and then opens files of its own."""

import os
import sys
import time
from pathlib import Path

os.closerange(3, os.sysconf("SC_OPEN_MAX"))
names = [f"{os.environ['TWIN_FOLDER']}/own-{os.environ['RANK']}-{number}" for number in range(8)]
files = [open(name, "w+b") for name in names]  # noqa: SIM115
time.sleep(2)  # long enough for the agent to send something
sys.stdout.write(f"written to: {[name for name in names if Path(name).stat().st_size]}\n")
