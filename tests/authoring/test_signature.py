from __future__ import annotations

import datetime
import enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from aenv import Image
from aenv.authoring import signature
from aenv.authoring.signature import Signature
from aenv.errors import InvalidArguments, LoadError


class Query(BaseModel):
    query: str
    max_results: int = 10


class Color(enum.Enum):
    RED = "red"


class Socket: ...


def test_an_unannotated_default_shows_only_its_default() -> None:
    def execute_command(command: str, timeout=60):  # type: ignore[no-untyped-def]
        ...

    assert Signature(execute_command).input_schema == {
        "type": "object",
        "properties": {"command": {"type": "string"}, "timeout": {"default": 60, "title": "Timeout"}},
        "required": ["command"],
        "additionalProperties": False,
    }


def test_docstrings_describe_parameters() -> None:
    def tool(param1: str, param2: int = 42, other: str = "") -> dict:
        """Tool description for LLMs.

        With a second line: and a colon.

        Args:
            param1: Description of param1
            param2 (int): Description of param2,
                which goes on.

        Returns:
            What came of it
        """
        return {}

    signature = Signature(tool)
    properties = signature.input_schema["properties"]
    assert properties["param1"]["description"] == "Description of param1"
    assert properties["param2"]["description"] == "Description of param2, which goes on."
    assert "description" not in properties["other"]
    assert signature.description is not None
    assert signature.description.startswith("Tool description for LLMs.\n\nWith a second line: and a colon.")
    assert "Returns:" in signature.description
    assert "Args" not in signature.description


def test_a_docstring_without_indentation_is_parsed() -> None:
    def tool(content: str) -> None:
        """Echo.
        Args:
        content: Any content to echo
        Returns:
        Nothing"""

    signature = Signature(tool)
    assert signature.input_schema["properties"]["content"]["description"] == "Any content to echo"
    assert signature.description == "Echo.\nReturns:\nNothing"


def test_sphinx_fields_describe_parameters() -> None:
    def tool(a: int, b: int) -> None:
        """Do it.

        :param a: the first
            of two
        :param int b: the second
        """

    properties = Signature(tool).input_schema["properties"]
    assert properties["a"]["description"] == "the first of two"
    assert properties["b"]["description"] == "the second"


def test_json_types_are_not_converted() -> None:
    def tool(i: int, f: float = 0, s: str = "", b: bool = False) -> None: ...

    signature = Signature(tool)
    assert signature.validate_json(b'{"i": 1, "f": 2}') == {"i": 1, "f": 2.0}
    for body in (b'{"i": "1"}', b'{"i": true}', b'{"i": 1, "f": "2"}', b'{"i": 1, "s": 5}', b'{"i": 1, "b": "yes"}'):
        with pytest.raises(InvalidArguments):
            signature.validate_json(body)


def test_a_whole_number_is_an_integer_as_in_json_schema() -> None:
    def tool(i: int, many: list[int] | None = None, f: float | int = 0, q: Query | None = None) -> None: ...

    body = b'{"i": 1.0, "many": [2, 3.0], "f": 2.5, "q": {"query": "x", "max_results": 4e1}}'
    got = Signature(tool).validate_json(body)
    assert (got["i"], got["many"], got["f"], got["q"].max_results) == (1, [2, 3], 2.5, 40)
    assert isinstance(got["i"], int)
    for wrong in (b'{"i": 1.5}', b'{"i": true}', b'{"i": 1e300}', b'{"i": NaN}'):
        with pytest.raises(InvalidArguments):
            Signature(tool).validate_json(wrong)


@pytest.mark.parametrize(
    ("body", "said"),
    [(b'{"i": "3"}', "i: expected an integer, got the text '3'; send 3 without quotes"),
     (b'{"i": 3, "f": "2.5"}', "f: expected a number, got the text '2.5'; send 2.5 without quotes"),
     (b'{"i": 3, "b": "True"}', "b: expected true or false, got the text 'True'; send true without quotes"),
     (b'{"i": "many"}', "i: expected an integer, got the text 'many'")],
)  # fmt: skip
def test_a_number_as_text_is_refused_with_words_that_a_model_can_act_on(body: bytes, said: str) -> None:
    def tool(i: int, f: float = 0, b: bool = False) -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        Signature(tool).validate_json(body)
    assert caught.value.message == said


def test_functions_of_a_lenient_project_get_what_cannot_be_converted_as_it_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def grade(count: int, name: str = "") -> None: ...

    signature, body = Signature(grade), b'{"count": "several", "name": null}'
    with pytest.raises(InvalidArguments, match="count"):
        signature.validate_json(body, lenient=True)
    monkeypatch.setenv("AENV_ARGUMENT_TYPES", "lenient")
    assert signature.validate_json(body, lenient=True) == {"count": "several", "name": None}
    with pytest.raises(InvalidArguments, match="count"):  # a tool
        signature.validate_json(body)
    for wrong in (b'{"count": "several", "nam": ""}', b"{}", b"[]", b"{"):
        with pytest.raises(InvalidArguments):
            signature.validate_json(wrong, lenient=True)


def test_lenient_validation_accepts_numbers_and_flags_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def tool(i: int, s: str, b: bool = False, day: datetime.date | None = None) -> None: ...

    body, got = b'{"i": "3", "s": 5, "b": "true"}', {"i": 3, "s": "5", "b": True}
    assert Signature(tool).validate_json(body, lenient=True) == got
    monkeypatch.setenv("AENV_ARGUMENT_TYPES", "lenient")
    assert Signature(tool).validate_json(body) == got
    with pytest.raises(InvalidArguments, match="i: "):
        Signature(tool).validate_json(b'{"i": "three", "s": ""}')


def test_types_that_json_lacks_are_parsed_from_strings_and_lists() -> None:
    def tool(
        day: datetime.date, path: Path, color: Color, pair: tuple[int, int], names: set[str], q: Query
    ) -> None: ...

    body = b'{"day":"2026-01-02","path":"/x","color":"red","pair":[1,2],"names":["a"],"q":{"query":"z"}}'
    assert Signature(tool).validate_json(body) == {
        "day": datetime.date(2026, 1, 2),
        "path": Path("/x"),
        "color": Color.RED,
        "pair": (1, 2),
        "names": {"a"},
        "q": Query(query="z"),
    }


def test_an_error_names_the_argument_and_the_problem() -> None:
    def tool(count: int, q: Query, mode: Literal["a", "b"] = "a") -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        Signature(tool).validate_json(b'{"q": {"query": 3}, "mode": "c", "extra": 1}')
    message = caught.value.message
    assert "count: missing" in message
    assert "q.query: " in message
    assert "'a' or 'b'" in message
    assert "extra: unknown argument; known: count, q, mode" in message
    assert caught.value.fault == "caller"


@pytest.mark.parametrize("body", [b"[]", b"3", b"nonsense", b'{"a": 1', b"\xff"])
def test_a_body_that_is_not_an_object_is_rejected(body: bytes) -> None:
    with pytest.raises(InvalidArguments):
        Signature(lambda: None).validate_json(body)


def test_an_empty_body_means_no_arguments() -> None:
    assert Signature(lambda: None).validate_json(b"") == {}


def test_a_default_of_none_makes_a_parameter_optional() -> None:
    def tool(name: str = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    signature = Signature(tool)
    assert signature.validate_json(b'{"name": null}') == {"name": None}
    assert {"type": "null"} in signature.input_schema["properties"]["name"]["anyOf"]


def test_constraints_and_descriptions_in_annotations_apply() -> None:
    def tool(n: Annotated[int, Field(ge=0, le=9, description="a digit")]) -> None: ...

    schema = Signature(tool).input_schema["properties"]["n"]
    assert schema == {"type": "integer", "minimum": 0, "maximum": 9, "description": "a digit"}
    with pytest.raises(InvalidArguments):
        Signature(tool).validate_json(b'{"n": 10}')


def test_a_function_may_take_any_keywords() -> None:
    def tool(a: int, **rest: Any) -> None: ...

    assert Signature(tool).validate_json(b'{"a": 1, "b": 2}') == {"a": 1, "b": 2}


def test_names_that_pydantic_reserves_are_allowed() -> None:
    def tool(schema: str, json: str, model_config: str, _private: int, copy: bool) -> None: ...

    body = b'{"schema":"s","json":"j","model_config":"m","_private":1,"copy":true}'
    assert Signature(tool).validate_json(body)["_private"] == 1


def test_positional_only_parameters_are_split_off() -> None:
    def tool(a: int, /, b: int) -> None: ...

    signature = Signature(tool)
    assert signature.split(signature.validate_json(b'{"a":1,"b":2}')) == ([1], {"b": 2})


def test_values_of_a_query_string_are_converted() -> None:
    def tool(n: int, flag: bool = False, names: list[str] | None = None) -> None: ...

    got = Signature(tool).validate_strings({"n": "3", "flag": "true", "names": ["a", "b"]})
    assert got == {"n": 3, "flag": True, "names": ["a", "b"]}


def test_a_result_that_is_an_object_has_a_schema() -> None:
    def typed() -> Query:
        return Query(query="")

    def loose() -> dict:
        return {}

    def number() -> int | None:
        return None

    schema = Signature(typed).output_schema
    assert schema is not None
    assert schema["properties"]["max_results"]["type"] == "integer"
    assert Signature(loose).output_schema is None
    assert Signature(number).output_schema == {"anyOf": [{"type": "integer"}, {"type": "null"}]}


@pytest.mark.parametrize("kind", [Any, None, list, list[Any], Image, str | Image, list[Image], dict[str, int]])
def test_a_result_that_may_be_content_or_anything_has_no_schema(kind: Any) -> None:
    def tool() -> Any: ...

    tool.__annotations__["return"] = kind
    assert Signature(tool).output_schema is None


def test_a_type_without_json_schema_is_rejected_with_its_place() -> None:
    def tool(s: Socket) -> None: ...

    with pytest.raises(LoadError, match=r"here\.py:7.*cannot be sent as JSON: <class '.*Socket'>; take") as caught:
        Signature(tool, "here.py:7")
    assert "arbitrary_types_allowed" not in caught.value.message


def test_an_unresolvable_annotation_is_rejected_with_its_place() -> None:
    def tool(s: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(LoadError, match=r"here\.py:7.*Missing"):
        Signature(tool, "here.py:7")


@pytest.mark.parametrize(
    "kind",
    [
        Any, str, int, float, bool, list, dict, list[str], list[list[int]], dict[str, Any], dict[str, list[float]],
        str | None, list[str | None] | None, dict[str, dict[str, bool]] | None,
    ],
)  # fmt: skip
def test_a_plain_type_is_validated_as_pydantic_would(kind: Any) -> None:
    ours, theirs = signature.plain_schema(kind), TypeAdapter(kind).core_schema
    assert ours == {name: value for name, value in theirs.items() if name != "metadata"}


@pytest.mark.parametrize("kind", [bytes, int | str, tuple[int, str], set[int], Literal["a"], list[bytes]])
def test_other_types_are_left_to_pydantic(kind: Any) -> None:
    assert signature.plain_schema(kind) is None
