"""Both ends of an echo over streams of asyncio, for `rsock compare`.

server PORT BYTES, or client PORT BYTES SECONDS, which prints the round trips per second.
"""

import asyncio
import sys
import time


async def answer(reader, writer, size):
    try:
        while True:
            writer.write(await reader.readexactly(size))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def serve(port, size):
    server = await asyncio.start_server(lambda r, w: answer(r, w, size), "127.0.0.1", port)
    await server.serve_forever()


async def ask(port, size, seconds):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    messages = [bytes([number]) * size for number in range(64)]
    count, start = 0, time.monotonic()
    while (took := time.monotonic() - start) < seconds:
        for message in messages:
            writer.write(message)
            if await reader.readexactly(size) != message:
                sys.exit("a wrong answer")
            count += 1
    print(f"rate: {count / took}")
    writer.close()


part, port, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if part == "server":
    asyncio.run(serve(port, size))
else:
    asyncio.run(ask(port, size, float(sys.argv[4])))
