from __future__ import annotations

import base64
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from PIL import Image as Pillow
from pydantic import BaseModel, Field

from aenv import Audio, File, Image, ToolResult
from aenv.authoring.content import mime_type_of, to_content
from aenv.authoring.signature import Signature

PNG = b"\x89PNG\r\n\x1a\n rest"


@dataclass
class Point:
    x: int


class Aliased(BaseModel):
    inner: int = Field(serialization_alias="outer")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"result": "hi"}, '{"result":"hi"}'),
        (["a", "b"], '["a","b"]'),
        (2, "2"),
        (True, "true"),
        (1.5, "1.5"),
        (Point(1), '{"x":1}'),
        (Aliased(inner=1), '{"outer":1}'),
        ({"v": float("inf")}, '{"v":null}'),
        ({1: "one"}, '{"1":"one"}'),
        ((), "[]"),
    ],
)
def test_values_become_compact_json(value: Any, text: str) -> None:
    content = to_content(value)
    assert content.blocks == [{"type": "text", "text": text}]
    assert content.is_json


def test_strings_stay_unchanged_and_none_has_no_content() -> None:
    assert to_content("{not json}").blocks == [{"type": "text", "text": "{not json}"}]
    assert to_content("").blocks == [{"type": "text", "text": ""}]
    assert to_content(None).blocks == []


def test_the_type_of_bytes_is_detected() -> None:
    encoded = base64.b64encode(PNG).decode()
    assert to_content(PNG).blocks == [{"type": "image", "data": encoded, "mimeType": "image/png"}]
    [block] = to_content(b"\x00\x01").blocks
    assert block["type"] == "resource"
    assert block["resource"]["mimeType"] == "application/octet-stream"
    assert base64.b64decode(block["resource"]["blob"]) == b"\x00\x01"


def test_images_sounds_and_files_keep_their_type(tmp_path: Any) -> None:
    assert to_content(Image(b"x", "image/webp")).blocks[0]["mimeType"] == "image/webp"
    assert to_content(Audio(b"RIFF....WAVE")).blocks[0]["type"] == "audio"
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.7")
    assert to_content(File.read(tmp_path / "a.pdf")).blocks[0]["resource"]["mimeType"] == "application/pdf"
    assert mime_type_of(b"RIFF....WEBPVP8 ") == "image/webp"


def test_a_pillow_image_becomes_a_png() -> None:
    [block] = to_content(Pillow.new("RGB", (2, 2), "red")).blocks
    assert block["mimeType"] == "image/png"
    assert base64.b64decode(block["data"]).startswith(b"\x89PNG")


def test_a_list_may_mix_text_and_images() -> None:
    blocks = to_content(["look:", Image(PNG), {"a": 1}]).blocks
    assert [b["type"] for b in blocks] == ["text", "image", "text"]
    assert blocks[2]["text"] == '{"a":1}'


def test_explicit_results_pass_through() -> None:
    content = to_content(ToolResult([{"type": "text", "text": "t"}], is_error=True, structured={"a": 1}))
    assert content.blocks == [{"type": "text", "text": "t"}]
    assert content.is_error
    assert content.structured == {"a": 1}


@pytest.mark.parametrize(
    ("blocks", "is_json"),
    [
        ([{"type": "text", "text": '{"a": 1}'}], True),
        ([{"type": "text", "text": "{no JSON"}], False),
        ([{"type": "text", "text": "1"}, {"type": "text", "text": "2"}], False),
    ],
)
def test_an_explicit_result_of_json_text_stays_data(blocks: list[dict[str, str]], is_json: bool) -> None:
    assert to_content(ToolResult(blocks, is_json=True)).is_json is is_json


def test_explicit_mcp_content_passes_through() -> None:
    from mcp.types import CallToolResult, ImageContent, TextContent

    blocks = to_content([TextContent(text="a"), ImageContent(data="AA==", mime_type="image/png")]).blocks
    assert blocks == [{"type": "text", "text": "a"}, {"type": "image", "data": "AA==", "mimeType": "image/png"}]
    content = to_content(CallToolResult(content=[TextContent(text="b")], is_error=True, structured_content={"c": 1}))
    assert (content.blocks[0]["text"], content.is_error, content.structured) == ("b", True, {"c": 1})


def test_images_sounds_and_files_of_fastmcp_become_blocks() -> None:
    from fastmcp.utilities import types

    png = base64.b64encode(PNG).decode()
    image = {"type": "image", "data": png, "mimeType": "image/png"}
    assert to_content(types.Image(data=PNG, format="png")).blocks == [image]
    assert to_content(["look:", types.Image(data=PNG, format="png")]).blocks == [
        {"type": "text", "text": "look:"},
        image,
    ]
    sound = to_content(types.Audio(data=b"RIFF", format="wav")).blocks[0]
    assert (sound["type"], sound["mimeType"]) == ("audio", "audio/wav")
    assert to_content(types.File(data=b"abc", name="a.bin")).blocks[0]["type"] == "resource"


def test_a_tool_result_of_fastmcp_passes_through() -> None:
    from fastmcp.tools.base import ToolResult as Theirs

    got = to_content(Theirs(content="done", structured_content={"n": 1}))
    assert (got.blocks, got.structured, got.is_error) == ([{"type": "text", "text": "done"}], {"n": 1}, False)


def test_a_function_that_returns_an_image_of_fastmcp_has_no_output_schema() -> None:
    from fastmcp.utilities.types import Image as Theirs

    def draw() -> Any: ...

    draw.__annotations__["return"] = Theirs
    assert Signature(draw).output_schema is None


def test_a_value_that_is_not_json_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"is not JSON.*return a dict"):
        to_content({"lock": threading.Lock()})


def test_a_result_has_the_documented_repr_text_and_data() -> None:
    result = ToolResult([{"type": "text", "text": '{"a":1}'}], is_json=True)
    assert repr(result) == """ToolResult(content=[{'type': 'text', 'text': '{"a":1}'}], is_error=False)"""
    assert result.text == '{"a":1}'
    assert result.data == {"a": 1}
    assert ToolResult([{"type": "text", "text": "3"}]).data == "3"
    assert ToolResult([]).data is None
    assert ToolResult([], structured=[1]).data == [1]
    assert ToolResult([]) == ToolResult([])
    assert ToolResult([]) != ToolResult([], is_error=True)
