"""Results of tools, functions and rewards: numpy values are converted, and errors name what cannot be."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from aenv import ToolResult
from aenv.authoring.content import dump, dump_finite, to_content
from aenv.testing import Server, running
from tests.conftest import fetch


class Array:
    """As numpy's arrays and scalars look from outside; there is no numpy in the base install."""

    dtype = "float32"

    def __init__(self, value: Any) -> None:
        self._value = value

    def tolist(self) -> Any:
        return self._value


@dataclass
class Step:
    score: Any


@pytest.mark.parametrize(
    ("value", "json"),
    [
        (Array(1.5), b"1.5"),
        (Array(True), b"true"),
        (Array([[1, 2], [3, 4]]), b"[[1,2],[3,4]]"),
        ({"a": [Array(1), {"b": Array([])}]}, b'{"a":[1,{"b":[]}]}'),
        (Array([Array(1), "x"]), b'[1,"x"]'),
        (Step(Array(2)), b'{"score":2}'),
    ],
)
def test_arrays_and_scalars_are_converted_wherever_they_are(value: Any, json: bytes) -> None:
    assert dump(value) == dump_finite(value) == json


def test_values_of_the_standard_library_are_converted() -> None:
    value = {
        "pure": PurePosixPath("/a"),
        "memory": memoryview(b"ab"),
        "mapping": ChainMap({"a": 1}),
        "range": range(2),
        "keys": {"k": 1}.keys(),
        "decimal": Decimal("1.50"),
    }
    assert dump(value) == (
        b'{"pure":"/a","memory":"YWI=","mapping":{"a":1},"range":[0,1],"keys":["k"],"decimal":"1.50"}'
    )


def test_an_explicit_result_may_contain_numpy_and_dates() -> None:
    numpy = pytest.importorskip("numpy")
    made = to_content(ToolResult([], structured={"scores": numpy.array([0.5]), "at": date(2026, 1, 2)}))
    assert made.structured == {"scores": [0.5], "at": "2026-01-02"}


def test_values_of_numpy_itself_are_converted() -> None:
    numpy = pytest.importorskip("numpy")
    value = {
        "scalars": [numpy.int64(1), numpy.float32(0.5), numpy.bool_(True), numpy.str_("x")],
        "array": numpy.array([[1.0, 2.0]]),
        "zero": numpy.array(3),
        numpy.int64(7): "a key",
        "time": numpy.datetime64("2026-01-02"),
    }
    assert dump(value) == (b'{"scalars":[1,0.5,true,"x"],"array":[[1.0,2.0]],"zero":3,"7":"a key","time":"2026-01-02"}')
    with pytest.raises(ValueError, match=r"\['a'\]\[1\] in it is nan"):
        dump_finite({"a": numpy.array([0, numpy.nan])})
    with pytest.raises(ValueError, match="it is inf"):
        dump_finite(numpy.float32("inf"))


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"lock": object()}, r"\['lock'\] is of type object"),
        ({"a": {"b": [1, {"c": object()}]}}, r"\['a'\]\['b'\]\[1\]\['c'\] is of type object"),
        ([1, (2, object())], r"\[1\]\[1\] is of type object"),
        ({"step": Step(object())}, r"\['step'\]\.score is of type object"),
        ({"array": Array([1, object()])}, r"\['array'\] is of type Array"),
        ({"text": "\ud800"}, r"\['text'\] is of type str"),
        (object(), "is not JSON: Unable to serialize"),
    ],
)
def test_a_value_that_cannot_be_converted_is_named_with_its_key(value: Any, where: str) -> None:
    for write in (dump, dump_finite, to_content):
        with pytest.raises(ValueError, match=where):
            write(value)


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = [loop]
    with pytest.raises(ValueError, match="is not JSON"):
        dump(loop)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "it is nan"),
        (float("-inf"), "it is -inf"),
        ({"reward": float("nan")}, r"\['reward'\] in it is nan"),
        ({"parts": [1.0, {"x": Array(float("inf"))}]}, r"\['parts'\]\[1\]\['x'\] in it is inf"),
    ],
)
def test_a_reward_that_is_no_number_is_refused_with_its_key(value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"{said}; a reward must be a finite number"):
        dump_finite(value)


def test_the_word_nan_in_a_text_is_no_number() -> None:
    assert dump_finite({"why": "NaN and Infinity"}) == b'{"why":"NaN and Infinity"}'


@pytest.mark.parametrize("value", ["\ud800", ToolResult([{"type": "text", "text": object()}])])
def test_a_text_or_a_block_that_cannot_be_sent_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"surrogate|is not JSON"):
        to_content(value)


ENV = """
from aenv import ToolResult, register_function, register_reward, register_tool


class Array:
    dtype = "float64"

    def __init__(self, value):
        self._value = value

    def tolist(self):
        return self._value


class Rude(Exception):
    def __str__(self):
        raise RuntimeError("no")


@register_tool
def array(): return {"grid": Array([[0, 1]])}

@register_tool
def broken(): return "\\ud800"

@register_tool
def block(): return ToolResult([{"type": "text", "text": object()}])

@register_tool
def rude(): raise Rude

@register_tool
def odd(): raise ValueError("\\ud800")

@register_function
def number(): return Array(3)

@register_function
def thing(): return {"a": [object()]}

@register_function
def rude_function(): raise Rude

@register_function
def odd_function(): raise ValueError("\\ud800")

@register_reward(name="good")
def good(): return Array(0.5)

@register_reward(name="nan")
def nan(): return {"score": float("nan")}

@register_reward(name="inf")
def inf(): return Array(float("inf"))

@register_reward(name="thing")
def thing_reward(): return {"score": object()}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("values")
    (folder / "env.py").write_text(ENV)
    with running(folder / "env.py", log=folder / "log") as server:
        yield server


def test_an_instance_converts_results_and_rewards(server: Server) -> None:
    assert fetch(server.url, "/tools/array", {})[1]["data"]["content"][0]["text"] == '{"grid":[[0,1]]}'
    assert fetch(server.url, "/functions/number", {}) == (200, {"success": True, "data": 3})
    assert fetch(server.url, "/task/reward?reward=good", {}) == (200, {"success": True, "data": 0.5})


@pytest.mark.parametrize("name", ["broken", "block", "rude", "odd"])
def test_a_result_that_cannot_be_sent_is_the_environments_fault(server: Server, name: str) -> None:
    status, body = fetch(server.url, f"/tools/{name}", {})
    assert (status, body["data"]["is_error"], body["data"]["fault"]) == (200, True, "env")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/functions/thing", "['a'][0] is of type object"),
        ("/functions/rude_function", "Rude"),
        ("/functions/odd_function", "?"),
        ("/task/reward?reward=nan", "reward 'nan': ['score'] in it is nan"),
        ("/task/reward?reward=inf", "reward 'inf': it is inf"),
        ("/task/reward?reward=thing", "['score'] is of type object"),
    ],
)
def test_a_value_that_cannot_be_sent_is_an_error_with_its_key(server: Server, path: str, said: str) -> None:
    status, body = fetch(server.url, path, {})
    assert (status, body["success"], body["fault"]) == (500, False, "env")
    assert said in body["error"]
