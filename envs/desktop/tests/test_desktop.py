"""Parts of the desktop that need no display."""

import struct
import zlib

from x11 import png, symbol_of


def test_keys_have_the_names_of_xdotool():
    assert [symbol_of(name) for name in ("Return", "Page_Up", "a", "ö", "€", "F5")] == [
        0xFF0D, 0xFF55, 0x61, 0xF6, 0x010020AC, 0xFFC2]  # fmt: skip
    assert symbol_of("nokey") == 0


def test_a_picture_is_png():
    data = png(2, 1, bytes((255, 0, 0, 0, 255, 0)))
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (2, 1)
    start = data.index(b"IDAT") + 4
    assert zlib.decompress(data[start : data.index(b"IEND") - 8]) == bytes((0, 255, 0, 0, 0, 255, 0))
