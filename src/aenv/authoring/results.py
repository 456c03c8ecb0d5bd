"""Results of tool calls and of commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aenv.errors import Fault

_UNSET: Any = object()


@dataclass(frozen=True, slots=True)
class ExecResult:
    """Result of a command that `Environment.exec` ran in an instance."""

    exit_code: int
    """Exit status of the command."""
    stdout: str
    stderr: str
    timed_out: bool = False
    """True if the command was stopped at its time limit."""


class ToolResult:
    """Result of a tool call: MCP content blocks, or an error message for the agent.

    `Environment.call_tool` returns it. A tool may also return one, to build its content blocks itself.

    Args:
        content: MCP content blocks, such as ``[{"type": "text", "text": "done"}]``.
        is_error: Whether the call failed; the text is then the error message.
        fault: Responsible party if the call failed, see the attribute.
        structured: Structured content of an explicit MCP result; `data` returns it.
        is_json: Whether the only block is the JSON text of the value that the tool returned.

    Example:
        ```python
        result = await env.call_tool("add", {"a": 1, "b": 2})
        if result.is_error:
            print(f"{result.fault}: {result.text}")
        else:
            print(result.data)
        ```
    """

    __slots__ = ("_data", "content", "fault", "is_error", "is_json", "structured")

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
        """Responsible party of an error: ``policy`` (bad arguments, no such tool) or ``env`` (the tool raised)."""
        self.structured = structured
        self.is_json = is_json
        self._data = _UNSET

    @property
    def text(self) -> str:
        """Texts of the text blocks, joined by newlines."""
        from aenv.authoring.content import text_of

        return text_of(self.content)

    @property
    def data(self) -> Any:
        """Value that the tool returned, as JSON data: a dict for a dict, a str for a str, None for None.

        It is None for images and other explicit content; read those from ``content``.
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
        if not self.is_json:
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
