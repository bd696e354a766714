"""A TCP proxy that delays what clients send, like a distant server.

Every block that a client sends is passed on after a fixed time, and blocks do not wait for each
other, so that bandwidth remains. Replies are passed on at once. Run as a program, it prints its
port and serves until its input ends:

    python bench/compare_lib/delay_proxy.py HOST PORT MILLISECONDS
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time

BLOCK_BYTES = 1 << 18


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Passes replies on at once."""
    block = bytearray(BLOCK_BYTES)
    view = memoryview(block)
    try:
        while length := source.recv_into(block):
            target.sendall(view[:length])
        target.shutdown(socket.SHUT_WR)
    except OSError:
        target.close()


def _read_ahead(source: socket.socket, delay: float, blocks: queue.Queue) -> None:
    """Puts what was received into `blocks`, with the time at which it is to be sent."""
    while True:
        try:
            block = source.recv(BLOCK_BYTES)
        except OSError:
            block = b""
        blocks.put((time.monotonic() + delay, block))
        if not block:
            return


def _send_delayed(target: socket.socket, blocks: queue.Queue) -> None:
    try:
        while True:
            due, block = blocks.get()
            if not block:
                target.shutdown(socket.SHUT_WR)
                return
            time.sleep(max(0.0, due - time.monotonic()))
            target.sendall(block)
    except OSError:
        target.close()


def _serve(client: socket.socket, address: tuple[str, int], delay: float) -> None:
    server = socket.create_connection(address)
    for end in (client, server):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    blocks: queue.Queue = queue.Queue()
    for work in (
        lambda: _pass_on(server, client),
        lambda: _read_ahead(client, delay, blocks),
        lambda: _send_delayed(server, blocks),
    ):
        threading.Thread(target=work, daemon=True).start()


def main() -> None:
    host, port, milliseconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    while True:
        client, _ = listener.accept()
        _serve(client, (host, port), milliseconds / 1000)


if __name__ == "__main__":
    main()
