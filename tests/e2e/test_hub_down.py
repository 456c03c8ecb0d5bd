"""Environments of a hub that is down."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from .conftest import COMMAND, Person

RUN = """
from aenv import SyncEnvironment
with SyncEnvironment("notes@1.0.0") as env:
    print(env.version, env.digest, env.list_tools()[0]["name"])
"""
RANGE = RUN.replace("1.0.0", "1")


def test_a_version_that_was_used_before_runs_while_its_hub_is_down(person: Callable[..., Person]) -> None:
    operator = person()
    with subprocess.Popen(
        [*COMMAND, "hub", "serve", "--port", "0"], env=operator.env, stdout=subprocess.PIPE, text=True
    ) as hub:
        assert hub.stdout is not None
        try:
            url = next(word for word in hub.stdout.readline().split() if word.startswith("http://"))
            ann = person(AENV_HUB_URL=url.rstrip(";,"))
            ann.aenv("init", "notes")
            digest = ann.json("push", "-w", "notes", "-o", "json")["digest"]
            expected = f"1.0.0 {digest} notes@1.0.0/my_custom_echo_env\n"
            assert ann.python(RUN) == expected
        finally:
            hub.terminate()
    assert ann.python(RUN) == expected
    assert ann.python(RANGE) == expected, "the only cached version satisfies the range"
    ann.aenv("local", "stop", "--all")
    assert ann.python(RUN) == expected, "a new platform knows it from the disk"
