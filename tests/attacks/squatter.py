"""Another user at a name of a rank's agent: `squatter.py NAME FOLDER WAY SETUP`. Knows torch's variables, and no key.

It answers every caller twice: at once, as taskd once did, and with noise in answer to the handshake. WAY is the first
answer: `variables` of a rank whose position file is the squatter's own, or a `socket` that makes its caller such a
rank. SETUP is the content of the file behind that position, in hexadecimal digits. It prints the bytes it receives.
"""

import json
import os
import select
import socket
import struct
import sys


def packed(value: object) -> bytes:
    """Return msgpack of maps and lists of short texts. It is written out here, for lack of the user's packages."""
    if isinstance(value, dict):
        pairs = b"".join(packed(key) + packed(item) for key, item in value.items())
        return b"\xde" + struct.pack(">H", len(value)) + pairs
    if isinstance(value, list):
        return b"\xdc" + struct.pack(">H", len(value)) + b"".join(map(packed, value))
    text = str(value).encode()
    return b"\xda" + struct.pack(">H", len(text)) + text


def main() -> None:
    """Serve until killed."""
    name, folder, way, setup = sys.argv[1:]
    with open(f"{folder}/position-0.setup", "wb") as file:
        file.write(bytes.fromhex(setup))
    os.chmod(f"{folder}/position-0.setup", 0o644)
    rank = {
        "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "1",
        "TASKD_AGENT_SOCKET": f"{folder}/socket", "TASKD_AGENT_PID": str(os.getpid()), "TASKD_RUN_DIR": folder,
        "TASKD_INCARNATION": "1", "TASKD_GENERATION": "1", "TASKD_TERM": "1", "TASKD_JOINS": "on",
        "TASKD_BLACKBOX": "", "TASKD_POSITION": f"{folder}/position-0", "TASKD_MEMBERS": "", "TASKD_PLACES": "2",
    }  # fmt: skip
    answer = json.dumps({"socket": f"{folder}/socket", "env": rank if way == "variables" else {}}).encode()
    become = b"TD\x01" + packed({"type": "Become", "env": rank, "argv": ["x"], "cwd": "/"})
    ends = {}
    for where in ("\0" + name, f"{folder}/socket"):
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end.bind(where)
        end.listen(16)
        ends[end.fileno()] = (end, answer if where[0] == "\0" else become)
    os.chmod(f"{folder}/socket", 0o777)
    print("listens", flush=True)
    links = []
    while True:
        for descriptor in select.select(list(ends), [], [])[0]:
            end, words = ends[descriptor]
            link, _ = end.accept()
            links.append(link)
            try:
                link.send(words)
                said = link.recv(1000)
                print("heard", len(said), flush=True)
                link.send(bytes(64))
            except OSError:
                print("heard 0", flush=True)


if __name__ == "__main__":
    main()
