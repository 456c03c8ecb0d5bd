"""Archives of projects on their way to a pod, without a cluster."""

from __future__ import annotations

import asyncio
import os
import urllib.error
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aenv.engines.base import SandboxSpec
from aenv.engines.kubernetes import bundle_fetch
from aenv.engines.kubernetes.bundle_server import BundleServer, address_towards
from aenv.engines.kubernetes.project_archives import ProjectArchives
from aenv.errors import LoadError


@pytest.fixture
def spec(tmp_path: Path) -> SandboxSpec:
    project = tmp_path / "project"
    (project / "src" / "__pycache__").mkdir(parents=True)
    (project / "src" / "__pycache__" / "env.pyc").write_bytes(b"stale")
    (project / "src" / "env.py").write_text("code")
    (project / "private").mkdir()
    (project / "private" / "answer").write_text("42")
    (project / "run.sh").write_text("#!/bin/sh\n")
    (project / "run.sh").chmod(0o700)
    (project / "inside").symlink_to("src/env.py")
    (project / "outside").symlink_to("/etc/passwd")
    os.mkfifo(project / "pipe")
    return SandboxSpec("b@1", project, project / "src")


def serving(folder: Path, use: Callable[[BundleServer], Awaitable[None]]) -> None:
    async def main() -> None:
        archives = ProjectArchives(folder / "bundles")
        server = BundleServer(archives)
        await server.open("127.0.0.1", 0, everywhere=False)
        try:
            await use(server)
        finally:
            await server.close()
            archives.close()
        assert not (folder / "bundles").exists()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_pod_gets_the_project_twice_and_the_private_files_apart(tmp_path: Path, spec: SandboxSpec) -> None:
    pod = tmp_path / "pod"
    pod.mkdir()

    async def use(server: BundleServer) -> None:
        served = await server.serve(spec)
        assert served.has_private
        await asyncio.to_thread(bundle_fetch.fetch, served.url, served.digest, pod, served.token)

    serving(tmp_path, use)
    for copy in ("project", "snapshot"):
        names = sorted(path.relative_to(pod / copy).as_posix() for path in (pod / copy).rglob("*"))
        assert names == ["inside", "run.sh", "src", "src/env.py"]
    assert (pod / "withheld" / "private" / "answer").read_text() == "42"
    assert os.access(pod / "project" / "run.sh", os.X_OK)
    assert sorted(path.name for path in pod.iterdir()) == ["project", "snapshot", "withheld"]


def test_only_the_pods_own_token_opens_its_bundle_and_only_while_it_starts(tmp_path: Path, spec: SandboxSpec) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "env.py").write_text("other")

    async def use(server: BundleServer) -> None:
        one, two = await server.serve(spec), await server.serve(SandboxSpec("o@1", other, other))
        server.revoke(two.token)
        for url, token in ((one.url, "wrong"), (one.url, two.token), (two.url, two.token), (two.url, one.token)):
            with pytest.raises(urllib.error.HTTPError) as caught:
                await asyncio.to_thread(bundle_fetch.fetch, url, one.digest, tmp_path, token)
            caught.value.close()
            assert caught.value.code == 403
        assert one.token != (await server.serve(spec)).token

    serving(tmp_path, use)


def test_an_archive_is_made_again_only_for_changed_files(tmp_path: Path, spec: SandboxSpec) -> None:
    async def use(server: BundleServer) -> None:
        first = await server.serve(spec)
        again = await server.serve(replace(spec, variables={"A": "1"}))
        assert again.digest == first.digest
        (spec.project / "src" / "env.py").write_text("changed")
        assert (await server.serve(spec)).digest != first.digest

    serving(tmp_path, use)


def test_a_single_file_brings_only_the_files_that_it_needs(tmp_path: Path, spec: SandboxSpec) -> None:
    pod = tmp_path / "pod"
    pod.mkdir()

    async def use(server: BundleServer) -> None:
        served = await server.serve(replace(spec, files=("run.sh", "src")))
        assert not served.has_private
        await asyncio.to_thread(bundle_fetch.fetch, served.url, served.digest, pod, served.token)

    serving(tmp_path, use)
    assert sorted(path.name for path in (pod / "project").iterdir()) == ["run.sh", "src"]


def test_a_project_that_cannot_be_read_is_reported(tmp_path: Path, spec: SandboxSpec) -> None:
    async def use(server: BundleServer) -> None:
        with pytest.raises(LoadError, match="cannot be read"):
            await server.serve(replace(spec, project=tmp_path / "missing"))

    serving(tmp_path, use)


def test_an_archive_with_another_digest_is_refused(
    tmp_path: Path, spec: SandboxSpec, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(server: BundleServer) -> None:
        served = await server.serve(spec)
        monkeypatch.setenv("AENV_BUNDLE_TOKEN", served.token)
        code = await asyncio.to_thread(bundle_fetch.main, [served.url, "0" * 64, str(tmp_path)])
        assert code == 1

    serving(tmp_path, use)
    assert "Error: the project could not be fetched" in capsys.readouterr().err


def test_the_address_towards_this_machine_is_loopback() -> None:
    assert address_towards("127.0.0.1", 6443) == "127.0.0.1"
