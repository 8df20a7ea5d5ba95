"""python -m tests.bench.server: what clients get from env_server.py when many ask at once.

    python -m tests.bench.server                      maze at 1, 8, 64 and 256 connections; 1 minute
    python -m tests.bench.server --env textcraft --seconds 5 --connections 256

Each connection is a client of one session in a closed loop: a reset, then a step as soon as the
last is answered, a new episode when one is over. All connections live in one thread (selectors), so
that no lock of the client's is measured.

    steps/s               of all connections together
    p50, p99              ms from a step to its reply
    first p50, max        ms from connect() to the reply of a connection's first request
    slow first            connections whose first reply took a second or more
"""
import argparse
import json
import os
import selectors
import socket
import statistics
import time

from env_server import local_server
from envs import load_env


class Connection:
    """One client: its socket, its session, and what it waits for."""

    def __init__(self, address, name, tasks, action):
        self.name, self.tasks, self.action = name, tasks, action
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.opened, self.first, self.waits, self.received = time.perf_counter(), None, [], b""
        self.socket.connect_ex(address)
        self.session, self.episodes, self.done = {}, 0, True

    def ask(self):
        """Send the next request: of one item."""
        if self.done:
            verb, item = "resets", dict(task=self.tasks[self.episodes % len(self.tasks)])
            self.episodes += 1
        else:
            verb, item = "steps", dict(action=self.action)
        text = json.dumps({"items": [self.session | item]})
        self.stepped, self.sent = not self.done, time.perf_counter()
        self.socket.sendall((f"POST /{self.name}/{verb} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                             "Content-Type: application/json\r\n"
                             f"Content-Length: {len(text)}\r\n\r\n{text}").encode())

    def hear(self):
        """Read what has come; when it is a whole reply, note its time and ask again."""
        self.received += self.socket.recv(2**16)
        head, _, body = self.received.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0] or -1)
        if len(body) != size:
            return
        now, self.received = time.perf_counter(), b""
        (answer,) = json.loads(body)["items"]
        if "error" in answer:
            raise RuntimeError(answer["error"])
        self.first = self.first or now - self.opened
        if self.stepped:
            self.waits.append(now - self.sent)
        self.session, self.done = {"id": answer["id"]}, answer["done"]
        self.ask()


def measure(name, number, seconds):
    """One row of the table."""
    module = load_env(name)
    action = module.ACTIONS[0] if hasattr(module, "ACTIONS") else "look around"
    with local_server(name) as url, selectors.DefaultSelector() as ready:
        host, port = url.removeprefix("http://").split(":")
        began = time.perf_counter()
        connections = [Connection((host, int(port)), name, module.TEST, action)
                       for _ in range(number)]
        for connection in connections:
            ready.register(connection.socket, selectors.EVENT_WRITE, connection)
        while time.perf_counter() < began + seconds:
            for key, event in ready.select(0.1):
                if event & selectors.EVENT_WRITE:           # just connected
                    ready.modify(key.fileobj, selectors.EVENT_READ, key.data)
                    key.data.ask()
                else:
                    key.data.hear()
        for connection in connections:
            connection.socket.close()
    waits = sorted(1000 * wait for connection in connections for wait in connection.waits)
    first = [1000 * (connection.first or seconds) for connection in connections]
    print(f"{number:11}{len(waits) / seconds:9.0f}{statistics.median(waits):9.1f}"
          f"{waits[len(waits) * 99 // 100]:9.1f}{statistics.median(first):11.0f}"
          f"{max(first):8.0f}{sum(wait >= 1000 for wait in first):12}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.
                                     RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="maze")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--quick", action="store_true", help="8 connections, a second")
    args = parser.parse_args()
    if args.quick:
        args.seconds, args.connections = 1, [8]
    print(f"{args.env}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'connections':>11}{'steps/s':>9}{'p50':>9}{'p99':>9}{'first p50':>11}{'max':>8}"
          f"{'slow first':>12}")
    for number in args.connections:
        measure(args.env, number, args.seconds)


if __name__ == "__main__":
    main()
