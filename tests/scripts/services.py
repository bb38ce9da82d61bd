"""Clients and a server over asyncio, which waits in epoll: `services.py PART PORT LAST [HOST]`.

Each client talks on several connections at once, and compares every byte of the answers. It ends
when it has got through ROUNDS rounds on each, or, with more than zero seconds, after that time.
"""

import asyncio
import hashlib
import sys
import time

CONNECTIONS = 8
ROUNDS = 150
HOST = sys.argv[4] if len(sys.argv) > 4 else "127.0.0.1"
SIZES = [1, 7, 100, 1024, 4096, 5000, 16384, 70000]


def content(name, size):
    """`size` bytes that belong to `name` alone."""
    block = hashlib.sha256(name.encode()).digest()
    return (block * (size // len(block) + 1))[:size]


def expect(what, got, wanted):
    if got != wanted:
        sys.exit(f"{what}: {len(got)} bytes instead of {len(wanted)}: {got[:40]!r}")


async def redis(reader, writer, name, data):
    key = name.encode()
    writer.write(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, len(data), data))
    writer.write(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key))
    await writer.drain()
    expect(name, await reader.readline(), b"+OK\r\n")
    expect(name, await reader.readline(), b"$%d\r\n" % len(data))
    expect(name, await reader.readexactly(len(data) + 2), data + b"\r\n")


async def memcached(reader, writer, name, data):
    writer.write(b"set %s 0 0 %d\r\n%s\r\n" % (name.encode(), len(data), data))
    await writer.drain()
    expect(name, await reader.readline(), b"STORED\r\n")
    writer.write(b"get %s\r\n" % name.encode())
    await writer.drain()
    expect(name, await reader.readline(), b"VALUE %s 0 %d\r\n" % (name.encode(), len(data)))
    expect(name, await reader.readexactly(len(data) + 7), data + b"\r\nEND\r\n")


async def http(reader, writer, _name, data):
    path = str(len(data))
    writer.write(b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())
    await writer.drain()
    expect(path, (await reader.readline())[:15], b"HTTP/1.1 200 OK")
    length = None
    while (line := await reader.readline()) != b"\r\n":
        field, value = line.split(b":", 1)
        if field.lower() == b"content-length":
            length = int(value)
    expect(path, await reader.readexactly(length), content(path, len(data)))


async def message(reader):
    """A message of PostgreSQL's protocol: its kind, and its bytes."""
    kind = await reader.readexactly(1)
    length = int.from_bytes(await reader.readexactly(4), "big")
    return kind, await reader.readexactly(length - 4)


async def postgresql(reader, writer, name, data):
    def send(kind, content):
        writer.write(kind + (len(content) + 4).to_bytes(4, "big") + content)

    if name.endswith(".0") and not hasattr(writer, "is_open"):
        send(b"", (3 << 16).to_bytes(4, "big") + b"user\0postgres\0\0")
        writer.is_open = True
        while (await message(reader))[0] != b"Z":
            pass
    text = data.hex().encode()
    send(b"Q", b"SELECT '%s'\0" % text)
    await writer.drain()
    rows = []
    while (answer := await message(reader))[0] != b"Z":
        if answer[0] == b"D":
            rows.append(answer[1])
    # One column, and its length.
    expect(name, b"".join(rows), b"\0\1" + len(text).to_bytes(4, "big") + text)


async def echo(reader, writer, name, data):
    writer.write(data)
    await writer.drain()
    expect(name, await reader.readexactly(len(data)), data)


async def talk(part, port, number, until):
    reader, writer = await asyncio.open_connection(HOST, port)
    done = 0
    while done < ROUNDS or time.monotonic() < until:
        name = f"{number}.{done % ROUNDS}"
        size = SIZES[(number + done) % len(SIZES)]
        await part(reader, writer, name, content(name, size))
        done += 1
    writer.close()
    await writer.wait_closed()


async def clients(part, port, seconds):
    until = time.monotonic() + seconds
    await asyncio.gather(*(talk(part, port, i, until) for i in range(CONNECTIONS)))


async def serve(port):
    async def on_connection(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(on_connection, HOST, port)
    async with server:
        await server.serve_forever()


def main():
    part, port = sys.argv[1], int(sys.argv[2])
    if part == "server":
        asyncio.run(serve(port))
    elif part == "files":
        for size in SIZES:
            with open(f"{sys.argv[3]}/{size}", "wb") as file:
                file.write(content(str(size), size))
    else:
        asyncio.run(clients(globals()[part], port, float(sys.argv[3])))


main()
