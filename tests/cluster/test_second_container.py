"""Instances with a second container on a real cluster: commands run in its image, which has nothing of aenv."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aenv.client.instance_client import InstanceClient
from aenv.engines.base import Engine, SandboxRef, SandboxSpec
from aenv.errors import AEnvError, ImageUnavailable
from aenv.http.url import ServerUrl
from aenv.isolation.limits.cgroups import Limits
from tests.cluster.conftest import IMAGE, SMALL
from tests.cluster.test_kubernetes_failures import use

pytestmark = pytest.mark.long

SOURCE = """
import os, pathlib
from aenv import register_tool, second_container

@register_tool
def there(command: str, timeout: float = 30) -> dict:
    done = second_container().run(command, timeout=timeout)
    return {"code": done.exit_code, "out": done.stdout, "err": done.stderr}

@register_tool
def here() -> dict:
    pathlib.Path("/shared/from-main").write_text("hello")
    return {"pid": os.getpid(), "host": os.uname().nodename}
"""


@pytest.fixture
def spec(folder: Path) -> SandboxSpec:
    project = folder / "project"
    project.mkdir(parents=True)
    (project / "env.py").write_text(SOURCE)
    return SandboxSpec(
        "dual@1.0.0", project, project, {"SECRET": "of the main container"}, requests=SMALL,
        limits=Limits(memory=256 << 20), template="dualContainer", second_image=IMAGE,
    )  # fmt: skip


async def call(ref: SandboxRef, tool: str, **arguments: Any) -> Any:
    client = InstanceClient(ServerUrl.parse(ref.data_url), token=ref.token)
    try:
        answer = await client.call(f"/tools/{tool}", arguments, timeout=60)
    finally:
        client.close()
    if answer.get("is_error"):
        raise AEnvError(answer["content"][0]["text"])
    return json.loads(answer["content"][0]["text"])


def test_commands_run_in_the_second_container_and_share_a_folder(
    engine: Callable[[], Engine], spec: SandboxSpec
) -> None:
    async def work(made: Engine) -> None:
        ref = await made.start(spec)
        await call(ref, "here")
        done = await call(ref, "there", command="cat /shared/from-main; ls -d /app; id -u; env; exit 7")
        assert done["code"] == 7
        assert done["out"].startswith("hello10001\n")
        assert "No such file" in done["err"]  # /app is the main container's
        assert "of the main container" not in done["out"]
        assert "AENV_TOKEN" not in done["out"]
        rights = await call(
            ref, "there", command="ls /var/run/secrets/kubernetes.io; grep -E 'CapEff|NoNewPrivs' /proc/self/status"
        )
        assert rights["out"].split() == ["CapEff:", "0" * 16, "NoNewPrivs:", "1"]

    use(engine, work)


def test_a_second_image_that_cannot_be_pulled_is_reported_with_its_name(
    engine: Callable[[], Engine], spec: SandboxSpec
) -> None:
    async def work(made: Engine) -> None:
        with pytest.raises(ImageUnavailable, match=r"no-such-registry\.invalid/task:1"):
            await made.start(replace(spec, second_image="no-such-registry.invalid/task:1"))

    use(engine, work)


def test_a_command_cannot_end_the_second_container(engine: Callable[[], Engine], spec: SandboxSpec) -> None:
    async def work(made: Engine) -> None:
        ref = await made.start(spec)
        # The kernel ends the process that waits for the command as well, so nothing says how it ended.
        with pytest.raises(AEnvError):
            await call(ref, "there", command="kill -TERM 1; kill -KILL 1; kill -KILL -1", timeout=3)
        assert (await call(ref, "there", command="echo on"))["out"] == "on\n"
        assert await made.poll(ref) is None

    use(engine, work)
