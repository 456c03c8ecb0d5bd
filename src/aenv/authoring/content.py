"""Conversion of tool results into MCP content blocks and JSON."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, ItemsView, Iterable, KeysView, Mapping, ValuesView
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple

from pydantic_core import from_json, to_json

Block = dict[str, Any]
DEEPEST = 50
"""Nesting levels to search for a value that is not JSON; a value may contain itself."""

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"ID3", "audio/mpeg"),
    (b"OggS", "audio/ogg"),
    (b"%PDF-", "application/pdf"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_MCP_BLOCKS = ("text", "image", "audio", "resource", "resource_link")
_MCP_PACKAGES = ("mcp.", "mcp_types.", "fastmcp.")
_TO_CONTENT = ("to_image_content", "to_audio_content", "to_resource_content")
"""Methods of the classes Image, Audio and File of FastMCP and of the MCP SDK."""


@dataclass(frozen=True, slots=True)
class File:
    """Bytes as a tool's result. Without a MIME type, it is detected from the first bytes.

    An image or audio type becomes an MCP image or audio block, any other an embedded resource.

    Args:
        data: Content of the file.
        mime_type: MIME type, such as ``application/pdf``.
    """

    data: bytes
    mime_type: str | None = None

    @classmethod
    def read(cls, path: str | Path, mime_type: str | None = None) -> File:
        """Read a file of the instance."""
        return cls(Path(path).read_bytes(), mime_type)

    def block(self) -> Block:
        """Return the MCP content block: image, audio or embedded resource."""
        mime = self.mime_type or mime_type_of(self.data)
        data = base64.b64encode(self.data).decode("ascii")
        family = mime.partition("/")[0]
        if family in ("image", "audio"):
            return {"type": family, "data": data, "mimeType": mime}
        uri = f"aenv://result/{hashlib.sha256(self.data).hexdigest()[:16]}"
        return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "blob": data}}


class Image(File):
    """An image as a tool's result: ``return Image.read("plot.png")``."""

    __slots__ = ()


class Audio(File):
    """A sound as a tool's result: ``return Audio.read("answer.wav")``."""

    __slots__ = ()


class Content(NamedTuple):
    """A tool's result as it is sent."""

    blocks: list[Block]
    is_json: bool = False
    """True if the only block is the JSON text of the value that the tool returned."""
    is_error: bool = False
    structured: Any = None
    """Structured content of an explicit MCP result."""


def to_content(value: Any) -> Content:
    """Convert a value that a tool returned.

    Raises:
        ValueError: the value cannot be serialized as JSON; the message lists the types that can.
    """
    if value is None:
        return Content([])
    if isinstance(value, str):
        return Content([{"type": "text", "text": _sendable(str(value))}])
    block = _as_block(value)
    if block is not None:
        return Content([block])
    if isinstance(value, list | tuple) and any(_is_block(item) for item in value):
        return Content([block for item in value for block in to_content(item).blocks])
    explicit = _as_result(value)
    if explicit is not None:
        return explicit
    return Content([{"type": "text", "text": dump(value).decode("utf-8")}], is_json=True)


def dump(value: Any) -> bytes:
    """Serialize a result as JSON. NaN and infinities, which JSON does not have, become null.

    Raises:
        ValueError: a part of the value cannot be serialized; the message says which.
    """
    return _json(value, "null")


def dump_finite(value: Any) -> bytes:
    """Serialize a reward as JSON.

    Raises:
        ValueError: a part of the value cannot be serialized, or is NaN or infinite; the message says which.
    """
    raw = _json(value, "constants")
    if b"NaN" in raw or b"Infinity" in raw:  # perhaps only inside a string
        found = _not_finite(from_json(raw), "")
        if found is not None:
            where, number = found
            raise ValueError(f"{f'{where} in it' if where else 'it'} is {number}; a reward must be a finite number")
    return raw


def _json(value: Any, inf_nan_mode: Literal["null", "constants"]) -> bytes:
    try:
        return to_json(value, inf_nan_mode=inf_nan_mode, bytes_mode="base64", by_alias=True, fallback=_converted)
    except ValueError as error:
        where, culprit = _culprit(value, "")
        place = f"{where} is of type {type(culprit).__name__}: " if where else ""
        message = str(error).removeprefix("Error serializing to JSON: ").removeprefix("ValueError: ")
        raise ValueError(
            f"the result ({type(value).__name__}) is not JSON: {place}{message[:300]}; "
            "return a dict, list, str, number, bool, None, pydantic model, dataclass, numpy value, bytes or aenv.Image"
        ) from None


def _converted(value: Any) -> Any:
    """Convert values that pydantic cannot: of numpy, torch and jax, and the ``...`` of an unfinished tool."""
    if value is ...:
        return "..."
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, memoryview):
        return value.tobytes()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, range | KeysView | ValuesView | ItemsView):
        return list(value)
    if hasattr(type(value), "tolist") and hasattr(value, "dtype"):  # an array or a scalar of numpy, torch, jax
        return value.tolist()
    raise ValueError(f"Unable to serialize unknown type: {type(value)}")


def _culprit(value: Any, where: str) -> tuple[str, Any]:
    """Return the path of the innermost part that cannot be serialized, and that part."""
    for name, child in _parts(value) if where.count("[") + where.count(".") < DEEPEST else ():
        try:
            to_json(child, inf_nan_mode="null", bytes_mode="base64", fallback=_converted)
        except ValueError:
            return _culprit(child, f"{where}{name}")
    return where, value


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", child) for key, child in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{number}]", child) for number, child in enumerate(value)]
    kind: Any = type(value)
    names: Iterable[str] = getattr(kind, "model_fields", {}) or getattr(kind, "__dataclass_fields__", {})
    return [(f".{name}", getattr(value, name, None)) for name in names]


def _not_finite(value: Any, where: str) -> tuple[str, float] | None:
    """Return the path of the first number that is NaN or infinite, and that number."""
    if isinstance(value, float) and not math.isfinite(value):
        return where, value
    for name, child in _parts(value):
        found = _not_finite(child, f"{where}{name}")
        if found is not None:
            return found
    return None


def mime_type_of(data: bytes) -> str:
    """Detect the MIME type from the first bytes."""
    if data[:4] == b"RIFF" and data[8:12] in _RIFF:
        return _RIFF[data[8:12]]
    return next((mime for magic, mime in _MAGIC if data.startswith(magic)), "application/octet-stream")


def is_content(kind: Any) -> bool:
    """Return whether results of this type are sent as content blocks, without a JSON value to describe in a schema."""
    kind = getattr(kind, "__origin__", kind)  # Annotated
    return isinstance(kind, type) and (issubclass(kind, File) or kind.__module__.startswith(_MCP_PACKAGES))


def _sendable(text: str) -> str:
    """Return ``text``; raise ValueError if UTF-8 cannot encode it."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the text cannot be sent: half of a surrogate pair at {error.start}") from None
    return text


def _is_block(value: Any) -> bool:
    if isinstance(value, File | bytes | bytearray) or hasattr(type(value), "_repr_png_"):
        return True
    return _is_mcp(value, "type") or _converter(value) is not None


def _as_block(value: Any) -> Block | None:
    if isinstance(value, File):
        return value.block()
    if isinstance(value, bytes | bytearray | memoryview):
        return File(bytes(value)).block()
    if _is_mcp(value, "type") and value.type in _MCP_BLOCKS:
        return _dump_model(value)
    convert = _converter(value)
    if convert is not None:
        return _dump_model(convert())
    if hasattr(type(value), "_repr_png_"):  # Pillow's images, and whatever else a notebook shows as a picture
        png = value._repr_png_()
        return Image(png, "image/png").block() if png else None
    return None


def _as_result(value: Any) -> Content | None:
    """Convert an explicit result: our `ToolResult`, or the MCP SDK's `CallToolResult`."""
    from aenv.authoring.results import ToolResult

    if isinstance(value, ToolResult):
        # Blocks and structured content built by the author may contain anything.
        blocks, structured = from_json(dump([value.content, value.structured]))
        is_json = value.is_json and _is_json_text(blocks)
        return Content(blocks, is_json=is_json, is_error=value.is_error, structured=structured)
    if type(value).__module__.startswith("fastmcp.") and hasattr(value, "structured_content"):
        blocks = [block for item in value.content for block in to_content(item).blocks]
        return Content(blocks, is_error=bool(getattr(value, "is_error", False)), structured=value.structured_content)
    if _is_mcp(value, "content"):
        dumped = _dump_model(value)
        return Content(
            dumped.get("content", []),
            is_error=bool(dumped.get("isError")),
            structured=dumped.get("structuredContent"),
        )
    return None


def _is_json_text(blocks: list[Block]) -> bool:
    if len(blocks) != 1 or blocks[0].get("type") != "text":
        return False
    try:
        from_json(blocks[0]["text"])
    except ValueError:
        return False
    return True


def _is_mcp(value: Any, attribute: str) -> bool:
    """Return whether ``value`` is of the MCP SDK or FastMCP, without importing either."""
    return type(value).__module__.startswith(_MCP_PACKAGES) and hasattr(value, attribute)


def _converter(value: Any) -> Callable[[], Any] | None:
    """Return the method that makes a content block of an Image, Audio or File of FastMCP or the MCP SDK."""
    if not type(value).__module__.startswith(_MCP_PACKAGES):
        return None
    return next((getattr(value, name) for name in _TO_CONTENT if hasattr(value, name)), None)


def _dump_model(value: Any) -> Block:
    dumped: Block = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped


def text_of(blocks: Iterable[Block]) -> str:
    """Return the texts of the text blocks, joined by newlines."""
    return "\n".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")
