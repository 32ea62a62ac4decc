"""A check process from a cold start: `python -m taskd.adaptors.nodecheck [RESULT_FD] < order.json`.

Reads one `ProbeOrder` as JSON from stdin, to its end, and writes one `ProbeResult` as JSON to RESULT_FD (default 1).
Exit status: 0 if an answer was written, whatever it reports; 2 if no order could be read.
"""

import os
import sys

import msgspec

from taskd.wire.probes import ProbeOrder


def main() -> int:
    """Answer the order; return the status to end with."""
    try:
        result_fd = int(sys.argv[1]) if len(sys.argv) > 1 else 1
        os.fstat(result_fd)
        order = msgspec.json.decode(sys.stdin.buffer.read(), type=ProbeOrder)
    except (ValueError, OSError) as error:  # msgspec's errors are ValueErrors
        text = f"found no order: {error}; expected a ProbeOrder as JSON on stdin, and a descriptor's number or nothing"
        os.write(2, f"taskd.adaptors.nodecheck: {text}\n".encode())
        return 2
    from taskd.adaptors.nodecheck.answer import answer

    answer(order, result_fd)
    return 0


if __name__ == "__main__":
    os._exit(main())  # a thread may hang, and the destructors of groups wait for their peers
