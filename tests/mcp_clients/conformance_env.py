"""The tools that MCP's conformance suite calls, written as an author writes an environment."""

from __future__ import annotations

import base64
import time
from typing import Annotated, Literal

from mcp.types import EmbeddedResource, TextResourceContents
from pydantic import BaseModel, ConfigDict, Field

from aenv import Audio, Image, current_call, register_tool

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SILENCE = base64.b64decode("UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQIAAAAAAA==")


@register_tool
def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@register_tool
def test_image_content() -> Image:
    """Return a picture."""
    return Image(PIXEL)


@register_tool
def test_audio_content() -> Audio:
    """Return a sound."""
    return Audio(SILENCE)


@register_tool
def test_embedded_resource() -> EmbeddedResource:
    """Return a document inside the result."""
    return _document("test://embedded-resource", "text/plain", "This is an embedded resource content.")


@register_tool
def test_multiple_content_types() -> list[object]:
    """Return a text, a picture and a document."""
    document = _document("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
    return ["Multiple content types test:", Image(PIXEL), document]


@register_tool
def test_error_handling() -> None:
    """Fail."""
    raise RuntimeError("This tool intentionally returns an error for testing")


@register_tool
def test_tool_with_progress() -> str:
    """Report progress, from a thread."""
    call = current_call()
    for done in (0, 50, 100):
        call.progress(done, 100, f"Completed step {done} of 100")
        time.sleep(0.01)
    return "done"


class address(BaseModel):  # in small letters: the suite asks for a definition of this name
    model_config = ConfigDict(json_schema_extra={"$anchor": "addressDef"})

    street: str
    city: str


@register_tool
def json_schema_2020_12_tool(
    name: str, address: address, contact_method: Literal["phone", "email"] = "phone", phone: str = "", email: str = ""
) -> str:
    """Take a nested object."""
    return f"{name} lives in {address.city}; {contact_method}: {phone or email}"


@register_tool
def test_custom_headers(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
    priority: Annotated[int, Field(json_schema_extra={"x-mcp-header": "Priority"})] = 0,
    query: str = "",
) -> str:
    """Take arguments that a proxy may route by, since clients repeat them in headers."""
    return f"{query} in {region} at {priority}"


def _document(uri: str, mime_type: str, text: str) -> EmbeddedResource:
    return EmbeddedResource(resource=TextResourceContents(uri=uri, mime_type=mime_type, text=text))
