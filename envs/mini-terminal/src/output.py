"""Output of any size in little memory: how it began and how it ended."""


class Bounded:
    """Keeps the first and the last half of `limit` bytes, and counts the rest."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.left_out = 0

    def add(self, data: bytes) -> None:
        """Some more of it."""
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._half:  # not every time: each cut moves what is kept
            self._cut()

    def text(self) -> str:
        """All that was kept. What is not UTF-8 becomes U+FFFD."""
        self._cut()
        if not self.left_out:
            return (self._head + self._tail).decode(errors="replace")
        middle = f"\n[... {self.left_out:,} bytes left out ...]\n"
        return self._head.decode(errors="replace") + middle + self._tail.decode(errors="replace")

    def _cut(self) -> None:
        extra = len(self._tail) - self._half
        if extra > 0:
            del self._tail[:extra]
            self.left_out += extra
