"""Stands between the ranks of a real job: a store that gives the ranks a proxy's address in place
of each other's, and that proxy.

The ranks are started with MASTER_ADDR and MASTER_PORT of MeddlingStore, which speaks as much of the
language of PyTorch's TCPStore as the ranks do. Every "127.0.0.1:port" that a rank publishes is
replaced by the port of a Relay to it. What a relay does to the bytes is up to FaultProxy.tamper,
which a test sets."""

import re
import socket
import struct
import threading

HELLO_BYTES = 120  # weft/net/tcp/internal/handshake.h: what the dialing rank says first
HELLO_STREAM, HELLO_FROM, HELLO_TO = slice(6, 8), slice(8, 12), slice(12, 16)
HANDSHAKE = {True: HELLO_BYTES + 32, False: 72 + 4}  # bytes of it from the dialer (True) and to it


def receive(connection, size):
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("closed")
        data += piece
    return data


class MeddlingStore:
    """PyTorch's TCPStore, for one job of a few ranks. rewrite(value) is what is stored in place of
    a value."""

    VALIDATE, SET, COMPARE_SET, GET, ADD, CHECK, WAIT, _, DELETE = range(9)
    PING = 13

    def __init__(self, rewrite):
        self.rewrite = rewrite
        self.values = {}
        self.changed = threading.Condition()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        try:
            while True:
                self.answer(connection, receive(connection, 1)[0])
        except (ConnectionError, OSError):
            connection.close()

    def answer(self, connection, query):
        def text():
            return receive(connection, struct.unpack("<Q", receive(connection, 8))[0])

        def texts():
            return [text() for _ in range(struct.unpack("<Q", receive(connection, 8))[0])]

        def send_text(value):
            connection.sendall(struct.pack("<Q", len(value)) + value)

        if query == self.VALIDATE:
            receive(connection, 4)
        elif query == self.PING:
            connection.sendall(receive(connection, 4))
        elif query == self.SET:
            self.store(text(), self.rewrite(text()))
        elif query == self.COMPARE_SET:
            key, expected, desired = text(), text(), text()
            if self.values.get(key, b"") == expected:
                self.store(key, self.rewrite(desired))
            send_text(self.values.get(key, expected))
        elif query == self.GET:
            send_text(self.values[text()])
        elif query == self.ADD:
            key, amount = text(), struct.unpack("<q", receive(connection, 8))[0]
            with self.changed:
                total = int(self.values.get(key, b"0")) + amount
                self.values[key] = str(total).encode()
                self.changed.notify_all()
            connection.sendall(struct.pack("<q", total))
        elif query == self.CHECK:
            keys = texts()
            connection.sendall(bytes([0 if all(key in self.values for key in keys) else 1]))
        elif query == self.WAIT:
            keys = texts()
            with self.changed:
                self.changed.wait_for(lambda: all(key in self.values for key in keys), 30)
            connection.sendall(b"\0")
        elif query == self.DELETE:
            connection.sendall(struct.pack("<q", 0 if self.values.pop(text(), None) is None else 1))
        else:
            raise ConnectionError(f"query {query} is not known here")

    def store(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def close(self):
        self.listener.close()


class Link:
    """One connection between two ranks, through the proxy. `near` is the side of the rank that
    dialed."""

    def __init__(self, near, far):
        self.near, self.far = near, far
        self.stream = self.dialer = self.acceptor = None
        self.passed = {True: 0, False: 0}  # bytes from the dialer, to it

    def cut(self):
        for end in (self.near, self.far):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class FaultProxy:
    """The store and the proxies of one job. tamper(link, outward, data) -> data to pass on in the
    same direction; it may do anything else."""

    def __init__(self):
        self.tamper = lambda link, outward, data: data
        self.links = []
        self.listeners = []
        self.lock = threading.Lock()
        self.store = MeddlingStore(self.rewrite)

    def rewrite(self, value):
        return re.sub(
            rb"127\.0\.0\.1:(\d+)",
            lambda found: b"127.0.0.1:%d" % self.relay_to(int(found[1])),
            value,
        )

    def relay_to(self, port):
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.listeners.append(listener)
        threading.Thread(target=self.accept, args=(listener, port), daemon=True).start()
        return listener.getsockname()[1]

    def accept(self, listener, port):
        while True:
            try:
                near, _ = listener.accept()
                link = Link(near, socket.create_connection(("127.0.0.1", port)))
            except OSError:
                return
            for end in (link.near, link.far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self.pass_on, args=(link, True), daemon=True).start()
            threading.Thread(target=self.pass_on, args=(link, False), daemon=True).start()

    def pass_on(self, link, outward):
        source, sink = (link.near, link.far) if outward else (link.far, link.near)
        try:
            if outward:
                self.greet(link)
            while data := source.recv(1 << 16):
                # the handshake passes as it is
                held = max(0, HANDSHAKE[outward] - link.passed[outward])
                link.passed[outward] += len(data)
                if held:
                    sink.sendall(data[:held])
                if data[held:] and (changed := self.tamper(link, outward, data[held:])):
                    sink.sendall(changed)
        except OSError:
            pass
        link.cut()

    def greet(self, link):
        hello = receive(link.near, HELLO_BYTES)
        link.stream = int.from_bytes(hello[HELLO_STREAM], "little")
        link.dialer = int.from_bytes(hello[HELLO_FROM], "little")
        link.acceptor = int.from_bytes(hello[HELLO_TO], "little")
        link.passed[True] += len(hello)
        with self.lock:
            self.links.append(link)
        link.far.sendall(hello)

    def close(self):
        self.store.close()
        for listener in self.listeners:
            listener.close()
        for link in self.links:
            link.cut()
