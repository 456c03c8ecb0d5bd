"""A datasource that is a folder: shown read-only from an allowed root, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aenv.engines.base import Capabilities
from aenv.errors import AEnvError, Forbidden, UsageError
from aenv.platform.instances.requests.datasources import DatasourceRoots
from tests.conftest import run
from tests.platform.parts import Served, serving


class _Engine:
    def __init__(self, **capabilities: Any) -> None:
        self.capabilities = Capabilities(**capabilities)


NATIVE: Any = _Engine(volumes=True)


def test_a_folder_below_an_allowed_root_is_shown_read_only(data: Path) -> None:
    root = Path("/tmp") / f"{data.name}-sets"
    (root / "one").mkdir(parents=True)
    (root / "one" / "rows.txt").write_text("kept")
    for folder in (root, root / "one"):
        folder.chmod(0o755)
    try:
        with serving(data, "--datasource-root", str(root), auth=False) as platform:
            run(_use(platform, root))
    finally:
        (root / "one" / "rows.txt").unlink()
        (root / "one").rmdir()
        root.rmdir()


async def _use(platform: Served, root: Path) -> None:
    path = f"{root}/one"
    async with platform.environment("counter", datasource=path) as env:
        assert (await env.call_tool("variable", {"name": "AENV_DATASOURCE"})).data == path
        assert (await env.call_tool("read", {"path": f"{path}/rows.txt"})).data == "kept"
        refused = await env.call_tool("write", {"path": f"{path}/rows.txt", "text": "changed"})
        assert refused.is_error
    for datasource in ("/etc", f"{root}/../", "/nothing"):
        with pytest.raises(AEnvError, match=r"datasource: .* not below an allowed folder"):
            await platform.environment("counter", datasource=datasource).initialize()
    with pytest.raises(AEnvError, match="there is no folder"):
        await platform.environment("counter", datasource=f"{root}/two").initialize()
    async with platform.environment("counter", datasource="task-7") as env:
        assert (await env.call_tool("variable", {"name": "AENV_DATASOURCE"})).data == "task-7"


def test_a_link_out_of_the_allowed_root_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/etc")
    (tmp_path / "in").mkdir()
    roots = DatasourceRoots([tmp_path])
    with pytest.raises(Forbidden):
        roots.volume(str(tmp_path / "out"), NATIVE)
    assert roots.volume(str(tmp_path / "in"), NATIVE) is not None
    assert roots.volume("s3://bucket/set", NATIVE) is None


def test_an_engine_that_cannot_mount_refuses_by_name_and_an_external_one_gets_the_text(tmp_path: Path) -> None:
    roots = DatasourceRoots([tmp_path])
    plain: Any = _Engine()
    external: Any = _Engine(images=True)
    with pytest.raises(UsageError, match="cannot mount the folder"):
        roots.volume(str(tmp_path), plain)
    assert roots.volume("/data/workspace", external) is None


def test_the_users_own_roots_come_from_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AENV_DATASOURCE_ROOTS", str(tmp_path))
    found = DatasourceRoots.of_user().volume(str(tmp_path), NATIVE)
    assert found is not None
    assert found.read_only
    monkeypatch.delenv("AENV_DATASOURCE_ROOTS")
    with pytest.raises(Forbidden) as refused:
        DatasourceRoots.of_user().volume("/etc", NATIVE)
    assert "AENV_DATASOURCE_ROOTS" in refused.value.details["hint"]


def test_hidden_folders_and_a_whole_home_are_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AENV_DATASOURCE_ROOTS", raising=False)
    (tmp_path / ".ssh" / "keys").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / ".ssh")
    roots = DatasourceRoots.of_user()
    assert roots.volume(str(tmp_path / "data"), NATIVE) is not None
    for refused in (tmp_path, tmp_path / ".ssh", tmp_path / ".ssh" / "keys", tmp_path / "link"):
        with pytest.raises(Forbidden, match="not below an allowed folder"):
            roots.volume(str(refused), NATIVE)
