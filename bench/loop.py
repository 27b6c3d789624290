"""A server in an event loop: `/N` answers with N bytes, as fast as they are taken."""

import asyncio
import sys

BLOCK = b"x" * 65536


async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            left = int(head.split(b" ", 2)[1][1:] or 0)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % left)
            while left > 0:
                part = min(left, len(BLOCK))
                writer.write(BLOCK[:part])
                left -= part
                await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main():
    server = await asyncio.start_server(
        serve, "127.0.0.1", int(sys.argv[1]), backlog=4096
    )
    async with server:
        await server.serve_forever()


asyncio.run(main())
