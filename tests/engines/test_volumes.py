"""A folder that outlives the sandbox that wrote to it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import from_json, to_json

from aenv.engines.base import SandboxSpec
from aenv.engines.native.engine import NativeEngine
from aenv.http.client import HttpClient
from aenv.http.url import ServerUrl
from aenv.isolation.files.volumes import Volume, target_problem
from tests.conftest import run

CODE = """
import os
from aenv import register_function

@register_function
def append(path: str, text: str) -> str:
    try:
        with open(path, "a") as file:
            file.write(text)
        return open(path).read()
    except OSError as error:
        return error.strerror

@register_function
def names(path: str) -> list[str] | str:
    try:
        return os.listdir(path)
    except OSError as error:
        return error.strerror
"""
OWNER = 955_123


@pytest.fixture
def place(sandboxes: None) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="aenv-e-", dir="/tmp"))
    (made / "project").mkdir()
    (made / "project" / "env.py").write_text(CODE)
    (made / "volume").mkdir()
    if os.geteuid() == 0:
        os.chown(made / "volume", OWNER, OWNER)
    yield made
    shutil.rmtree(made)


async def call(engine: NativeEngine, spec: SandboxSpec, *calls: tuple[str, dict[str, str]]) -> list[Any]:
    """What a sandbox of its own answers."""
    ref = await engine.start(spec)
    http = HttpClient(ServerUrl.parse(ref.data_url), token=ref.token)
    try:
        answers = [await http.request("POST", f"/functions/{name}", to_json(body), timeout=10) for name, body in calls]
        return [from_json(answer.body)["data"] for answer in answers]
    finally:
        http.close()
        await engine.stop(ref)


@pytest.mark.parametrize("target", ["/home/admin/data", "/app/data"])
def test_a_sandbox_reads_what_an_earlier_one_wrote(place: Path, target: str) -> None:
    async def main() -> None:
        engine = NativeEngine(place / "run")
        project, volume = place / "project", place / "volume"
        spec = SandboxSpec("volumes@1.0.0", project, project, volume=Volume(str(volume), target))
        try:
            first = await call(engine, spec, ("append", {"path": f"{target}/file", "text": "one "}))
            again = await call(
                engine, spec, ("append", {"path": f"{target}/file", "text": "two"}), ("names", {"path": "/.volume"})
            )
        finally:
            await engine.close()
        assert first + again == ["one ", "one two", "Permission denied"]
        assert (volume / "file").read_text() == "one two"
        assert (volume / "file").stat().st_uid == volume.stat().st_uid
        assert [path.name for path in project.iterdir()] == ["env.py"]

    run(main())


def test_a_sandbox_with_a_base_can_have_a_volume(place: Path) -> None:
    async def main() -> None:
        engine = NativeEngine(place / "run")
        project = place / "project"
        base = project / "base"
        for folder in ("bin", "etc", "usr"):
            (base / folder).mkdir(parents=True)
        volume = Volume(str(place / "volume"), "/srv/data")
        spec = SandboxSpec("volumes@1.0.0", project, project, base="./base", volume=volume)
        try:
            assert await call(engine, spec, ("append", {"path": "/srv/data/file", "text": "one"})) == ["one"]
        finally:
            await engine.close()
        assert (place / "volume" / "file").read_text() == "one"
        assert not (base / "srv").exists()

    run(main())


def test_a_read_only_volume_cannot_be_written(place: Path) -> None:
    async def main() -> None:
        engine = NativeEngine(place / "run")
        project = place / "project"
        (place / "volume" / "file").write_text("kept")
        volume = Volume(str(place / "volume"), "/data", read_only=True)
        try:
            said = await call(
                engine,
                SandboxSpec("volumes@1.0.0", project, project, volume=volume),
                ("append", {"path": "/data/new", "text": "more"}),
                ("names", {"path": "/data"}),
            )
        finally:
            await engine.close()
        assert said == ["Read-only file system", ["file"]]
        assert (place / "volume" / "file").read_text() == "kept"

    run(main())


@pytest.mark.parametrize(
    "target",
    ["data", "/", "/data/../etc", "/data/", "/usr/local/data", "/etc", "/proc/1", "/dev/shm", "/home", "/app", "/var"],
)
def test_a_place_that_would_break_a_sandbox_is_refused(target: str) -> None:
    assert target_problem(target) is not None


@pytest.mark.parametrize("target", ["/home/admin/data", "/data", "/app/data", "/home/env", "/tmp/cache", "/srv/a b"])
def test_other_places_are_accepted(target: str) -> None:
    assert target_problem(target) is None
