"""What a tool call gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aenv.errors import Fault

_UNSET: Any = object()


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command in an instance came to."""

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool = False


class ToolResult:
    """Content blocks, and whether they tell of an error. Authors may return one from a tool, too."""

    __slots__ = ("_data", "_is_json", "content", "fault", "is_error", "structured")

    def __init__(
        self,
        content: list[dict[str, Any]],
        is_error: bool = False,
        *,
        fault: Fault | None = None,
        structured: Any = None,
        is_json: bool = False,
    ) -> None:
        self.content = content
        self.is_error = is_error
        self.fault = fault
        """Whose error it is: ``policy`` (bad arguments, no such tool) or ``env`` (the tool raised)."""
        self.structured = structured
        self._is_json = is_json
        self._data = _UNSET

    @property
    def text(self) -> str:
        """The text blocks, one per line."""
        from aenv.authoring.content import text_of

        return text_of(self.content)

    @property
    def data(self) -> Any:
        """The value that the tool returned, as JSON data: a dict for a dict, a str for a str, None for none.

        Pictures and other explicit content have no such value; read them from ``content``.
        """
        if self._data is _UNSET:
            self._data = self._value()
        return self._data

    def _value(self) -> Any:
        if self.structured is not None:
            return self.structured
        if len(self.content) != 1 or self.content[0].get("type") != "text":
            return None
        text = self.content[0]["text"]
        if not self._is_json:
            return text
        from pydantic_core import from_json

        return from_json(text)

    def __repr__(self) -> str:
        return f"ToolResult(content={self.content!r}, is_error={self.is_error!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolResult):
            return NotImplemented
        return (self.content, self.is_error) == (other.content, other.is_error)

    __hash__ = None  # type: ignore[assignment]
