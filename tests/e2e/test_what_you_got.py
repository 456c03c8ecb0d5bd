"""What a user learns about what they got: versions, digests, addresses, warnings, and names that were meant."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.platform.parts import serving

from .conftest import Person

NewPerson = Callable[..., Person]
LOOK = """
import asyncio, json, sys
from aenv import Environment

async def main():
    env = Environment(sys.argv[1])
    before = [env.instance_id, env.version, env.digest, env.url]
    async with env:
        tool = (await env.list_tools())[0]["name"]
        called = (await env.call_tool(tool, {"content": "hi"})).is_error
        unknown = (await env.call_tool("my_custom_echo_en", {})).text
        running = [env.instance_id, env.version, env.digest, env.url]
    after = [env.instance_id, env.version, env.digest, env.url]
    print(json.dumps(dict(before=before, running=running, after=after, tool=tool, called=called, unknown=unknown)))

asyncio.run(main())
"""


@pytest.fixture
def ann(person: NewPerson) -> Person:
    return person()


def publish(who: Person, *versions: str, name: str = "notes") -> dict[str, str]:
    """Publish versions of a new project; return their digests."""
    who.aenv("init", name)
    return {version: who.json("push", "-w", name, "-v", version, "-o", "json")["digest"] for version in versions}


def look(who: Person, env_name: str) -> tuple[dict[str, list[str | None]], str]:
    done = subprocess.run(
        [sys.executable, "-c", LOOK, env_name], cwd="/", env=who.env, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.long
@pytest.mark.parametrize("wanted", ["notes@1.2.0", "notes@^1.0", "notes@1", "notes"])
def test_an_environment_knows_what_it_runs(ann: Person, wanted: str) -> None:
    digests = publish(ann, "1.0.0", "1.2.0")
    seen, _ = look(ann, wanted)
    exact = "1.2.0" if wanted == "notes@1.2.0" else None
    assert seen["before"] == [None, exact, None, None]
    instance, version, digest, url = seen["running"]
    assert (version, digest) == ("1.2.0", digests["1.2.0"])
    assert instance is not None
    assert instance.startswith("notes-")
    assert url is not None
    assert url.startswith(("unix:", "http"))
    assert seen["after"] == [instance, version, digest, None]
    assert seen["tool"] == "notes@1.2.0/my_custom_echo_env"
    assert seen["called"] is False
    assert seen["unknown"] == "Unknown tool: my_custom_echo_en; did you mean my_custom_echo_env?"


@pytest.mark.long
@pytest.mark.parametrize("state", ["deprecate", "yank"])
def test_a_deprecated_or_yanked_version_warns_in_the_sdk_and_the_cli(ann: Person, state: str) -> None:
    publish(ann, "1.0.0")
    ann.aenv(state, "notes@1.0.0", "--reason", "use 2.0.0")
    expected = f"notes@1.0.0 is {'deprecated' if state == 'deprecate' else 'yanked'}: use 2.0.0"
    assert expected in look(ann, "notes@1.0.0")[1]
    assert f"Warning: {expected}" in ann.aenv("instance", "info", "notes@1.0.0").stderr
    assert expected in ann.aenv("pull", "notes@1.0.0", "elsewhere").stderr


def test_an_environment_that_was_meant_is_suggested(ann: Person) -> None:
    publish(ann, "1.0.0")
    for command in (("get", "note"), ("pull", "note"), ("instance", "info", "note")):
        assert "did you mean notes?" in ann.aenv(*command, code=1).stderr
    assert "did you mean push?" in ann.aenv("pusch", code=2).stderr
    assert "list" in ann.aenv("instance", "lst", code=2).stderr


def test_a_push_says_where_it_went(ann: Person) -> None:
    ann.aenv("init", "notes")
    place = ann.home / ".local" / "share" / "aenv" / "hub" / "hub.db"
    assert f"in the hub at this machine, {place}" in ann.aenv("push", "-w", "notes", "--dry-run").stdout
    assert f"hub     this machine, {place}" in ann.aenv("push", "-w", "notes").stdout
    assert ann.json("push", "-w", "notes", "-o", "json")["hub"] == f"this machine, {place}"


def test_a_push_goes_to_the_hub_of_the_platform_that_one_has_a_key_for(person: NewPerson) -> None:
    data = Path(tempfile.mkdtemp(prefix="aenv-t-", dir="/tmp"))  # a socket's path is short
    try:
        with serving(data) as platform:
            ann = person(AENV_SYSTEM_URL=platform.url, AENV_API_KEY=platform.token("ann"))
            ann.aenv("init", "notes")
            assert f"hub     {platform.url}" in ann.aenv("push", "-w", "notes").stdout
            assert "notes" in ann.aenv("list").stdout
            seen, _ = look(ann, "notes")
            assert seen["running"][1] == "1.0.0"
            assert seen["tool"] == "notes@1.0.0/my_custom_echo_env"
            ann.aenv("deprecate", "notes@1.0.0", "--reason", "old")
            expected = "Warning: notes@1.0.0 is deprecated: old"
            assert expected in ann.aenv("service", "create", "notes@1.0.0").stderr
    finally:
        shutil.rmtree(data, ignore_errors=True)
