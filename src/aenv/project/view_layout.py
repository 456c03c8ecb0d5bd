"""`console/layout.json`: a view of an environment that the console draws, checked where a project is packed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from aenv.errors import ConfigError

PLACE = "console/layout.json"
MAX_PARTS = 50

Kind = Literal[
    "button", "columns", "facts", "figure", "grid", "image", "json", "line", "list", "markdown", "progress",
    "table", "text",
]  # fmt: skip


class LayoutPart(BaseModel):
    """Part of a view: a value of the state, and how to show it."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    kind: Kind
    title: str = ""
    at: Annotated[str, Field(pattern=r"^(/.*)?$")] = ""
    """JSON Pointer into the state; empty: all of it."""
    columns: list[str] = Field(default_factory=list)
    """Of a `table`: fields of its rows, in their order."""
    function: str = ""
    """Of a `button`: the function that it calls."""
    arguments: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits(self) -> LayoutPart:
        if (self.kind == "button") != bool(self.function):
            raise ValueError("a button needs a function, and nothing else has one")
        return self


class ViewLayout(BaseModel):
    """A view of an environment's state."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    function: str = ""
    """Function that returns the state of an instance; empty: the view is for episodes alone."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    seconds: Annotated[float, Field(ge=0.5, le=3600)] = 2.0
    """How often the function is called."""
    tools: list[str] | None = None
    """Tools and functions whose results are the state beside an episode; default: every one that returns an object."""
    show: Annotated[list[LayoutPart], Field(min_length=1, max_length=MAX_PARTS)]


def check_view(root: Path) -> None:
    """Check the layout of a project, if it has one.

    Raises:
        ConfigError: the layout is invalid; with every problem.
    """
    try:
        text = (root / PLACE).read_bytes()
    except OSError:
        return
    try:
        ViewLayout.model_validate_json(text)
    except ValidationError as error:
        found = [f"{'/'.join(map(str, each['loc'])) or 'the file'}: {each['msg']}" for each in error.errors()[:10]]
        raise ConfigError(f"{PLACE}: " + "; ".join(found)) from None
