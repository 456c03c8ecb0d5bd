"""What `aenv doctor --for` says about the packages of an adapter."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from aenv.adapters import installed
from aenv.adapters.installed import MODULES, examine
from aenv.cli.commands.setup.doctor import command
from aenv.errors import UsageError


@pytest.mark.parametrize("extra", sorted(MODULES))
def test_every_adapter_can_be_examined(extra: str) -> None:
    found = examine(extra)
    assert found
    assert all(each.what and each.said for each in found)
    assert all(each.hint for each in found if each.state != "ok")


def test_a_package_that_is_there_is_named_with_its_version() -> None:
    found = {each.what: each for each in examine("openai-agents")}
    assert found["openai-agents"].state == "ok"
    assert found["openai-agents"].said[0].isdigit()
    assert found["aenv.adapters.agents.openai_agents"].state == "ok"


def test_a_version_that_is_too_old_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed.metadata, "version", lambda name: "0.0.1")
    found = {each.what: each for each in examine("agents")}
    assert found["openai-agents"].state == "wrong"
    assert "0.0.1 is installed" in found["openai-agents"].said


def test_a_package_that_excludes_the_framework_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed.metadata, "version", lambda name: "99")
    found = {each.what: each for each in examine("openenv")}
    assert found["verifiers"].state == "wrong"
    assert "no common solution" in found["verifiers"].said


def test_an_unknown_name_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UsageError) as refused:
        examine("trrl")
    assert "trl" in refused.value.details["hint"]


def test_the_command_exits_with_3_where_something_is_missing() -> None:
    done = CliRunner().invoke(command, ["--for", "agents", "--output", "json"], standalone_mode=False)
    said = json.loads(done.stdout)
    assert said["works"] is True
    assert done.return_value == 0
    missing = CliRunner().invoke(command, ["--for", "stable-baselines3"], standalone_mode=False)
    assert missing.return_value == 3
    assert "pip install 'aenvironment[stable-baselines3]'" in missing.stdout
