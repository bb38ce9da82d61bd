"""Blocks that can be computed from their number, from one host to another.

serve ADDRESS PORT [fork]   receives from one client, in a forked child if so told, and checks each byte; with "late"
                            it reads nothing before its standard input ends; with "epoll" it waits in epoll
send ADDRESS PORT           sends until its standard input ends
trickle ADDRESS PORT        the same, so slowly that the receiver keeps up on a busy host too
epoll-send, epoll-trickle   as these, but waits in epoll
echo ADDRESS PORT           as send, and receives each block back (from "serve ADDRESS PORT back")

With KEEPALIVE in the environment an end that only waits notices a peer that is gone; with NONBLOCKING a client's
socket never blocks, from the connect on; with PIECE no call sends or receives more bytes than that.

Each end prints how many blocks went well, and how the stream ended: "end" or the name of an error.
"""

import errno
import os
import select
import socket
import struct
import sys
import time

LEN = 32768
PIECE = int(os.environ.get("PIECE", LEN))


class Epolled:
    """A socket that never blocks: a call that would waits in an edge-triggered epoll set."""

    def __init__(self, stream):
        self.stream = stream
        stream.setblocking(False)
        self.set = select.epoll()
        self.set.register(stream, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)

    def recv(self, most):
        while True:
            try:
                return self.stream.recv(most)
            except BlockingIOError:
                self.set.poll()

    def sendall(self, data):
        # A stream in a set leaves TCP only when a thread waits for the set.
        self.set.poll(0)
        while data:
            try:
                data = data[self.stream.send(data) :]
            except BlockingIOError:
                self.set.poll()

    def shutdown(self, how):
        self.stream.shutdown(how)

    def close(self):
        self.stream.close()


def block(number):
    return struct.pack(">Q", number) * (LEN // 8)


def receive(stream, back):
    number = 0
    while True:
        data = b""
        while len(data) < LEN:
            more = stream.recv(min(LEN - len(data), PIECE))
            if not more:
                if data != block(number)[: len(data)]:
                    raise SystemExit("wrong bytes at the end of block %d" % number)
                return number
            data += more
        if data != block(number):
            raise SystemExit("wrong bytes in block %d" % number)
        number += 1
        print("block %d" % number, flush=True)
        if back:
            stream.sendall(data)


def outcome(what):
    try:
        number = what()
        return "%d end" % number
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))


def keep_alive(stream):
    if os.environ.get("KEEPALIVE"):
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
            stream.setsockopt(socket.IPPROTO_TCP, option, 3)


def serve(address, port, how):
    listener = socket.create_server((address, port))
    print("listening", flush=True)
    stream, _ = listener.accept()
    keep_alive(stream)
    if how == "fork" or how == "back":
        child = os.fork()
        if child != 0:
            stream.close()
            _, status = os.waitpid(child, 0)
            sys.exit(os.waitstatus_to_exitcode(status))
    if how == "late":
        sys.stdin.read()
    if how == "epoll":
        stream = Epolled(stream)
    print(outcome(lambda: receive(stream, how == "back")), flush=True)
    stream.close()


def connect(address, port):
    stream = socket.socket()
    source = os.environ.get("SOURCE_PORT")
    if source:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stream.bind(("", int(source)))
    if os.environ.get("NONBLOCKING"):
        stream.setblocking(False)
        error = stream.connect_ex((address, port))
        if error == errno.EINPROGRESS:
            select.select([], [stream], [])
            error = stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        # Non-blocking to the system; Python polls where a call would block.
        stream.settimeout(3600)
    else:
        stream.connect((address, port))
    keep_alive(stream)
    return stream


def send(stream, piece=PIECE, pause=0):
    number = 0
    while not select.select([0], [], [], 0)[0]:
        data = block(number)
        for start in range(0, LEN, piece):
            stream.sendall(data[start : start + piece])
            if pause:
                time.sleep(pause)
        number += 1
    stream.shutdown(socket.SHUT_WR)
    # The peer closes when it has read everything.
    if stream.recv(1):
        raise SystemExit("bytes where none were sent")
    return number


def echo(stream):
    number = 0
    while not select.select([0], [], [], 0)[0]:
        data = block(number)
        stream.sendall(data)
        got = b""
        while len(got) < LEN:
            more = stream.recv(LEN - len(got))
            if not more:
                raise SystemExit("the end in block %d" % number)
            got += more
        if got != data:
            raise SystemExit("wrong bytes in block %d" % number)
        number += 1
    return number


def main():
    what, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    more = sys.argv[4] if len(sys.argv) > 4 else ""
    if what == "serve":
        serve(address, port, more)
        return
    stream = connect(address, port)
    if what.startswith("epoll-"):
        stream, what = Epolled(stream), what.removeprefix("epoll-")
    if what == "send":
        print(outcome(lambda: send(stream)), flush=True)
    elif what == "trickle":
        print(outcome(lambda: send(stream, 512, 0.01)), flush=True)
    else:
        print(outcome(lambda: echo(stream)), flush=True)
    stream.close()


main()
