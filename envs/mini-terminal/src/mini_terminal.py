"""A Linux terminal for an agent: shells that keep their state, full-screen programs, files.

Nothing is started before it is used, so that instances can be forks of one process that has this loaded.
"""

import base64
import os
import stat
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from shell import Shell
from terminal import Terminal

from aenv import register_tool

MAX_OUTPUT = int(os.environ.get("TERMINAL_MAX_OUTPUT") or 256 * 1024)
ROWS, COLUMNS = 24, 80
MAX_FILE = 8 * 1024 * 1024  # bytes of a file in one answer
MAX_ENTRIES = 1000
KINDS = {stat.S_IFDIR: "folder", stat.S_IFREG: "file", stat.S_IFLNK: "link"}

Seconds = Annotated[float, Field(gt=0, le=86400)]
Name = Annotated[str, Field(min_length=1, max_length=64)]

shells: dict[str, Shell] = {}
terminals: dict[str, Terminal] = {}


@register_tool
async def execute_command(
    command: Annotated[str, Field(max_length=16 * 1024 * 1024)], timeout: Seconds = 60, shell: Name = "main"
) -> dict[str, Any]:
    """Run a command in a bash that keeps its state: folder, variables, functions and background jobs stay.

    The answer is {"output": [text, finished], "returncode": status}: stdout and stderr in the order in which they were
    written. Commands get no input: one that reads it finds the end at once. One that takes too long is interrupted:
    finished is false, the returncode 124, and the shell goes on. A "note" says what else was out of the ordinary.

    Args:
        command: What to run; several lines are fine.
        timeout: Seconds after which it is interrupted.
        shell: Which shell runs it. A new name starts a new one. Each runs one command at a time.
    """
    if "\0" in command:
        raise ValueError("a command cannot contain NUL characters; printf '\\0' makes one")
    return await _shell(shell).run(command, timeout)


@register_tool
async def list_shells() -> dict[str, Any]:
    """List the shells and terminals that were started."""
    return {
        "shells": [
            {"name": name, "pid": shell.pid, "folder": shell.folder, "busy": shell.busy}
            for name, shell in shells.items()
        ],
        "terminals": [
            {"name": name, "size": terminal.show()["size"], "exit_code": terminal.exit_code}
            for name, terminal in terminals.items()
        ],
    }


@register_tool
async def close_shell(shell: Name = "main") -> bool:
    """End a shell, the command that it runs, and its jobs. The next command for it starts a new one.

    Args:
        shell: Its name.

    Returns:
        Whether there was one.
    """
    found = shells.pop(shell, None)
    if found is not None:
        await found.close()
    return found is not None


@register_tool
async def send_keys(
    keys: str | list[str],
    terminal: Name = "main",
    literal: bool = False,
    wait_for: str = "",
    timeout: Seconds = 5,
) -> dict[str, Any]:
    """Press keys in a terminal, for programs that need one (editors, pagers, REPLs), and see its screen afterwards.

    Each key is a name (Enter, Escape, Tab, BSpace, Up, Down, Left, Right, Home, End, PageUp, PageDown, F1, C-c, M-x) or
    else text to type: ["vim notes.txt", "Enter"]. A terminal starts with a bash, apart from the shells of
    execute_command.

    Args:
        keys: One key, or several in their order.
        terminal: Which terminal. A new name starts a new one.
        literal: Type everything as it is; no key has a name.
        wait_for: Text to wait for on the screen. Without it: until nothing has been drawn for a tenth of a second.
        timeout: Seconds to wait at most.

    Returns:
        The screen, the cursor's row and column from 0, the size, and with wait_for whether the text was found.
    """
    chosen = await _terminal(terminal)
    await chosen.press([keys] if isinstance(keys, str) else keys, literal)
    return await _shown(chosen, wait_for, timeout)


@register_tool
async def screen(terminal: Name = "main", wait_for: str = "", timeout: Seconds = 5) -> dict[str, Any]:
    """See what a terminal shows, now or once some text is there.

    Args:
        terminal: Which terminal. A new name starts a new one.
        wait_for: Text to wait for on the screen.
        timeout: Seconds to wait at most.
    """
    return await _shown(await _terminal(terminal), wait_for, timeout)


@register_tool
async def close_terminal(terminal: Name = "main") -> bool:
    """End a terminal and what runs in it.

    Args:
        terminal: Its name.

    Returns:
        Whether there was one.
    """
    found = terminals.pop(terminal, None)
    if found is not None:
        await found.close()
    return found is not None


@register_tool
def read_file(
    path: str,
    offset: Annotated[int, Field(ge=0)] = 0,
    limit: Annotated[int, Field(gt=0, le=MAX_FILE)] = 256 * 1024,
    encoding: Literal["utf-8", "base64"] = "utf-8",
) -> dict[str, Any]:
    """Read a file.

    Args:
        path: Which; a relative one starts in the folder of the main shell.
        offset: The first byte to read.
        limit: How many bytes to read at most.
        encoding: What the content is given in: base64 is for what is not text.

    Returns:
        The content, the size of the file in bytes, and where to go on reading: null at the end.
    """
    with open(_path(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(offset)
        data = file.read(limit)
    if encoding == "base64":
        content = base64.b64encode(data).decode()
    else:
        data, content = _as_text(data, path)
    end = offset + len(data)
    return {"content": content, "size": size, "next_offset": end if data and end < size else None}


@register_tool
def write_file(
    path: str, content: str, append: bool = False, encoding: Literal["utf-8", "base64"] = "utf-8"
) -> dict[str, Any]:
    """Write a file, and make the folders on the way to it.

    Args:
        path: Which; a relative one starts in the folder of the main shell.
        content: What will be in it.
        append: Add to the end, and keep what is there.
        encoding: What the content is given in.
    """
    data = base64.b64decode(content, validate=True) if encoding == "base64" else content.encode()
    target = _path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("ab" if append else "wb") as file:
        file.write(data)
    return {"path": str(target), "written": len(data), "size": target.stat().st_size}


@register_tool
def list_files(path: str = ".") -> dict[str, Any]:
    """List a folder by name: what each entry is, its size in bytes, its mode, and when it was changed.

    Args:
        path: Which; a relative one starts in the folder of the main shell.
    """
    folder = _path(path)
    names = sorted(os.listdir(folder))
    entries = [_describe(folder / name) for name in names[:MAX_ENTRIES]]
    return {"path": str(folder), "entries": entries, "left_out": max(len(names) - MAX_ENTRIES, 0)}


def _shell(name: str) -> Shell:
    if name not in shells:
        shells[name] = Shell(_home(), {**_variables(), "TERM": "dumb"}, MAX_OUTPUT)
    return shells[name]


async def _terminal(name: str) -> Terminal:
    if name not in terminals:
        terminals[name] = Terminal(_home(), _variables(), ROWS, COLUMNS)
        await terminals[name].ready()
    return terminals[name]


async def _shown(terminal: Terminal, wait_for: str, timeout: float) -> dict[str, Any]:
    found = await terminal.settle(wait_for, timeout)
    return {**terminal.show(), "found": found} if wait_for else terminal.show()


def _variables() -> dict[str, str]:
    """What programs find: all but what the platform tells this environment."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AENV_")}


def _home() -> str:
    home = os.environ.get("HOME") or "/"
    return home if os.path.isdir(home) else "/"


def _path(path: str) -> Path:
    main = shells.get("main")
    return Path(main.folder if main is not None else _home(), os.path.expanduser(path))


def _as_text(data: bytes, path: str) -> tuple[bytes, str]:
    """The text, without a character that was cut in two at the end."""
    try:
        return data, data.decode()
    except UnicodeDecodeError as error:
        if error.start and len(data) - error.start < 4 and error.reason == "unexpected end of data":
            return data[: error.start], data[: error.start].decode()
        raise ValueError(f"{path} is not UTF-8 text; read it with encoding base64") from None


def _describe(path: Path) -> dict[str, Any]:
    about = path.lstat()
    entry = {
        "name": path.name,
        "type": KINDS.get(stat.S_IFMT(about.st_mode), "other"),
        "size": about.st_size,
        "mode": stat.filemode(about.st_mode),
        "modified": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(about.st_mtime)),
    }
    return {**entry, "target": os.readlink(path)} if entry["type"] == "link" else entry
