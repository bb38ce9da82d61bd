# UDP sockets of every kind that `rsock stat` tells apart. Prints their ports, and ends when it is told to.
import socket
import sys
import time

SO_TIMESTAMP = 29


def new(*options):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for level, name in options:
        s.setsockopt(level, name, 1)
    s.bind(("127.0.0.1", 0))
    s.settimeout(20)
    return s


def exchange(a, b, n):
    for i in range(n):
        a.sendto(b"there", b.getsockname())
        assert b.recv(100) == b"there"
        b.sendto(b"back", a.getsockname())
        assert a.recv(100) == b"back"
        if i >= 16:
            # So that the two find each other with few of them.
            time.sleep(0.002)


near, far = new(), new()
exchange(near, far, 64)
# To a socket that never opens, because the kernel chooses the receiver.
shared = new((socket.SOL_SOCKET, socket.SO_REUSEPORT))
stamped = new((socket.SOL_SOCKET, SO_TIMESTAMP))
exchange(shared, stamped, 24)
lonely = new()
far.connect(near.getsockname())
for _ in range(8):
    near.sendto(b"none receives", lonely.getsockname())
lonely.setblocking(False)
for _ in range(9):
    try:
        lonely.recv(100)
    except BlockingIOError:
        pass
sockets = [near, far, shared, stamped, lonely]
print(*[s.getsockname()[1] for s in sockets], flush=True)
sys.stdin.readline()
