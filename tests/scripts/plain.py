"""One end of a connection that carries bytes both ways at once and never blocks: what "ends MODE both" of
tests/rdma_c/ends.c does, by sockets alone.

plain.py server|client ADDRESS PORT select|poll|level|edge|oneshot|fork

The last word says how it waits; the last but one are ways of epoll. With "fork" it is as with "poll", after a
child has found out that the stream is not its to use.
"""

import errno
import os
import select
import socket
import sys

TOTAL = (3 << 20) + 17
STEP = 100003


def pattern(from_server):
    """The bytes that one end sends."""
    row = bytes(i * 31 & 255 for i in range(256))
    values = bytes(range(256))
    shifted = [row.translate(values[c:] + values[:c]) for c in range(256)]
    rows = (shifted[i * 7 + (i >> 8) + from_server & 255] for i in range((TOTAL >> 8) + 1))
    return b"".join(rows)[:TOTAL]


class Waiter:
    """Waits for one descriptor to be readable, or writable, or both."""

    def __init__(self, how, fd):
        self.how, self.fd = how, fd
        self.registered = None
        if how in ("level", "edge", "oneshot"):
            self.set = select.epoll()
        elif how in ("poll", "fork"):
            self.set = select.poll()

    def wait(self, reads, writes):
        """What may be tried; after an edge, both."""
        if self.how == "select":
            ready = select.select([self.fd] if reads else [], [self.fd] if writes else [], [])
            return bool(ready[0]), bool(ready[1])
        mask = (select.POLLIN if reads else 0) | (select.POLLOUT if writes else 0)
        if self.how == "edge":
            mask = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET
        elif self.how == "oneshot":
            mask |= select.EPOLLONESHOT
        if self.registered is None:
            self.set.register(self.fd, mask)
        elif mask != self.registered or self.how == "oneshot":
            self.set.modify(self.fd, mask)
        self.registered = mask
        # Input and output may come apart.
        events = 0
        for _, found in self.set.poll():
            events |= found
        failed = events & (select.POLLERR | select.POLLHUP)
        return bool(events & select.POLLIN or failed), bool(events & select.POLLOUT or failed)


def accept(address, port, how):
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen()
    listener.setblocking(False)
    waiter = Waiter(how, listener.fileno())
    while True:
        waiter.wait(True, False)
        try:
            stream, peer = listener.accept()
        except BlockingIOError:
            continue
        assert stream.getpeername() == peer, (stream.getpeername(), peer)
        assert stream.getsockname() == listener.getsockname(), stream.getsockname()
        stream.setblocking(False)
        return stream


def connect(address, port, how):
    stream = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    stream.setblocking(False)
    begun = stream.connect_ex((address, port))
    assert begun in (0, errno.EINPROGRESS), errno.errorcode[begun]
    Waiter(how, stream.fileno()).wait(False, True)
    assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    assert stream.getpeername()[:2] == (address, port), stream.getpeername()
    return stream


def send_some(stream, data, at, file):
    """The first bytes come from a file."""
    n = min(STEP, TOTAL - at)
    if at < STEP:
        return os.sendfile(stream.fileno(), file, at, n)
    return stream.send(data[at : at + n])


def fork_in_vain(stream):
    """A forked child cannot use the stream, and its end changes nothing."""
    child = os.fork()
    if child == 0:
        for what in (lambda: stream.recv(1), lambda: stream.send(b"x")):
            try:
                what()
                os._exit(1)
            except ConnectionResetError:
                pass
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child used it"


def run(stream, how, is_server):
    if how == "fork":
        fork_in_vain(stream)
    ours, theirs = pattern(is_server), pattern(not is_server)
    with open(os.memfd_create("ours"), "wb") as file:
        file.write(ours[: 2 * STEP])
        file.flush()
        waiter = Waiter(how, stream.fileno())
        sent, got = 0, 0
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        readable, writable = False, False
        while sent < TOTAL or got < TOTAL:
            if not (readable and got < TOTAL or writable and sent < TOTAL):
                more = waiter.wait(got < TOTAL, sent < TOTAL)
                readable, writable = readable or more[0], writable or more[1]
            if writable and sent < TOTAL:
                try:
                    sent += send_some(stream, ours, sent, file.fileno())
                except BlockingIOError:
                    writable = False
            if readable and got < TOTAL:
                try:
                    seen = stream.recv(100, socket.MSG_PEEK)
                    data = stream.recv(min(65529, TOTAL - got))
                    assert data, "the end after %d bytes" % got
                    assert data[: len(seen)] == seen, "another look, other bytes"
                    assert data == theirs[got : got + len(data)], "wrong bytes after %d" % got
                    got += len(data)
                except BlockingIOError:
                    readable = False
    stream.shutdown(socket.SHUT_RDWR)
    stream.close()


def main():
    role, address, port, how = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    begin = accept if role == "server" else connect
    run(begin(address, port, how), how, role == "server")


main()
