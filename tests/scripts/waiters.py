# A thread waits for a UDP socket that is unused so far, together with one that has a queue already, while another
# thread begins to use the first. The waiter hears of its datagrams whichever way they come.
import os
import select
import socket
import sys
import threading
import time

ROUNDS = 6
# Seconds after which a waiter takes it that nothing comes.
LIMIT = 10


def new():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("127.0.0.1", 0))
    return s


def talk_to_itself(s):
    """As often as it takes to get a queue and to find it, if nothing is in the way, and seldom more often."""
    for i in range(48):
        s.sendto(b"x", s.getsockname())
        try:
            s.recv(100, socket.MSG_DONTWAIT)
        except BlockingIOError:
            # The other thread has looked at it, and not taken it: it comes.
            pass
        if i >= 16:
            time.sleep(0.001)


def by_poll(sockets):
    p = select.poll()
    for s in sockets:
        p.register(s, select.POLLIN)
    return lambda: [fd for fd, _ in p.poll(LIMIT * 1000)]


def by_select(sockets):
    return lambda: [s.fileno() for s in select.select(sockets, [], [], LIMIT)[0]]


def by_epoll(sockets):
    p = select.epoll()
    for s in sockets:
        p.register(s, select.EPOLLIN)
    return lambda: [fd for fd, _ in p.poll(LIMIT)]


def hears(busy, wait):
    idle = new()
    heard = []

    def waiter():
        # It runs on a CPU of its own, so what is received at once does not end its sleep.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        ready = wait([busy, idle])
        while True:
            found = ready()
            if not found:
                return heard.append("nothing")
            try:
                if idle.recv(100, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"last":
                    return heard.append("the last")
            except BlockingIOError:
                pass

    thread = threading.Thread(target=waiter)
    thread.start()
    # It sleeps by then, or it makes the round easier.
    time.sleep(0.02)
    talk_to_itself(idle)
    while True:
        try:
            idle.recv(100, socket.MSG_DONTWAIT)
        except BlockingIOError:
            break
    idle.sendto(b"last", idle.getsockname())
    thread.join()
    return heard[0]


def main():
    wait = {"poll": by_poll, "select": by_select, "epoll": by_epoll}[sys.argv[1]]
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    busy = new()
    talk_to_itself(busy)
    print([hears(busy, wait) for _ in range(ROUNDS)])


main()
