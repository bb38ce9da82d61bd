# The two ends of tests/c, in Python: socket methods, makefile, selectors and subprocesses.
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading

TOTAL = 2_000_000
BLOCK = bytes((i * 7) & 255 for i in range(251))


def pattern(seed, at, n):
    skip = (at + seed) % 251
    return (BLOCK * (2 + n // 251))[skip:skip + n]


def put_all(s, seed):
    at = 0
    while at < TOTAL:
        n = min(1 + (at * 31 + 17) % 50000, TOTAL - at)
        s.sendall(pattern(seed, at, n))
        at += n


def get_all(s, seed, recv):
    at = 0
    while at < TOTAL:
        data = recv(s, min(1 + (at * 13 + 5) % 60000, TOTAL - at))
        assert data, f"end at {at}"
        assert data == pattern(seed, at, len(data)), f"wrong byte near {at}"
        at += len(data)


def recv_into(s, n):
    room = bytearray(n)
    return bytes(room[:s.recv_into(room)])


def recv_polled(s, n):
    p = select.poll()
    p.register(s, select.POLLIN)
    while True:
        assert p.poll(100000)
        try:
            return s.recv(n, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass


def recv_selected(s, n):
    assert select.select([s], [], [], 100)[0]
    return s.recv(n)


def recv_by_selector(s, n):
    with selectors.DefaultSelector() as selector:
        selector.register(s, selectors.EVENT_READ)
        assert selector.select(100)
        return s.recv(n)


def both(s, mine, theirs, recv):
    writer = threading.Thread(target=put_all, args=(s, mine))
    writer.start()
    get_all(s, theirs, recv)
    writer.join()


def spawn():
    out = subprocess.run(["echo", "child"], capture_output=True, check=True)
    print(out.stdout, os.system("exit 3"))


def alarm(s):
    """A handler that raises, out of a blocking recv."""
    class Late(Exception):
        pass

    def handler(number, frame):
        raise Late

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        s.recv(1)
        print("received")
    except Late:
        print("late")


def main():
    role, part, _warm, *rest = sys.argv[1:]
    recv = globals()[part]
    mine, theirs = (1, 2) if role == "server" else (2, 1)
    if role == "server":
        listener = socket.create_server(("127.0.0.1", 0))
        print("port", listener.getsockname()[1], flush=True)
        s, peer = listener.accept()
        assert peer[0] == "127.0.0.1"
    else:
        s = socket.create_connection(("127.0.0.1", int(rest[0])))
    for _ in range(3):
        both(s, mine, theirs, recv)
        spawn()
    if role == "server":
        print(s.recv(1))
    else:
        alarm(s)
        s.settimeout(0.02)
        try:
            s.recv(1)
        except TimeoutError as e:
            print("time-out:", e)
        s.settimeout(None)
        s.sendall(b"!")
    both(s, mine, theirs, recv)
    s.shutdown(socket.SHUT_WR)
    print(s.recv(10))
    s.close()


main()
