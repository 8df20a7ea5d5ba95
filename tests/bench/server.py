"""python -m tests.bench.server: what clients get from env_server.py when many ask at once.

    python -m tests.bench.server                      maze at 1, 8, 64 and 256 connections; 1 minute
    python -m tests.bench.server --env textcraft --seconds 5 --connections 256

Each connection is a good client in a closed loop: create, reset, then a step as soon as the last is
answered, a new episode when one is over. All connections live in one thread (selectors), so that no
lock of the client's is measured.

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

from env_server import WIRES, Wire, local_server
from envs import load_env


class Connection:
    """One client: its socket, its session, and what it waits for."""

    def __init__(self, address, wire, tasks, action):
        self.address, self.wire, self.tasks, self.action = address, wire, tasks, action
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.opened, self.first, self.waits, self.received = time.perf_counter(), None, [], b""
        self.socket.connect_ex(address)
        self.verb, self.session, self.episodes = "create", None, 0

    def ask(self):
        """Send the next request."""
        body = {} if self.session is None else {self.wire.id_key: self.session}
        if self.verb == "reset":
            body[self.wire.task_key] = self.tasks[self.episodes % len(self.tasks)]
        elif self.verb == "step":
            body["action"] = self.action
        text = json.dumps(body)
        self.sent = time.perf_counter()
        self.socket.sendall((f"POST /{self.verb} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: "
                             f"application/json\r\nContent-Length: {len(text)}\r\n\r\n{text}"
                             ).encode())

    def hear(self):
        """Read what has come; when it is a whole reply, note its time and ask again."""
        self.received += self.socket.recv(2**16)
        head, _, body = self.received.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0] or -1)
        if len(body) != size:
            return
        now, self.received, answer = time.perf_counter(), b"", json.loads(body)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        self.first = self.first or now - self.opened
        if self.verb == "step":
            self.waits.append(now - self.sent)
        if self.verb == "create":
            self.session, self.verb = answer["id"], "reset"
        elif self.verb == "reset" or answer["done"]:
            self.episodes += self.verb == "reset"
            self.verb = "step" if self.verb == "reset" else "reset"
        self.ask()


def measure(name, number, seconds):
    """One row of the table."""
    module, wire = load_env(name), WIRES.get(name, Wire())
    action = module.ACTIONS[0] if hasattr(module, "ACTIONS") else "look around"
    with local_server(name) as (url,), selectors.DefaultSelector() as ready:
        host, port = url.removeprefix("http://").split(":")
        began = time.perf_counter()
        connections = [Connection((host, int(port)), wire, module.TEST, action)
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
    args = parser.parse_args()
    print(f"{args.env}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'connections':>11}{'steps/s':>9}{'p50':>9}{'p99':>9}{'first p50':>11}{'max':>8}"
          f"{'slow first':>12}")
    for number in args.connections:
        measure(args.env, number, args.seconds)


if __name__ == "__main__":
    main()
