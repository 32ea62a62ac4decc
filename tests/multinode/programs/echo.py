"""A server that announces when it listens, and then echoes: `echo.py PORT`."""

import os
import socket
import sys

server = socket.create_server(("", int(sys.argv[1])))
os.write(1, b"listens\n")
while True:
    link, _ = server.accept()
    while text := link.recv(10):
        link.send(text)
