"""Property-based tests: invariants that hold for every input."""

from __future__ import annotations

import contextlib
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from aenv import ToolResult
from aenv.authoring import docstrings
from aenv.authoring.content import to_content
from aenv.authoring.signature import Signature
from aenv.errors import InvalidArguments, ToolNotFound
from aenv.sdk.environment import Environment
from aenv.sdk.model_formats import accepted_names
from aenv.sdk.qualified_names import bare_name, split_env_name_version

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
versions = st.from_regex(r"[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{1,2}", fullmatch=True)


@given(json_values)
def test_any_json_value_survives_a_tool_call(value: Any) -> None:
    def tool(value: Any) -> Any:
        return value

    arguments = Signature(tool).validate_json(to_json({"value": value}))
    content = to_content(tool(**arguments))
    sent = from_json(to_json(content.blocks))
    assert ToolResult(sent, is_json=content.is_json).data == value


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4))
def test_bad_arguments_raise_only_invalid_arguments(arguments: dict[str, Any]) -> None:
    def tool(a: int, b: list[str] = []) -> None: ...  # noqa: B006

    with contextlib.suppress(InvalidArguments):
        got = Signature(tool).validate(arguments)
        assert type(got["a"]) is int
        assert set(got) <= {"a", "b"}


@given(st.integers(-(2**60), 2**60), st.text(), st.booleans(), st.lists(st.text(), max_size=3))
def test_arguments_that_match_the_schema_are_accepted(i: int, s: str, b: bool, tags: list[str]) -> None:
    def tool(i: int, s: str, b: bool, tags: list[str]) -> None: ...

    sent = {"i": i, "s": s, "b": b, "tags": tags}
    assert Signature(tool).validate(sent) == sent


@given(names, versions, st.text(min_size=1).filter(lambda t: "/" not in t))
def test_a_qualified_tool_name_resolves_to_its_bare_name(name: str, version: str, tool: str) -> None:
    env = Environment(f"{name}@{version}", aenv_url="http://localhost")
    assert bare_name(env.env_name, f"{name}@{version}/{tool}") == tool
    assert bare_name(env.env_name, f"{name}/{tool}") == tool
    assert bare_name(env.env_name, tool) == tool
    assert split_env_name_version(env.env_name) == (name, version)


@given(names, names, st.text(min_size=1))
def test_a_tool_name_of_another_environment_is_refused(mine: str, theirs: str, tool: str) -> None:
    env = Environment(mine, aenv_url="http://localhost")
    try:
        bare = bare_name(env.env_name, f"{theirs}/{tool}")
    except ToolNotFound:
        assert mine != theirs
    else:
        assert mine == theirs
        assert bare == tool


@given(st.lists(st.text(min_size=1, max_size=80), max_size=30))
def test_tool_names_for_model_apis_are_valid_and_distinct(tools: list[str]) -> None:
    made = accepted_names(tools)
    assert len(made) == len(tools)
    assert len(set(made)) == len(made)
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", name) for name in made)


@given(st.text(), st.lists(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), max_size=4))
def test_any_docstring_can_be_parsed(text: str, parameters: list[str]) -> None:
    doc = docstrings.parse(text, parameters)
    assert set(doc.parameters) <= set(parameters)


@given(
    st.dictionaries(
        st.sampled_from(["alpha", "beta", "gamma"]), st.from_regex(r"[A-Za-z ,.]{1,30}[a-z.]", fullmatch=True)
    )
)
def test_parameter_descriptions_are_parsed_from_a_docstring(parameters: dict[str, str]) -> None:
    lines = "".join(f"\n    {name}: {text}" for name, text in parameters.items())
    doc = docstrings.parse(f"What it does.\n\nArgs:{lines}\n", ["alpha", "beta", "gamma"])
    assert doc.parameters == {name: text.strip() for name, text in parameters.items()}
    assert doc.description == "What it does."
