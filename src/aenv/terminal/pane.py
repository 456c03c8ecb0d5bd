"""A terminal for an agent: key presses in, the text of the screen out."""

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
    """The user's side of a pseudo-terminal: keyboard and screen.

    Create it inside a running event loop; it belongs to that loop.

    Args:
        master: File descriptor of the pseudo-terminal's master side. The pane owns it and closes it.
        rows: Height of the screen in lines.
        columns: Width of the screen in characters.

    Example:
        ```python
        master, slave = os.openpty()
        process = subprocess.Popen(["bash"], stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        os.close(slave)
        pane = Pane(master)
        pane.type("ls -l")
        pane.type("Enter")
        await asyncio.sleep(1)
        print(pane.text())
        pane.close()
        ```
    """

    def __init__(self, master: int, rows: int = ROWS, columns: int = COLUMNS) -> None:
        self._master = master
        self._screen = Screen(rows, columns)
        self._loop = asyncio.get_running_loop()
        self._unsent = b""
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.set_blocking(master, False)
        self._loop.add_reader(master, self._take)

    @property
    def ended(self) -> bool:
        """True once the pane is closed or the last program has closed its side of the terminal."""
        return self._master < 0

    def type(self, text: str) -> None:
        """Type text, or press the key that ``text`` names; see `key_sequence`. Does nothing once `ended`."""
        self._unsent += key_sequence(text, self._screen.application_keys).encode()
        self._send()

    def text(self) -> str:
        """Return the text on the screen now, including output that has just arrived."""
        self._take()
        return self._screen.text()

    def close(self) -> None:
        """Close the terminal, which hangs up its programs (SIGHUP). Closing twice is harmless."""
        if self._master >= 0:
            self._loop.remove_reader(self._master)
            self._loop.remove_writer(self._master)
            os.close(self._master)
            self._master = -1

    def _send(self) -> None:
        """Write as much pending input as the terminal takes now; write the rest when it is writable again."""
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
            with contextlib.suppress(OSError):  # the program may have stopped reading
                if answers:
                    os.write(self._master, answers.encode())
