"""As much of the X11 protocol as a desktop for agents needs, with the XTEST extension for mouse and keyboard.

Requests go over the socket of the display, from this process: a click takes a millisecond, and no helper program.
"""

import socket
import struct
import threading
import zlib
from typing import NamedTuple

KEY_PRESS, KEY_RELEASE, BUTTON_PRESS, BUTTON_RELEASE, MOTION = 2, 3, 4, 5, 6
SECONDS = 20.0
SHIFT = 0xFFE1
KEYS = {
    "return": 0xFF0D, "enter": 0xFF0D, "backspace": 0xFF08, "tab": 0xFF09, "escape": 0xFF1B, "esc": 0xFF1B,
    "delete": 0xFFFF, "home": 0xFF50, "left": 0xFF51, "up": 0xFF52, "right": 0xFF53, "down": 0xFF54,
    "page_up": 0xFF55, "pageup": 0xFF55, "page_down": 0xFF56, "pagedown": 0xFF56, "end": 0xFF57, "insert": 0xFF63,
    "menu": 0xFF67, "shift": SHIFT, "ctrl": 0xFFE3, "control": 0xFFE3, "alt": 0xFFE9, "option": 0xFFE9,
    "super": 0xFFEB, "meta": 0xFFEB, "cmd": 0xFFEB, "space": 0x20, "minus": 0x2D, "plus": 0x2B, "period": 0x2E,
    "comma": 0x2C, "slash": 0x2F, "arrowleft": 0xFF51, "arrowup": 0xFF52, "arrowright": 0xFF53, "arrowdown": 0xFF54,
    **{f"f{number}": 0xFFBD + number for number in range(1, 13)},
}  # fmt: skip


class DisplayLost(Exception):
    """The display does not answer (any more)."""


class Window(NamedTuple):
    """A window of a program."""

    id: int
    title: str


class Display:
    """A connection to an X server on this machine."""

    def __init__(self, number: int) -> None:
        self._lock = threading.RLock()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(SECONDS)
        self._socket.connect(f"/tmp/.X11-unix/X{number}")
        self._socket.sendall(struct.pack("<BxHHHHxx", ord("l"), 11, 0, 0, 0))
        head = self._read(8)
        rest = self._read(4 * struct.unpack_from("<H", head, 6)[0])
        if head[0] != 1:
            raise DisplayLost("the display refused the connection")
        vendor, formats = struct.unpack_from("<H", rest, 16)[0], rest[21]
        self._first_key, self._last_key = rest[26], rest[27]
        screen = 32 + (vendor + 3) // 4 * 4 + 8 * formats
        self.root = struct.unpack_from("<I", rest, screen)[0]
        self.size: tuple[int, int] = struct.unpack_from("<HH", rest, screen + 20)
        self._count = 0
        answer = self._ask(98, 0, struct.pack("<Hxx", 5) + b"XTEST\0\0\0")
        if not answer[8]:
            raise DisplayLost("the display has no XTEST extension")
        self._xtest = answer[9]
        self._atoms: dict[str, int] = {}
        self._keys: dict[int, tuple[int, bool]] = {}
        self._spare = 0
        self._read_keys()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    # mouse and keyboard

    def move(self, x: int, y: int) -> None:
        """Move the pointer."""
        self._fake(MOTION, 0, x, y)

    def button(self, number: int, down: bool) -> None:
        """Press a button of the mouse, or let it go: 1 left, 2 middle, 3 right, 4 to 7 the wheel."""
        self._fake(BUTTON_PRESS if down else BUTTON_RELEASE, number)

    def key(self, symbol: int, down: bool) -> None:
        """Press a key, or let it go."""
        code, shifted = self._code(symbol)
        if shifted and down:
            self.key(SHIFT, True)
        self._fake(KEY_PRESS if down else KEY_RELEASE, code)
        if shifted and not down:
            self.key(SHIFT, False)

    def pointer(self) -> tuple[int, int]:
        """Return where the pointer is; everything that was sent before has been done then."""
        answer = self._ask(38, 0, struct.pack("<I", self.root))
        x, y = struct.unpack_from("<hh", answer, 16)
        return x, y

    # looking

    def screenshot(self, left: int = 0, top: int = 0, right: int = 0, bottom: int = 0) -> bytes:
        """Return the screen, or a part of it, as PNG."""
        width, height = (right or self.size[0]) - left, (bottom or self.size[1]) - top
        body = struct.pack("<IhhHHI", self.root, left, top, width, height, 0xFFFFFFFF)
        data = self._ask(73, 2, body)[32 : 32 + 4 * width * height]
        pixels = bytearray(3 * width * height)
        pixels[0::3], pixels[1::3], pixels[2::3] = data[2::4], data[1::4], data[0::4]
        return png(width, height, bytes(pixels))

    def windows(self) -> list[Window]:
        """Return the windows of programs, as the window manager knows them."""
        listed = self.property_of(self.root, "_NET_CLIENT_LIST")
        found = struct.unpack(f"<{len(listed) // 4}I", listed[: len(listed) // 4 * 4])
        return [Window(each, self._title(each)) for each in found]

    def activate(self, window: int) -> None:
        """Bring a window to the front and give it the focus."""
        body = struct.pack("<II", self.root, 0x180000)
        event = struct.pack("<BBHIIIIIII", 33, 32, 0, window, self._atom("_NET_ACTIVE_WINDOW"), 2, 0, 0, 0, 0)
        self._send(25, 0, body + event)
        self.pointer()

    def _title(self, window: int) -> str:
        text = self.property_of(window, "_NET_WM_NAME") or self.property_of(window, "WM_NAME")
        return text.decode("utf-8", "replace")

    def property_of(self, window: int, name: str) -> bytes:
        """Return a property of a window; nothing if there is none."""
        try:
            answer = self._ask(20, 0, struct.pack("<IIIII", window, self._atom(name), 0, 0, 4096))
        except DisplayLost:
            return b""  # the window has just been closed
        unit, items = answer[1], struct.unpack_from("<I", answer, 16)[0]
        return answer[32 : 32 + unit // 8 * items]

    def _atom(self, name: str) -> int:
        if name not in self._atoms:
            text = name.encode()
            answer = self._ask(16, 0, struct.pack("<Hxx", len(text)) + text + bytes(-len(text) % 4))
            self._atoms[name] = struct.unpack_from("<I", answer, 8)[0]
        return self._atoms[name]

    # keys

    def _read_keys(self) -> None:
        count = self._last_key - self._first_key + 1
        answer = self._ask(101, 0, struct.pack("<BBxx", self._first_key, count))
        width = answer[1]
        symbols = struct.unpack_from(f"<{count * width}I", answer, 32)
        for place in range(count):
            row = symbols[place * width : (place + 1) * width]
            code = self._first_key + place
            if not any(row):
                self._spare = code
            for column, symbol in enumerate(row[:2]):
                if symbol:
                    self._keys.setdefault(symbol, (code, column == 1))

    def _code(self, symbol: int) -> tuple[int, bool]:
        if symbol not in self._keys:
            # No key has it: a key that has nothing gets it, for as long as nothing else needs one.
            self._keys = {other: key for other, key in self._keys.items() if key[0] != self._spare}
            self._send(100, 1, struct.pack("<BBxxII", self._spare, 2, symbol, symbol))
            self._keys[symbol] = (self._spare, False)
            self.pointer()
        return self._keys[symbol]

    # the wire

    def _fake(self, kind: int, detail: int, x: int = 0, y: int = 0) -> None:
        body = struct.pack("<BBxxIIxxxxxxxxhhxxxxxxxB", kind, detail, 0, self.root, x, y, 0)
        self._send(self._xtest, 2, body)

    def _send(self, code: int, detail: int, body: bytes) -> int:
        with self._lock:
            self._count = (self._count + 1) & 0xFFFF
            self._socket.sendall(struct.pack("<BBH", code, detail, 1 + len(body) // 4) + body)
            return self._count

    def _ask(self, code: int, detail: int, body: bytes) -> bytes:
        with self._lock:
            number = self._send(code, detail, body)
            while True:
                head = self._read(32)
                if head[0] == 1:
                    answer = head + self._read(4 * struct.unpack_from("<I", head, 4)[0])
                    if struct.unpack_from("<H", head, 2)[0] == number:
                        return answer
                elif head[0] == 0 and struct.unpack_from("<H", head, 2)[0] == number:
                    raise DisplayLost(f"the display refused request {code}: error {head[1]}")

    def _read(self, count: int) -> bytes:
        kept = bytearray()
        while len(kept) < count:
            part = self._socket.recv(min(1 << 20, count - len(kept)))
            if not part:
                raise DisplayLost("the display has ended")
            kept += part
        return bytes(kept)


def symbol_of(name: str) -> int:
    """Return the key symbol of a name (``Return``, ``F5``) or of a character; 0 if there is none."""
    if name.lower() in KEYS:
        return KEYS[name.lower()]
    if len(name) != 1:
        return 0
    code = ord(name)
    if code < 32:
        return {10: 0xFF0D, 13: 0xFF0D, 9: 0xFF09}.get(code, 0)
    return code if code < 256 else 0x01000000 | code


def png(width: int, height: int, pixels: bytes) -> bytes:
    """Return a picture of three bytes per pixel as PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    line = 3 * width
    rows = b"".join(b"\0" + pixels[place * line : (place + 1) * line] for place in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body
