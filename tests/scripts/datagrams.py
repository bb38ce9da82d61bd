# Two ends that exchange datagrams: every way to receive, and what a program may do to a socket.
# Prints what it saw, which must not depend on how the datagrams travel. With WARM=past-the-kernel the client does
# not begin before its log says that they go past the kernel in both directions.
import ctypes

import errno
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import termios
import time

LOCAL = "127.0.0.1"
SO_TIMESTAMP = 29
SIZES = [0, 1, 40, 41, 48, 49, 64, 1400, 8171, 8172, 8184, 8185, 8192, 8193, 9000, 30000, 65000]


def pattern(n, seed):
    return bytes((i * 7 + seed) & 255 for i in range(min(n, 256))) * (1 + n // 256)


def body(kind, n, seed):
    return (kind + pattern(n, seed))[: n + 1]


def recvfrom(s):
    return s.recvfrom(70000)


def recv_into(s):
    room = bytearray(70000)
    n, peer = s.recvfrom_into(room)
    return bytes(room[:n]), peer


def recvmsg(s):
    data, control, flags, peer = s.recvmsg(70000, 64)
    assert (control, flags) == ([], 0), (control, flags)
    return data, peer


def recvmsg_into(s):
    first, second = bytearray(10), bytearray(70000)
    n, control, flags, peer = s.recvmsg_into([first, second])
    assert flags == 0
    return bytes(first + second)[:n], peer


def polled(s):
    p = select.poll()
    p.register(s, select.POLLIN)
    while True:
        assert p.poll(100000) == [(s.fileno(), select.POLLIN)]
        try:
            return s.recvfrom(70000, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass


def selected(s):
    assert select.select([s], [], [], 100)[0]
    return s.recvfrom(70000)


SETS = {}


def by_epoll(s):
    """In a set from its beginning; reads once for each event, and may block."""
    if s not in SETS:
        SETS[s] = select.epoll()
        SETS[s].register(s, select.EPOLLIN)
    assert {event for event in SETS[s].poll(100)} == {(s.fileno(), select.EPOLLIN)}
    return s.recvfrom(70000)


def by_edges(s):
    """As event loops do: reads until there is nothing, and only then waits."""
    if s not in SETS:
        s.setblocking(False)
        SETS[s] = select.epoll()
        SETS[s].register(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    while True:
        try:
            return s.recvfrom(70000)
        except BlockingIOError:
            assert SETS[s].poll(100)


def nonblocking(s):
    s.setblocking(False)
    while True:
        try:
            got = s.recvfrom(70000)
            s.setblocking(True)
            return got
        except BlockingIOError:
            pass


def with_timeout(s):
    s.settimeout(100)
    got = s.recvfrom(70000)
    s.settimeout(None)
    return got


RECVS = [recvfrom, recv_into, recvmsg, recvmsg_into, polled, selected, nonblocking, with_timeout]


class Message(ctypes.Structure):
    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]

    _fields_ = [
        ("name", ctypes.c_void_p),
        ("name_len", ctypes.c_uint),
        ("iov", ctypes.POINTER(Vector)),
        ("n_iov", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_len", ctypes.c_size_t),
        ("flags", ctypes.c_size_t),
        ("len", ctypes.c_size_t),
    ]


class Many:
    """Messages for sendmmsg and recvmmsg, on whatever is loaded first."""

    def __init__(self, n, room):
        self.bufs = [ctypes.create_string_buffer(room) for _ in range(n)]
        self.iovs = [Message.Vector(ctypes.addressof(b), room) for b in self.bufs]
        self.all = (Message * n)(*[Message(iov=ctypes.pointer(v), n_iov=1) for v in self.iovs])
        self.libc = ctypes.CDLL(None, use_errno=True)

    def send(self, s, datagrams):
        for buf, vector, data in zip(self.bufs, self.iovs, datagrams):
            ctypes.memmove(buf, data, len(data))
            vector.len = len(data)
        for message, vector in zip(self.all, self.iovs):
            message.iov = ctypes.pointer(vector)
        return self.libc.sendmmsg(s.fileno(), self.all, len(datagrams), 0)

    def recv(self, s, n, flags):
        n = self.libc.recvmmsg(s.fileno(), self.all, n, flags, None)
        if n < 0:
            return errno.errorcode[ctypes.get_errno()]
        return [self.bufs[i].raw[: self.all[i].len] for i in range(n)]


def log_of_mine():
    path = os.environ.get("RSOCK_LOG")
    mine = f"rsock {os.getpid()}/"
    with open(path) as log:
        return [line for line in log if line.startswith(mine)]


def is_warm():
    if os.environ.get("WARM") != "past-the-kernel":
        return True
    text = "".join(log_of_mine())
    return "kernel, Sends" in text and "kernel, Receives" in text


def exchange(s, to, data):
    s.sendto(data, to) if to else s.send(data)
    got = s.recv(70000)
    assert got == data, (len(got), len(data))


def warm(s, to):
    n = 0
    while n < 40 or n % 16 != 0 or not is_warm():
        exchange(s, to, b"e warm")
        n += 1


def serve(s, recv=recvfrom):
    """Answers until it is told to stop."""
    peer = None
    while True:
        data, peer = recv(s)
        kind = data[:1]
        if kind == b"q":
            s.sendto(b"q", peer)
            return
        if kind == b"b":
            # A burst is coming, of as many: what came, in its order.
            n = int(data[1:])
            s.sendto(b"go", peer)
            seen = []
            while len(seen) < n:
                got, peer = recv(s)
                number = struct.unpack("!I", got[:4])[0]
                assert got[4:] == pattern(len(got), number)[: len(got) - 4]
                seen.append(number)
            s.sendto(repr(seen).encode(), peer)
        elif kind == b"s":
            # As many as are asked for.
            send_as_asked(s, data, peer)
        elif kind == b"x":
            return
        else:
            s.sendto(data, peer)


def ask_for(s, n, to=None):
    """Datagrams that are there when this returns."""
    told = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    told.bind((LOCAL, 0))
    question = b"s%d %d" % (n, told.getsockname()[1])
    s.sendto(question, to) if to else s.send(question)
    told.recv(10)
    told.close()


def send_as_asked(s, question, peer):
    n, port = map(int, question[1:].split())
    for i in range(n):
        s.sendto(b"number %d" % i, peer)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tell:
        tell.sendto(b"done", (LOCAL, port))


def all_there(s):
    seen = []
    while True:
        try:
            seen.append(s.recv(100, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return seen


def sizes(s, to):
    for n in SIZES:
        for seed in range(3):
            exchange(s, to, body(b"e", n, seed))
    exchange(s, to, b"")
    print("sizes ok")


def order(s, to):
    for sizes in ([60] * 20, [60, 9000] * 10, [9000, 60, 60] * 7, [1400] * 20):
        s.sendto(b"b%d" % len(sizes), to) if to else s.send(b"b%d" % len(sizes))
        assert s.recv(100) == b"go"
        for i, n in enumerate(sizes):
            data = struct.pack("!I", i) + pattern(n, i)[: n - 4]
            s.sendto(data, to) if to else s.send(data)
        print("in order", s.recv(1000).decode())


def peeking(s, to):
    ask_for(s, 3)
    print(s.recv(100, socket.MSG_PEEK), s.recv(100, socket.MSG_PEEK), s.recv(3, socket.MSG_PEEK))
    room = bytearray(4)
    fcntl.ioctl(s, termios.FIONREAD, room)
    print("readable", struct.unpack("i", room)[0])
    print(s.recvmsg(4)[:3], s.recv_into(bytearray(4), 4, socket.MSG_TRUNC), s.recv(100))
    fcntl.ioctl(s, termios.FIONREAD, room)
    print("readable", struct.unpack("i", room)[0], s.getpeername() == to)
    ask_for(s, 1)
    print(os.read(s.fileno(), 100))
    ask_for(s, 2)
    print(os.readv(s.fileno(), [bytearray(3), bytearray(100)]), os.read(s.fileno(), 0), s.recv(9))
    os.write(s.fileno(), b"e written")
    print(s.recv(100))
    os.writev(s.fileno(), [b"e ", b"in ", b"pieces"])
    print(s.recv(100))


def waiting(s, to):
    def seen(f):
        try:
            return f()
        except OSError as e:
            return type(e).__name__, str(e)

    class Late(Exception):
        pass

    def handler(number, frame):
        raise Late

    print(seen(lambda: s.recv(10, socket.MSG_DONTWAIT)))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50_000))
    began = time.monotonic()
    print(seen(lambda: s.recv(10)), time.monotonic() - began > 0.04)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
    s.settimeout(0.02)
    print(seen(lambda: s.recv(10)))
    s.settimeout(None)
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        s.recv(1)
        print("received")
    except Late:
        print("late")
    print(select.select([s], [], [], 0.02), select.select([s], [s], [], 1)[1] == [s])
    exchange(s, None, b"e and on")


def forked(s, to):
    ask_for(s, 4)
    child = os.fork()
    if child == 0:
        print("child", s.recv(100), s.recv(100), flush=True)
        os._exit(0)
    print("ended", os.waitpid(child, 0)[1])
    # Forked while they lie in the queue, they were there for both.
    print("parent", all_there(s))
    exchange(s, None, b"e from the parent")
    child = os.fork()
    if child == 0:
        exchange(s, None, b"e from the child")
        os._exit(0)
    print("ended", os.waitpid(child, 0)[1])
    exchange(s, None, b"e from the parent again")


def watched(s, to):
    for flags in (select.EPOLLIN, select.EPOLLIN | select.EPOLLET):
        ask_for(s, 3)
        with select.epoll() as p:
            p.register(s, flags)
            seen = []
            while len(seen) < 3:
                assert p.poll(10)
                seen += all_there(s)
            print(seen, p.poll(0.05))
            ask_for(s, 2)
            while len(seen) < 5:
                assert p.poll(10)
                seen += all_there(s)
            print(seen)


def sets(s, to):
    """What sets say of a socket in them, of which what is here has come by the queue."""
    readable = [(s.fileno(), select.EPOLLIN)]
    levels, edges, outer = select.epoll(), select.epoll(), select.epoll()
    levels.register(s, select.EPOLLIN)
    edges.register(s, select.EPOLLIN | select.EPOLLET)
    outer.register(levels, select.EPOLLIN)
    other = select.epoll.fromfd(os.dup(levels.fileno()))
    print(levels.poll(0), edges.poll(0), outer.poll(0), other.poll(0))
    ask_for(s, 2)
    print(levels.poll(10) == readable, edges.poll(10) == readable, other.poll(10) == readable)
    print(outer.poll(10) == [(levels.fileno(), select.EPOLLIN)], edges.poll(0))
    print(s.recv(100), levels.poll(0) == readable)
    # A receiver that leaves a datagram unread is notified of the next all the same.
    ask_for(s, 1)
    print(edges.poll(10) == readable, s.recv(100), s.recv(100))
    print(levels.poll(0), outer.poll(0), other.poll(0), select.select([levels], [], [], 0)[0])
    levels.modify(s, select.EPOLLOUT)
    ask_for(s, 1)
    print(levels.poll(10) == [(s.fileno(), select.EPOLLOUT)])
    levels.modify(s, select.EPOLLIN)
    print(levels.poll(10) == readable, s.recv(100))
    levels.unregister(s)
    ask_for(s, 1)
    print(levels.poll(0.02), edges.poll(10) == readable, s.recv(100))
    levels.register(s, select.EPOLLIN)
    print(levels.poll(0.02))
    # From here on the kernel's.
    once = select.epoll()
    once.register(s, select.EPOLLIN | select.EPOLLONESHOT)
    ask_for(s, 2)
    print(once.poll(10) == readable, once.poll(0), s.recv(100), levels.poll(10) == readable)
    once.modify(s, select.EPOLLIN | select.EPOLLONESHOT)
    print(once.poll(10) == readable, s.recv(100), levels.poll(0))


def connected(s, to):
    stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stranger.bind((LOCAL, 0))
    for i in range(40):
        # To the server, so that it looks like a peer to talk to.
        exchange(stranger, to, b"e stranger")
    for i in range(40):
        stranger.sendto(b"stranger", s.getsockname())
    exchange(s, None, b"e friend")
    print(all_there(s))
    ask_for(s, 2)
    s.connect(stranger.getsockname())
    s.send(b"hello")
    print(stranger.recvfrom(100)[0], all_there(s))
    stranger.connect(s.getsockname())
    for i in range(100):
        stranger.send(b"ping %d" % i)
        assert s.recv(100) == b"ping %d" % i
        s.send(b"pong")
        assert stranger.recv(100) == b"pong"
    s.connect(to)
    exchange(s, None, b"e again")
    print("again")


def gone(s, to):
    s.send(b"x")
    while True:
        try:
            s.send(b"e refused?")
            time.sleep(0.01)
        except ConnectionRefusedError as e:
            print(e)
            return


def doubled(s, to):
    d = s.dup()
    ask_for(s, 2)
    print(s.recv(100), d.recv(100))
    s.close()
    exchange(d, None, b"e by the other name")
    warm(d, None)
    return d


def joined(s, to):
    """Another socket takes the port: the kernel gives it what follows."""
    other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    other.bind(to)
    n = 0
    while not select.select([other], [], [], 0.01)[0]:
        s.send(b"e socket")
        n += 1
    print(other.recv(100))
    other.close()
    all_there(s)
    while True:
        s.send(b"e mine")
        if select.select([s], [], [], 0.1)[0]:
            break
    time.sleep(0.1)
    all_there(s)


def many(s, to):
    batch = Many(16, 100)
    print(batch.send(s, [b"e %d" % i for i in range(16)]))
    print(batch.recv(s, 16, 0))
    ask_for(s, 5)
    print(batch.recv(s, 16, socket.MSG_DONTWAIT), batch.recv(s, 16, socket.MSG_DONTWAIT))
    ask_for(s, 3)
    print(batch.recv(s, 16, 0x10000))
    # Some past the kernel, some not, to the peer or by its address; and one that is too long for both.
    batch = Many(16, 70000)
    print(batch.send(s, [b"e %d" % i + bytes(9000 if i in (5, 6) else 0) for i in range(16)]))
    print([len(s.recv(70000)) for _ in range(16)])
    print(batch.send(s, [b"e 1", b"e 2", bytes(66000), b"e 3"]), s.recv(10), s.recv(10))
    print(batch.send(s, [bytes(66000), b"e 3"]), errno.errorcode[ctypes.get_errno()])


def options(s, to):
    """From here on only the kernel will do; what is in the queue comes all the same."""
    ask_for(s, 3)
    s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)
    print(all_there(s))
    s.send(b"e when?")
    data, control, _, _ = s.recvmsg(100, 100)
    print(data, [kind for _, kind, _ in control])
    ask_for(s, 2)
    print(all_there(s))


def shut(s, to):
    ask_for(s, 2)
    s.shutdown(socket.SHUT_RD)
    print(s.recv(100), s.recv(100), s.recv(100))
    s.shutdown(socket.SHUT_WR)
    try:
        s.send(b"e")
    except OSError as e:
        print(e)


def plain(s, to):
    pass


def client(part, port):
    wild = part == "wildcard"
    to = ("127.0.0.2" if wild else LOCAL, port)
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if wild or part.startswith("recv:"):
        warm(s, to)
        sizes(s, to)
        order(s, to)
        if wild:
            s.sendto(b"e from", to)
            data, peer = s.recvfrom(100)
            print(data, peer[0], peer[1] == port)
            exchange(s, (LOCAL, port), b"e and here?")
    else:
        s.connect(to)
        warm(s, None)
        s = globals()[part](s, to) or s
        if part in ("gone", "shut"):
            s.close()
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        if part == "gone":
            return
    s.sendto(b"q", to) if wild or part.startswith("recv:") or part == "shut" else s.send(b"q")
    print("end", s.recv(100))


def main():
    role, part, _warm, *rest = sys.argv[1:]
    if role == "client":
        return client(part, int(rest[0]))
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if part == "joined":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # A port that no other program takes when this one has ended.
    s.bind(("0.0.0.0" if part == "wildcard" else LOCAL, int(os.environ["OWN_PORT"])))
    print("port", s.getsockname()[1], flush=True)
    recv = globals()[part[5:]] if part.startswith("recv:") else recvfrom
    serve(s, recv)
    s.close()


if __name__ == "__main__":
    main()
