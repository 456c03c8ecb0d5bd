"""Models of commands and files inside an instance, in the instance's HTTP API."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field

MAX_ENTRIES = 10_000
"""Default limit for the entries of one folder listing."""
MOST_ENTRIES = 100_000
"""Limit for the entries of one folder listing, whatever the caller asks for."""
STDOUT, STDERR = 1, 2
"""First byte of a binary WebSocket message from the instance: the stream that the rest of it belongs to."""

Side = Annotated[int, Field(ge=1, le=10_000)]


class Command(BaseModel):
    """A command to run."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    command: str | Annotated[list[str], Field(min_length=1)]
    """A line for the shell, or a program and its arguments."""
    timeout: float | None = None
    """Seconds after which the command is killed."""
    cwd: str | None = None
    """Working directory; default: that of the tools."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables to set, in addition to those of the instance."""
    stdin: str = ""
    """Standard input, all of it."""
    stdin_base64: Base64Bytes = b""
    """Standard input that is not text, in base64."""
    stream: bool = False
    """Answer with lines of JSON while the command runs: `{"stdout": TEXT}`, `{"stderr": TEXT}`, and at the end
    `{"exit_code": N, "timed_out": false}`."""
    detach: bool = False
    """Answer at once with the process, which runs on."""
    interactive: bool = False
    """Keep standard input open, for a detached process or one on a WebSocket."""
    tty: bool = False
    """Run it on a terminal; on a WebSocket only."""
    rows: Side = 24
    columns: Side = 80


class Resize(BaseModel):
    """New size of the terminal."""

    type: Literal["resize"]
    rows: Side
    columns: Side


class SignalRequest(BaseModel):
    """A signal for a process and its children."""

    model_config = ConfigDict(extra="forbid")

    signal: str | int = "TERM"


class CommandResult(BaseModel):
    """Exit code and output of a command."""

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool


class ProcessInfo(BaseModel):
    """A process that a caller started."""

    id: int
    """Number for the routes of this process; never used twice in an instance."""
    pid: int
    command: str | list[str]
    started_at: float
    """Seconds since 1970."""
    detached: bool
    exit_code: int | None = None
    """None while it runs; negative: killed by that signal."""
    timed_out: bool = False


class FileInfo(BaseModel):
    """A file, folder or other entry of the file system."""

    path: str
    type: Literal["file", "folder", "link", "other"]
    size: int
    mode: str
    """Permissions in octal, such as `644`."""
    modified_at: float
    """Seconds since 1970."""
    target: str | None = None
    """Target of a symbolic link."""


class FileEvent(BaseModel):
    """A change below a folder that is watched."""

    type: Literal["created", "modified", "removed", "overflow"]
    """`overflow`: changes were lost; list the folder again."""
    path: str
