"""File descriptors on an event loop."""

import asyncio
import os


async def write_all(fd: int, data: bytes) -> None:
    """Write everything to a descriptor that does not block, however slowly the other side reads.

    Raises:
        OSError: the other side is gone.
    """
    loop = asyncio.get_running_loop()
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            ready = loop.create_future()
            loop.add_writer(fd, lambda ready=ready: ready.done() or ready.set_result(None))
            try:
                await ready
            finally:
                loop.remove_writer(fd)


async def settled(future: asyncio.Future, seconds: float) -> bool:
    """Whether it is done within so many seconds. It is not cancelled if not."""
    if not future.done():
        await asyncio.wait([future], timeout=seconds)
    return future.done()
