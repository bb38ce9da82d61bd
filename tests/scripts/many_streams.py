"""Echoes over many connections between two processes, each waiting in one epoll set.

    many_streams.py server                  prints "port N"
    many_streams.py client PORT N TRIPS     prints "trips" after so many messages of each connection

Both end when standard input does.
"""

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
        for number, stream in streams.items():
            stream.sendall(b"%15d %15d\n" % (number, trip))
        left = dict.fromkeys(streams, b"")
        while left:
            for number, _ in waits.poll():
                left[number] += streams[number].recv(SIZE)
                if len(left[number]) == SIZE:
                    assert left.pop(number) == b"%15d %15d\n" % (number, trip)
    print("trips", flush=True)
    sys.stdin.read()


if sys.argv[1] == "server":
    serve()
else:
    ask(*map(int, sys.argv[2:]))
