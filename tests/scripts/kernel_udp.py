# Two ends that use UDP sockets as only the kernel can serve them, or in ways of which a queue beside them must not be
# noticed. Prints what it saw, as datagrams.py does, and uses its helpers.
import ctypes
import errno
import os
import select
import socket
import struct
import sys
import time

sys.dont_write_bytecode = True
from datagrams import LOCAL, Many, Message, all_there, ask_for, exchange, log_of_mine, order, send_as_asked, sizes

IP_TOS, IP_TTL, IP_RECVTTL, IP_RECVTOS, IP_PKTINFO, IP_RECVERR = 1, 2, 12, 13, 8, 11
SOL_UDP, UDP_CORK, UDP_SEGMENT, UDP_GRO = 17, 1, 103, 104
GROUP = "239.77.1.2"
BROADCAST = "127.255.255.255"
LOCAL6 = "::1"
MANY = 40


def udp(family=socket.AF_INET):
    return socket.socket(family, socket.SOCK_DGRAM)


def bound(ip, *options, port=0):
    s = udp(socket.AF_INET6 if ":" in ip else socket.AF_INET)
    for level, name in options:
        s.setsockopt(level, name, 1)
    s.bind((ip, port))
    return s


def warm(s, to):
    """Until its datagrams go past the kernel in both directions, where they are to."""
    before = len(log_of_mine()) if "WARM" in os.environ else 0

    def is_warm():
        mine = [line for line in log_of_mine()[before:] if f"fd {s.fileno()}: datagrams past" in line]
        return all(any(way in line for line in mine) for way in ("Sends", "Receives"))

    n = 0
    while n < MANY or "WARM" in os.environ and not is_warm():
        exchange(s, to, b"e warm")
        n += 1


def seen(f, *args):
    """What it returns, or the error."""
    try:
        return f(*args)
    except OSError as e:
        return errno.errorcode[e.errno]


def told(control):
    """Control data, so that it can be compared."""
    shown = []
    for level, kind, data in control:
        if (level, kind) == (socket.IPPROTO_IP, IP_PKTINFO):
            _, at, to = struct.unpack("I4s4s", data)
            shown.append(("to", socket.inet_ntoa(at), socket.inet_ntoa(to)))
        elif (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):
            shown.append(("to", socket.inet_ntop(socket.AF_INET6, data[:16])))
        elif (level, kind) == (socket.IPPROTO_IP, IP_RECVERR):
            number, origin, icmp, code = struct.unpack("IBBB", data[:7])
            shown.append((errno.errorcode[number], origin, icmp, code))
        else:
            shown.append((level, kind, data.hex()))
    return shown


def serve(s):
    """Answers until it is told to stop; says what it knows of the senders."""
    control = bound(LOCAL)
    while True:
        data, about, flags, peer = s.recvmsg(70000, 256)
        kind = data[:1]
        if kind == b"q":
            s.sendto(b"q", peer)
            return
        if kind == b"x":
            return
        if kind == b"s":
            # As many as are asked for.
            send_as_asked(s, data, peer)
        elif kind == b"b":
            burst(s, int(data[1:]), peer)
        elif kind == b"c":
            # As many are coming: how long they are and how they begin, and what was said beside them.
            s.sendto(b"%d" % control.getsockname()[1], peer)
            # Not before all have been sent.
            control.recv(10)
            got = [s.recvmsg(70000, 256) for _ in range(int(data[1:]))]
            got = [(len(data), data[:6], told(about), flags) for data, about, flags, _ in got]
            s.sendto(repr((got, all_there(s))).encode(), peer)
        elif kind == b"o":
            level, name, *rest = eval(data[1:])
            for value in rest:
                s.setsockopt(level, name, value)
            s.sendto(b"set", peer)
        elif kind == b"w":
            # The own address, and the peer's.
            s.sendto(repr((told(about), flags, peer[0], peer[2:])).encode(), peer)
        elif kind == b"a":
            # An answer from where it was sent to.
            s.sendmsg([data], [a for a in about if a[1] == IP_PKTINFO], 0, peer)
        elif kind == b"m":
            # To all sockets of the group, or of a broadcast.
            n, to, port = eval(data[1:])
            for i in range(n):
                s.sendto(b"all %d" % i, (to, port))
            s.sendto(b"sent", peer)
        else:
            s.sendto(data, peer)


def burst(s, n, peer):
    s.sendto(b"go", peer)
    numbers = []
    while len(numbers) < n:
        data, peer = s.recvfrom(70000)
        numbers.append(struct.unpack("!I", data[:4])[0])
    s.sendto(repr(numbers).encode(), peer)


def ask(s, question, to=None):
    s.sendto(question, to) if to else s.send(question)
    return s.recv(70000).decode()


def set_there(s, level, name, value, to=None):
    assert ask(s, b"o" + repr((level, name, value)).encode(), to) == "set"


def collected(s, n, send, to=None):
    """What the server gets of `n` datagrams that `send` sends, while it does not look."""
    control = int(ask(s, b"c%d" % n, to))
    send()
    done = udp()
    done.sendto(b"done", (LOCAL, control))
    return s.recv(70000).decode()


def destinations(s, to):
    """The server has asked to be told of addresses from the beginning, and answers from them."""
    for ip in (LOCAL, "127.0.0.2", "127.0.0.3"):
        to = (ip, to[1])
        print(sorted({ask(s, b"w", to) for _ in range(MANY)}))
        answers = set()
        for _ in range(MANY):
            s.sendto(b"a", to)
            data, peer = s.recvfrom(10)
            answers.add((data, peer[0], peer[1] == to[1]))
        print(answers)


def destinations6(s, to):
    print({ask(s, b"w", to) for _ in range(MANY)})


def destinations_later(s, to):
    """It asks for that when datagrams have gone past the kernel."""
    warm(s, to)
    print(ask(s, b"w", to))
    for name in (IP_PKTINFO, IP_RECVTTL, IP_RECVTOS):
        set_there(s, socket.IPPROTO_IP, name, 1, to)
        print({ask(s, b"w", to) for _ in range(MANY)})
        print(collected(s, 3, lambda: [s.sendto(b"thing", to) for _ in range(3)], to))
    for name in (IP_PKTINFO, IP_RECVTTL, IP_RECVTOS):
        set_there(s, socket.IPPROTO_IP, name, 0, to)
    print({ask(s, b"w", to) for _ in range(MANY)})


def destinations_later6(s, to):
    warm(s, to)
    set_there(s, socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1, to)
    print({ask(s, b"w", to) for _ in range(MANY)})


def own_source(s, to):
    """Control data that says from where to send: of one datagram, after others past the kernel."""
    warm(s, to)
    say = [(socket.IPPROTO_IP, IP_PKTINFO, struct.pack("I4s4s", 0, socket.inet_aton("127.0.0.9"), bytes(4)))]

    def send():
        s.sendto(b"1", to)
        s.sendmsg([b"2"], say, 0, to)
        s.sendto(b"3", to)

    print(collected(s, 3, send, to))
    s.sendmsg([b"w"], say, 0, to)
    print(s.recv(100))
    print({ask(s, b"w", to) for _ in range(MANY)})


def again_and_again(s, data, to):
    """What becomes of it, for as long as it takes to find a peer there."""
    results = set()
    for _ in range(2 * MANY):
        results.add(seen(s.sendto, data, to))
        time.sleep(0.004)
    return results


def join(s, ip=GROUP):
    where = socket.inet_aton(ip) + socket.inet_aton(LOCAL)
    s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, where)


def to_groups(s):
    s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOCAL))


def multicast(s, to):
    """To a server that joins a group when datagrams have gone past the kernel."""
    warm(s, to)
    to_groups(s)
    where = socket.inet_aton(GROUP) + socket.inet_aton(LOCAL)
    set_there(s, socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, where, to)
    for i in range(MANY):
        exchange(s, (GROUP, to[1]), b"e to the group")
        exchange(s, to, b"e to it")
    print("heard")


def multicast_heard_by_the_way(s, to):
    """To a server that has not joined: another socket of this host has, and its port is not bound to an address."""
    warm(s, to)
    to_groups(s)
    member = bound("0.0.0.0")
    join(member)
    for i in range(MANY):
        exchange(s, (GROUP, to[1]), b"e to the group")
        exchange(s, to, b"e to it")

    def send():
        for i in range(6):
            s.sendto(b"%d" % i, (GROUP, to[1]) if i in (2, 3) else to)

    print("heard", collected(s, 6, send, to))
    member.setsockopt(socket.IPPROTO_IP, socket.IP_DROP_MEMBERSHIP, socket.inet_aton(GROUP) + socket.inet_aton(LOCAL))


def to_all(s, to, ip, sockets):
    port = sockets[0].getsockname()[1]
    print(ask(s, b"m" + repr((MANY, ip, port)).encode(), to))
    for one in sockets:
        print([one.recv(100) for _ in range(MANY)] == [b"all %d" % i for i in range(MANY)], all_there(one))


def sharing(n):
    """Sockets of one port."""
    sockets = [udp() for _ in range(n)]
    for one in sockets:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("0.0.0.0", sockets[0].getsockname()[1]))
    return sockets


def multicast_to_two(s, to):
    warm(s, to)
    set_there(s, socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOCAL), to)
    sockets = sharing(2)
    for one in sockets:
        join(one)
    to_all(s, to, GROUP, sockets)


def broadcast(_, to):
    s = bound(LOCAL)
    warm(s, to)
    broadcast = (BROADCAST, to[1])
    print(again_and_again(s, b"not allowed", broadcast))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    answers = set()
    for _ in range(2 * MANY):
        s.sendto(b"e to all", broadcast)
        data, peer = s.recvfrom(100)
        answers.add((data, peer[0], peer[1] == to[1]))
        time.sleep(0.004)
    print(answers)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 0)
    print(again_and_again(s, b"not allowed", broadcast))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    set_there(s, socket.SOL_SOCKET, socket.SO_BROADCAST, 1, to)
    sockets = sharing(1)
    to_all(s, to, BROADCAST, sockets)
    to_all(s, to, BROADCAST, sockets)
    other = udp()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    other.bind(sockets[0].getsockname())
    to_all(s, to, BROADCAST, [*sockets, other])


def everything(s, to):
    warm(s, to)
    sizes(s, to)
    order(s, to)
    print(ask(s, b"w", to))
    s.sendto(b"e", to)
    data, peer = s.recvfrom(10)
    print(data, peer[0], peer[1] == to[1], peer[2:])
    for flags in (socket.MSG_PEEK, 0):
        ask_for(s, 2, to)
        print([s.recvfrom(100, flags)[0] for _ in range(2)], all_there(s))


def named_otherwise(s, to):
    """To a server whose address is said in the other family now and then, which is for the kernel to understand."""
    libc = ctypes.CDLL(None, use_errno=True)
    name = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8s", to[1], socket.inet_aton(LOCAL), bytes(8))
    warm(s, to)

    def send():
        for i in range(6):
            data = b"%d" % i
            sent = libc.sendto(s.fileno(), data, 1, 0, name, 16) if i in (2, 3) else s.sendto(data, to)
            assert sent == 1, (i, sent)

    print(collected(s, 6, send, to))
    for _ in range(MANY):
        assert libc.sendto(s.fileno(), b"e", 1, 0, name, 16) == 1
        print(s.recvfrom(10)[0])


def six_only(s, to):
    """No peer is reached by IPv4 from a socket for IPv6 alone, although there is a queue."""
    warm(s, to)
    only = udp(socket.AF_INET6)
    only.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    only.bind(("::", 0))
    print(again_and_again(only, b"e", to))
    exchange(s, to, b"e and others are")


def message(data, to=None, control=b""):
    """A message for sendmmsg with what has to stay alive for it."""
    buf = ctypes.create_string_buffer(data, len(data))
    vector = Message.Vector(ctypes.addressof(buf), len(data))
    about = ctypes.create_string_buffer(control, len(control))
    m = Message(iov=ctypes.pointer(vector), n_iov=1)
    if control:
        m.control, m.control_len = ctypes.addressof(about), len(control)
    return m, (buf, vector, about)


def control(level, kind, data):
    header = struct.pack("Nii", 16 + len(data), level, kind)
    return header + data + bytes(-len(data) % 8)


def many_with_control(s, to):
    """Some of what one call sends has control data, and some is too long for a queue."""
    libc = ctypes.CDLL(None, use_errno=True)
    s.connect(to)
    warm(s, None)
    s.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
    tos = control(socket.IPPROTO_IP, IP_TOS, struct.pack("i", 0x10))
    segments = control(SOL_UDP, UDP_SEGMENT, struct.pack("H", 4))
    wrong = control(socket.IPPROTO_IP, IP_TTL, struct.pack("i", 4711))

    def send(*parts):
        parts = [message(*part) for part in parts]
        n = libc.sendmmsg(s.fileno(), (Message * len(parts))(*[m for m, _ in parts]), len(parts), 0)
        print(n if n >= 0 else errno.errorcode[ctypes.get_errno()])

    def batch():
        send((b"0",), (b"1",), (b"2", None, tos), (b"3",), (b"4" + bytes(9000),), (b"5",))

    print(collected(s, 6, batch))
    print(collected(s, 6, batch))
    print(collected(s, 5, lambda: send((b"0",), (b"1st 2nd 3rd ", None, segments), (b"4",))))
    print(collected(s, 2, lambda: send((b"0",), (b"1",), (b"2", None, wrong), (b"3",))))
    print(collected(s, 0, lambda: send((b"2", None, wrong), (b"3",))))


def many_received(s, to):
    """Where there is room for control data and names, and where there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    s.connect(to)
    warm(s, None)

    def receive(n, flags=socket.MSG_DONTWAIT):
        batch = Many(n, 6)
        names, about = [[ctypes.create_string_buffer(64) for _ in range(n)] for _ in range(2)]
        for m, name, control in zip(batch.all, names, about):
            m.name, m.name_len = ctypes.addressof(name), 5
            m.control, m.control_len = ctypes.addressof(control), 64
        got = libc.recvmmsg(s.fileno(), batch.all, n, flags, None)
        if got < 0:
            return errno.errorcode[ctypes.get_errno()]
        there = [(m.len, m.name_len, m.control_len, m.flags) for m in batch.all[:got]]
        return there, [buf.raw for buf in batch.bufs[:got]], [name.raw[:2] for name in names[:got]]

    ask_for(s, 3)
    print(receive(2), receive(4), receive(4))
    ask_for(s, 3)
    print(receive(4, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    print(receive(4, socket.MSG_TRUNC | socket.MSG_DONTWAIT))
    set_there(s, socket.IPPROTO_IP, IP_TTL, 9)
    ask_for(s, 3)
    s.setsockopt(socket.IPPROTO_IP, IP_RECVTTL, 1)
    print(all_there(s))
    ask_for(s, 3)
    print(receive(4))


def segments(s, to):
    s.connect(to)
    warm(s, None)
    one = [(SOL_UDP, UDP_SEGMENT, struct.pack("H", 100))]
    print(collected(s, 5, lambda: [s.send(b"before"), s.sendmsg([b"s" * 250], one), s.send(b"after")]))
    s.setsockopt(SOL_UDP, UDP_SEGMENT, 40)
    print(collected(s, 3, lambda: s.send(b"s" * 100)))
    s.setsockopt(SOL_UDP, UDP_SEGMENT, 0)
    print(collected(s, 1, lambda: s.send(b"s" * 100)))


def segments_together(s, to):
    """The server takes them as they were sent, from when datagrams have gone past the kernel."""
    s.connect(to)
    warm(s, None)
    one = [(SOL_UDP, UDP_SEGMENT, struct.pack("H", 100))]
    set_there(s, SOL_UDP, UDP_GRO, 1)
    print(collected(s, 3, lambda: [s.send(b"before"), s.sendmsg([b"s" * 250], one), s.send(b"after")]))


def corked(s, to):
    s.connect(to)
    warm(s, None)
    print(collected(s, 2, lambda: [s.send(b"a"), s.send(b"b", socket.MSG_MORE), s.send(b"c")]))

    def send():
        s.setsockopt(SOL_UDP, UDP_CORK, 1)
        s.send(b"in ")
        s.send(b"one")
        s.setsockopt(SOL_UDP, UDP_CORK, 0)

    print(collected(s, 1, send))


def disconnect(s):
    libc = ctypes.CDLL(None, use_errno=True)
    nowhere = ctypes.create_string_buffer(16)
    return libc.connect(s.fileno(), nowhere, 16)


def disconnected(s, to):
    for bind in (False, True):
        s = bound(LOCAL) if bind else udp()
        port = s.getsockname()[1]
        s.connect(to)
        warm(s, None)
        ask_for(s, 2)
        print(disconnect(s), seen(s.send, b"e"), seen(s.getpeername), s.getsockname()[1] == port)
        print(all_there(s))
        for i in range(2 * MANY):
            exchange(s, to, b"e with an address")
        stranger = bound(LOCAL)
        for i in range(MANY):
            stranger.sendto(b"hello", s.getsockname())
            assert s.recvfrom(10) == (b"hello", stranger.getsockname())
            s.sendto(b"hello", stranger.getsockname())
            assert stranger.recvfrom(10)[0] == b"hello"
        s.connect(stranger.getsockname())
        exchange_between(s, stranger)
        s.connect(to)
        for i in range(2 * MANY):
            exchange(s, None, b"e and back")
        print(all_there(s), s.getpeername() == to)


def exchange_between(a, b):
    for i in range(MANY):
        a.send(b"%d" % i)
        data, peer = b.recvfrom(10)
        b.sendto(data, peer)
        assert a.recv(10) == b"%d" % i


def cut(s, to):
    """What is looked at and what is cut, in all combinations of flags."""
    s.connect(to)
    warm(s, None)
    peek, trunc, oob = socket.MSG_PEEK, socket.MSG_TRUNC, socket.MSG_OOB
    flags = [0, trunc, peek, peek | trunc, oob, peek | oob, socket.MSG_WAITALL, socket.MSG_CMSG_CLOEXEC]
    for flags in flags:
        for room in (0, 4, 20):
            ask_for(s, 1)
            into = bytearray(room)
            print(flags, room, s.recvfrom_into(into, room, flags)[0], bytes(into), all_there(s))
            ask_for(s, 1)
            data, about, found, peer = s.recvmsg(room, 64, flags)
            print(data, about, found, peer == to, all_there(s))
    for room in (0, 4):
        s.send(b"")
        s.send(b"e")
        print([s.recvmsg(room)[::2] for _ in range(2)])
    print(seen(s.recv, 10, socket.MSG_DONTWAIT), seen(s.recvmsg, 10, 100, socket.MSG_ERRQUEUE))
    ask_for(s, 1)
    print(seen(s.recvmsg, 10, 100, socket.MSG_ERRQUEUE), all_there(s))


def refused(s, to):
    """The errors of sends to a socket that is closed."""
    s.connect(to)
    loose, curious = bound(LOCAL), bound(LOCAL)
    curious.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
    for one in (s, loose, curious):
        warm(one, to)
    s.send(b"x")
    # Few, so that none has to wait for room: until it has closed some go past the kernel and are lost.
    while (last := seen(s.send, b"e refused?")) == 10:
        time.sleep(0.01)
    # One error for each, told once.
    error = lambda: seen(s.recv, 10, socket.MSG_DONTWAIT)
    print(last, error())
    events = select.poll()
    events.register(s, select.POLLIN)
    for _ in range(3):
        print(s.send(b"e"), [found for _, found in events.poll(10000)])
        print(seen(s.send, b"e"), s.send(b"e"), errno.errorcode[s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)])
        print(events.poll(0), s.send(b"e"), seen(s.recv, 10), error())
    print({seen(loose.sendto, b"e", to) for _ in range(MANY)}, seen(loose.recv, 1, socket.MSG_DONTWAIT))
    for _ in range(12):
        print(seen(curious.sendto, b"e curious", to), seen(curious.recv, 10))
        data, about, flags, peer = curious.recvmsg(100, 100, socket.MSG_ERRQUEUE)
        print(data, told(about), flags & socket.MSG_ERRQUEUE != 0, peer == to)


PARTS = {
    "destinations": ("0.0.0.0", (socket.IPPROTO_IP, IP_PKTINFO), (socket.IPPROTO_IP, IP_RECVTTL)),
    "destinations6": ("::", (socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO)),
    "destinations_later": ("0.0.0.0",),
    "destinations_later6": ("::",),
    "own_source": ("0.0.0.0",),
    "multicast": ("0.0.0.0",),
    "multicast_heard_by_the_way": ("0.0.0.0",),
    "multicast_to_two": (LOCAL,),
    "broadcast": ("0.0.0.0",),
    "everything:six": (LOCAL6,),
    "everything:six_any": ("::",),
    "everything:dual": ("::",),
    "everything:mapped": (LOCAL,),
    "named_otherwise": ("0.0.0.0",),
    "six_only": ("0.0.0.0",),
}
# Where the client sends to, and its family, where that is not where the server is.
CLIENTS = {
    "destinations6": (LOCAL6, socket.AF_INET6),
    "destinations_later6": (LOCAL6, socket.AF_INET6),
    "everything:six": (LOCAL6, socket.AF_INET6),
    "everything:six_any": (LOCAL6, socket.AF_INET6),
    "everything:mapped": ("::ffff:127.0.0.1", socket.AF_INET6),
    "named_otherwise": ("::ffff:127.0.0.1", socket.AF_INET6),
    "six_only": ("::ffff:127.0.0.1", socket.AF_INET6),
}


def main():
    role, part, _warm, *rest = sys.argv[1:]
    if role == "client":
        ip, family = CLIENTS.get(part, (LOCAL, socket.AF_INET))
        to = (ip, int(rest[0]), 0, 0)[: 4 if family == socket.AF_INET6 else 2]
        s = udp(family)
        globals()[part.split(":")[0]](s, to)
        if part != "refused":
            # Whatever has become of the other one.
            last = udp(family)
            last.sendto(b"q", to)
            print("end", last.recv(100))
        return
    at, *options = PARTS.get(part, (LOCAL,))
    # A port that no other program takes when this one has ended.
    s = bound(at, *options, port=int(os.environ["OWN_PORT"]))
    print("port", s.getsockname()[1], flush=True)
    serve(s)
    s.close()


main()
