"""A terminal emulator: the part of VT220 and xterm that programs use, without colours.

It takes the bytes that a program writes and keeps the lines of text that a terminal would show. Replies to queries
(cursor position, device attributes) collect in `Screen.answers`; the caller writes them back to the program.
"""

import codecs
import re
import unicodedata

# ESC, then: a control sequence, a string that ends with BEL or ST, intermediate bytes and a final, or one character.
SEQUENCE = re.compile(
    r"\x1b(?:\[(?P<arguments>[0-9:;<=>?]*)(?P<between>[ -/]*)(?P<final>[@-~])"
    r"|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|(?P<charset>[ -/]+)(?P<which>[0-~])"
    r"|(?P<single>[0-Z\\^-~]))"
)
UNFINISHED = re.compile(r"\x1b(?:\[[0-9:;<=>? -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)\Z")
LONGEST = 4096  # characters of an unterminated sequence that are kept for the next feed
LINES = dict(zip("`afgjklmnopqrstuvwxyz{|}~", "◆▒°±┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·", strict=True))
WIDE_TAIL = ""  # the second cell of a wide character


class Screen:
    """The screen of a terminal: a grid of characters and a cursor.

    Args:
        rows: Height in lines.
        columns: Width in cells; a wide character takes two.

    Attributes:
        row: Line of the cursor, from 0.
        column: Cell of the cursor, from 0.
        answers: Replies to queries of the program, to be written to its terminal and then cleared.
        application_keys: Whether the program has switched the cursor keys to application mode (DECCKM).

    Example:
        ```python
        screen = Screen(rows=24, columns=80)
        screen.feed(b"loading\rdone   ")
        screen.text()  # "done   "
        ```
    """

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.answers = ""
        self.application_keys = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._other: list[list[str]] | None = None
        self._reset()

    def _reset(self) -> None:
        self._grid = [self._blank() for _ in range(self.rows)]
        self.row = self.column = 0
        self._saved = (0, 0)
        self._top, self._bottom = 0, self.rows - 1
        self._wrap, self._insert, self._origin, self._lines = True, False, False, False
        self._pending_wrap = False
        self._last = " "

    def text(self) -> str:
        """Return the lines of the screen without trailing spaces and without empty lines at the bottom.

        Spaces before the cursor are kept: the space at the end of a prompt belongs to it.
        """
        lines = ["".join(line).rstrip() for line in self._grid]
        here = self._grid[self.row]
        lines[self.row] = "".join(here[: self.column]) + "".join(here[self.column :]).rstrip()
        return "\n".join(lines).rstrip("\n")

    def feed(self, data: bytes) -> None:
        """Process output of a program. Sequences and characters may be split over several calls."""
        text = self._rest + self._decoder.decode(data)
        self._rest = ""
        at = 0
        while at < len(text):
            char = text[at]
            if char != "\x1b":
                self._character(char)
                at += 1
                continue
            found = SEQUENCE.match(text, at)
            if found is not None:
                self._sequence(found)
                at = found.end()
            elif UNFINISHED.match(text, at) and len(text) - at < LONGEST:
                self._rest = text[at:]
                return
            else:
                at += 1

    # --- characters

    def _character(self, char: str) -> None:
        if char >= " " and char != "\x7f":
            self._print(char)
        elif char == "\r":
            self._move(column=0)
        elif char in "\n\v\f":
            self._down()
        elif char == "\b":
            self._move(column=self.column - 1)
        elif char == "\t":
            self._move(column=(self.column // 8 + 1) * 8)
        elif char in "\x0e\x0f":
            self._lines = char == "\x0e"

    def _print(self, char: str) -> None:
        if unicodedata.combining(char):
            cell = max(self.column - (not self._pending_wrap), 0)
            self._grid[self.row][cell] += char
            return
        width = 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if self._lines:
            char = LINES.get(char, char)
        if (self._pending_wrap or self.column + width > self.columns) and self._wrap:
            self._move(column=0)
            self._down()
        cells = [char, WIDE_TAIL][:width]
        column = min(self.column, self.columns - width)
        line = self._grid[self.row]
        if self._insert:
            line[column:column] = cells
            del line[self.columns :]
        else:
            line[column : column + width] = cells
        self._last = char
        self.column = min(column + width, self.columns - 1)
        self._pending_wrap = column + width >= self.columns

    def _blank(self) -> list[str]:
        return [" "] * self.columns

    # --- moving

    def _move(self, row: int | None = None, column: int | None = None) -> None:
        self._pending_wrap = False
        if row is not None:
            self.row = min(max(row, 0), self.rows - 1)
        if column is not None:
            self.column = min(max(column, 0), self.columns - 1)

    def _down(self) -> None:
        if self.row == self._bottom:
            self._scroll(self._top, 1)
        else:
            self._move(row=self.row + 1)

    def _up(self) -> None:
        if self.row == self._top:
            self._scroll(self._top, -1)
        else:
            self._move(row=self.row - 1)

    def _scroll(self, top: int, count: int) -> None:
        """Scroll the region from line `top` to its bottom up by `count` lines, or down if negative."""
        part = self._grid[top : self._bottom + 1]
        count = min(max(count, -len(part)), len(part))
        blanks = [self._blank() for _ in range(abs(count))]
        self._grid[top : self._bottom + 1] = part[count:] + blanks if count >= 0 else blanks + part[:count]

    # --- sequences

    def _sequence(self, found: re.Match[str]) -> None:
        if found["final"] is not None:
            if not found["between"]:
                self._control(found["arguments"], found["final"])
            elif found["between"] == "!" and found["final"] == "p":
                self._wrap, self._insert, self._origin = True, False, False
        elif found["charset"] is not None:
            if found["charset"] == "(":
                self._lines = found["which"] == "0"
        elif found["single"] is not None:
            self._single(found["single"])

    def _single(self, char: str) -> None:
        if char == "7":
            self._saved = (self.row, self.column)
        elif char == "8":
            self._move(*self._saved)
        elif char == "D":
            self._down()
        elif char == "E":
            self._move(column=0)
            self._down()
        elif char == "M":
            self._up()
        elif char == "c":
            self._reset()

    def _control(self, arguments: str, final: str) -> None:
        if arguments[:1] in ("?", ">", "<", "="):
            if arguments[0] == "?" and final in "hl":
                for mode in arguments[1:].split(";"):
                    self._private_mode(mode, final == "h")
            elif arguments[0] == ">" and final == "c":
                self.answers += "\x1b[>1;10;0c"
            return
        numbers = [int(part) if part.isdigit() else 0 for part in arguments.replace(":", ";").split(";")]
        first = numbers[0]
        count = min(max(first, 1), 9999)
        if final in "ABCDEFGHIZ`aedf":
            self._cursor(final, numbers, count)
        elif final in "JKLMPX@STb":
            self._edit(final, first, count)
        elif final == "r":
            last = numbers[1] if len(numbers) > 1 and numbers[1] else self.rows
            if count < last <= self.rows:
                self._top, self._bottom = count - 1, last - 1
                self._move(self._top if self._origin else 0, 0)
        elif final in "hl" and 4 in numbers:
            self._insert = final == "h"
        elif final == "s":
            self._saved = (self.row, self.column)
        elif final == "u":
            self._move(*self._saved)
        elif final == "n" and first == 6:
            self.answers += f"\x1b[{self.row + 1};{self.column + 1}R"
        elif final == "n" and first == 5:
            self.answers += "\x1b[0n"
        elif final == "c" and first == 0:
            self.answers += "\x1b[?62;22c"

    def _cursor(self, final: str, numbers: list[int], count: int) -> None:
        if final in "Hf":
            column = numbers[1] if len(numbers) > 1 else 1
            top = self._top if self._origin else 0
            self._move(top + count - 1, max(column, 1) - 1)
        elif final in "AF":
            self._move(self.row - count, 0 if final == "F" else None)
        elif final in "BEe":
            self._move(self.row + count, 0 if final == "E" else None)
        elif final in "Ca":
            self._move(column=self.column + count)
        elif final == "D":
            self._move(column=self.column - count)
        elif final in "G`":
            self._move(column=count - 1)
        elif final == "d":
            self._move(row=count - 1)
        elif final == "I":
            self._move(column=(self.column // 8 + count) * 8)
        elif final == "Z":
            self._move(column=((self.column + 7) // 8 - count) * 8)

    def _edit(self, final: str, first: int, count: int) -> None:
        line, column = self._grid[self.row], self.column
        if final == "J":
            self._erase_screen(first)
        elif final == "K":
            start, end = [(column, self.columns), (0, column + 1), (0, self.columns)][min(first, 2)]
            line[start:end] = " " * (end - start)
        elif final == "X":
            line[column : column + count] = " " * len(line[column : column + count])
        elif final == "P":
            del line[column : column + count]
            line += " " * (self.columns - len(line))
        elif final == "@":
            line[column:column] = " " * min(count, self.columns)
            del line[self.columns :]
        elif final in "LM" and self._top <= self.row <= self._bottom:
            self._scroll(self.row, count if final == "M" else -count)
        elif final in "ST":
            self._scroll(self._top, count if final == "S" else -count)
        elif final == "b":
            for _ in range(min(count, self.columns)):
                self._print(self._last)

    def _erase_screen(self, which: int) -> None:
        if which == 0:
            self._edit("K", 0, 1)
            rows = range(self.row + 1, self.rows)
        elif which == 1:
            self._edit("K", 1, 1)
            rows = range(self.row)
        else:
            rows = range(self.rows)
        for row in rows:
            self._grid[row] = self._blank()

    def _private_mode(self, mode: str, on: bool) -> None:
        if mode == "1":
            self.application_keys = on
        elif mode == "6":
            self._origin = on
            self._move(self._top if on else 0, 0)
        elif mode == "7":
            self._wrap = on
        elif mode in ("47", "1047", "1049"):
            self._alternate(on)

    def _alternate(self, on: bool) -> None:
        """Switch to the alternate screen or back to the main one, which keeps its content meanwhile."""
        if on and self._other is None:
            self._other, self._grid = self._grid, [self._blank() for _ in range(self.rows)]
            self._saved = (self.row, self.column)
        elif not on and self._other is not None:
            self._grid, self._other = self._other, None
            self._move(*self._saved)
        self._top, self._bottom = 0, self.rows - 1
