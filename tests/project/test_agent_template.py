"""The template of `aenv init -t agent`, in a sandbox, with a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from aenv import Environment
from aenv.project import scaffold
from tests.conftest import run
from tests.scripted_model import scripted_model


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_an_agent_reaches_its_model_from_a_sandbox(sandboxes: None, tmp_path: Path, host: str) -> None:
    project = scaffold.create("my-agent", template="agent", parent_dir=tmp_path).root
    with scripted_model(lambda messages: f"you said {messages[-1]['content']}") as model:
        url = model.url.replace("127.0.0.1", host)

        async def main() -> str:
            async with Environment(str(project), environment_variables={"OPENAI_BASE_URL": url}) as env:
                return (await env.call_tool("chat", {"message": "hello"})).text

        assert run(main()) == "you said hello"
        assert len(model.asked) == 1


def test_an_agent_without_a_model_answers_by_rules(sandboxes: None, tmp_path: Path) -> None:
    project = scaffold.create("my-agent", template="agent", parent_dir=tmp_path).root

    async def main() -> str:
        async with Environment(str(project)) as env:
            return (await env.call_tool("chat", {"message": "hello"})).text

    assert run(main()).startswith("Hello!")
