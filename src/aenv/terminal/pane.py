"""A terminal as an agent uses one: what is typed goes in, a screen comes out."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
import termios

from aenv.terminal.keys import key_sequence
from aenv.terminal.screen import Screen

CHUNK = 1 << 16
ROWS, COLUMNS = 40, 160


class Pane:
    """The side of a terminal that people sit at. It belongs to the event loop that it was made on."""

    def __init__(self, master: int, rows: int = ROWS, columns: int = COLUMNS) -> None:
        """``master``: a descriptor of the terminal's controlling side; the pane closes it."""
        self._master = master
        self._screen = Screen(rows, columns)
        self._loop = asyncio.get_running_loop()
        self._unsent = b""
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.set_blocking(master, False)
        self._loop.add_reader(master, self._take)

    @property
    def ended(self) -> bool:
        """Whether nobody is at the other side any more."""
        return self._master < 0

    def type(self, text: str) -> None:
        """Type a text; one that is the name of a key, as tmux has them, is that key."""
        self._unsent += key_sequence(text, self._screen.application_keys).encode()
        self._send()

    def text(self) -> str:
        """What it shows now."""
        self._take()
        return self._screen.text()

    def close(self) -> None:
        """Hang up."""
        if self._master >= 0:
            self._loop.remove_reader(self._master)
            self._loop.remove_writer(self._master)
            os.close(self._master)
            self._master = -1

    def _send(self) -> None:
        """As much as goes in now; the rest when there is room."""
        if self._master < 0:
            return
        try:
            self._unsent = self._unsent[os.write(self._master, self._unsent[:CHUNK]) :]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        if self._unsent:
            self._loop.add_writer(self._master, self._send)
        else:
            self._loop.remove_writer(self._master)

    def _take(self) -> None:
        while self._master >= 0:
            try:
                data = os.read(self._master, CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self._screen.feed(data)
            answers, self._screen.answers = self._screen.answers, ""
            with contextlib.suppress(OSError):  # who asks without listening needs no answer
                if answers:
                    os.write(self._master, answers.encode())
