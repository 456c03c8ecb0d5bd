# A tool that draws a picture, and one that takes its time and says how far it is.
# Run it: python examples/04_images_and_progress.py

import asyncio
import base64
import os
import struct
import tempfile
import zlib
from pathlib import Path

from mcp import Client

from aenv import Environment, Image, current_call, register_tool
from aenv.testing import running


def png(width: int, height: int, rgb: bytes) -> bytes:
    """A picture in one colour; with Pillow you would simply return the image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + rgb * width) * height)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@register_tool
def paint(red: int, green: int, blue: int) -> list:
    """A square in that colour, with a word about it."""
    return [f"Here is #{red:02x}{green:02x}{blue:02x}:", Image(png(16, 16, bytes([red, green, blue])))]


@register_tool
def render(frames: int) -> str:
    """Render a film, frame by frame."""
    call = current_call()
    for frame in range(1, frames + 1):
        if call.cancelled:  # the caller gave up: a thread has to look for itself
            return "stopped"
        png(64, 64, bytes([frame, 0, 0]))
        call.progress(frame, frames, f"frame {frame}")
    return f"{frames} frames"


async def pictures() -> None:
    async with Environment("studio@1.0.0") as env:
        text, image = (await env.call_tool("paint", {"red": 255, "green": 128, "blue": 0})).content
        data = base64.b64decode(image["data"])
        width, height = struct.unpack(">II", data[16:24])
        print(f"{text['text']} {image['mimeType']}, {width}x{height}, {len(data)} bytes")


async def progress(url: str) -> None:
    async def show(done: float, total: float | None, message: str | None) -> None:
        print(f"  {done:g}/{total or 0:g} {message}")

    async with Client(f"{url}/mcp") as client:
        result = await client.call_tool("render", {"frames": 3}, progress_callback=show)
        print(result.content[0].text)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, running(__file__, log=Path(folder, "log")) as server:
        os.environ["AENV_INSTANCE_URL"] = server.url
        asyncio.run(pictures())
        asyncio.run(progress(server.url))
