"""Echoes over many connections between two processes, each waiting in one epoll set.

    many_streams.py server                  prints "port N"
    many_streams.py client PORT N TRIPS     prints "trips" after so many messages of each connection

The client then does what each line of standard input says ("look", "fork") and prints "done". Both
end when standard input does.
"""

import os
import select
import socket
import sys

SIZE = 32


def serve():
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    print("port", listener.getsockname()[1], flush=True)
    waits = select.epoll()
    waits.register(listener, select.EPOLLIN)
    waits.register(sys.stdin, select.EPOLLIN)
    streams = {}
    while True:
        for number, _ in waits.poll():
            if number == sys.stdin.fileno():
                return
            if number == listener.fileno():
                stream, _ = listener.accept()
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                streams[stream.fileno()] = stream
                waits.register(stream, select.EPOLLIN)
            elif data := streams[number].recv(SIZE):
                streams[number].sendall(data)
            else:
                waits.unregister(number)
                streams.pop(number).close()


def ask(port, n, trips):
    waits = select.epoll()
    streams = {}
    for _ in range(n):
        stream = socket.create_connection(("127.0.0.1", port))
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        streams[stream.fileno()] = stream
        waits.register(stream, select.EPOLLIN)
    for trip in range(trips):
        send(streams, trip)
        receive(waits, streams, trip)
    print("trips", flush=True)
    for line in sys.stdin:
        {"look": look, "fork": fork}[line.strip()](waits, streams)
        print("done", flush=True)


def message(number, trip):
    return b"%15d %15d\n" % (number, trip)


def send(streams, trip):
    for number, stream in streams.items():
        stream.sendall(message(number, trip))


def receive(waits, streams, trip):
    left = dict.fromkeys(streams, b"")
    while left:
        for number, _ in waits.poll():
            left[number] += streams[number].recv(SIZE)
            if len(left[number]) == SIZE:
                assert left.pop(number) == message(number, trip)


def look(waits, streams):
    """Asks `poll` and another set whether the set is ready."""
    polls = select.poll()
    polls.register(waits, select.POLLIN)
    outer = select.epoll()
    outer.register(waits, select.EPOLLIN)
    for trip in range(100):
        assert not polls.poll(0) and not outer.poll(0)
        send(streams, trip)
        assert (polls, outer)[trip % 2].poll()
        assert (outer, polls)[trip % 2].poll()
        receive(waits, streams, trip)


def fork(waits, streams):
    """Forks a child that asks the set, which has nothing, and goes on in the parent."""
    child = os.fork()
    if not child:
        os._exit(len(waits.poll(0)))
    assert os.waitpid(child, 0)[1] == 0
    for trip in range(100):
        send(streams, trip)
        receive(waits, streams, trip)


if sys.argv[1] == "server":
    serve()
else:
    ask(*map(int, sys.argv[2:]))
