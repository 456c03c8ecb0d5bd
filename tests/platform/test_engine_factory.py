"""Engines are found by entry point and constructed in one way, those of aenv and those of plug-ins."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from aenv import plugins
from aenv.engines.base import Capabilities, EngineOptions
from aenv.engines.process import ProcessEngine
from aenv.errors import ConfigError
from aenv.platform.operations.engine_factory import (
    capabilities_of,
    check_host,
    create_engine,
    engine_names,
    validate_engine_name,
)

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


class Older(ProcessEngine):
    """A plug-in as they were before there were capabilities: attributes of the class, and the folder alone."""

    networks = frozenset(("none",))
    volumes = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.place = folder


class WithOptions(ProcessEngine):
    capabilities = Capabilities(networks=frozenset(("none",)), outlives_server=True)

    @classmethod
    def create(cls, folder: Path, options: EngineOptions) -> WithOptions:
        made = cls(folder)
        made.options = options
        return made

    options: EngineOptions


def older_function(folder: Path) -> Older:
    return Older(folder)


def no_engine(folder: Path) -> object:
    return object()


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a distribution that registers the classes above, and one more ``native``."""
    about = tmp_path / "site" / "theirs-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    module = __name__
    (about / "entry_points.txt").write_text(
        f"[aenv.engines]\nolder = {module}:Older\nwith-options = {module}:WithOptions\n"
        f"function = {module}:older_function\nno-engine = {module}:no_engine\nnative = {module}:Older\n"
        f"[aenv.engine_schemes]\ntheirs = {module}:WithOptions\n"
    )
    monkeypatch.syspath_prepend(str(about.parent))


def _name(entry: Any) -> tuple[str, str, str]:
    return entry.group, entry.name, entry.value


def test_every_engine_of_pyproject_is_registered_and_can_be_loaded() -> None:
    declared = plugins.declared_in(PYPROJECT).select(group=plugins.ENGINES)
    assert sorted(declared.names) == ["docker", "gvisor", "k8s", "kubernetes", "native", "process"]
    assert {_name(entry) for entry in declared} <= {_name(entry) for entry in entry_points(group=plugins.ENGINES)}, (
        "the installed metadata is out of date; run 'scripts/setup dev' again"
    )
    for name in declared.names:
        assert capabilities_of(name).networks


def test_an_engine_with_two_names_is_listed_once() -> None:
    assert {"k8s", "kubernetes"} <= set(engine_names())
    assert {"kubernetes", "native"} <= set(engine_names(aliases=False))
    assert "k8s" not in engine_names(aliases=False)


def test_only_capabilities_say_what_an_engine_can_do() -> None:
    can = {name: capabilities_of(name) for name in ("native", "gvisor", "process", "http://127.0.0.1:1")}
    assert [name for name, each in can.items() if each.outlives_server] == ["native"]
    assert [name for name, each in can.items() if each.volumes and each.bases and each.forks] == ["native"]


@pytest.mark.usefixtures("registered")
def test_a_plug_in_is_constructed_as_the_engines_of_aenv_are(tmp_path: Path) -> None:
    options = EngineOptions(pool=3, group="theirs", fork=False)
    made = create_engine("with-options", tmp_path / "run", options)
    assert isinstance(made, WithOptions)
    assert made.options is options
    assert capabilities_of("with-options").outlives_server


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", ["older", "function"])
def test_an_older_plug_in_that_takes_the_folder_alone_still_works(tmp_path: Path, name: str) -> None:
    made = create_engine(name, tmp_path / "run", EngineOptions())
    assert isinstance(made, Older)
    assert made.place == tmp_path / "run"
    assert made.capabilities == Capabilities(
        networks=frozenset(("none",)), volumes=True, storage_media=frozenset(("disk",)), nested=True
    )


@pytest.mark.usefixtures("registered")
def test_a_plug_in_can_register_a_url_scheme(tmp_path: Path) -> None:
    assert validate_engine_name("theirs://there") == "theirs://there"
    made = create_engine("theirs://there", tmp_path / "run", EngineOptions(url="theirs://there", token="t"))
    assert isinstance(made, WithOptions)
    assert (made.options.url, made.options.token) == ("theirs://there", "t")


@pytest.mark.usefixtures("registered")
def test_a_plug_in_cannot_replace_an_engine_of_aenv() -> None:
    assert capabilities_of("native").bases


@pytest.mark.usefixtures("registered")
def test_an_entry_point_that_gives_no_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not an"):
        create_engine("no-engine", tmp_path, EngineOptions())


@pytest.mark.usefixtures("registered")
def test_the_error_about_an_unknown_engine_names_those_that_exist(tmp_path: Path) -> None:
    assert {"native", "older"} <= set(engine_names())
    with pytest.raises(ValueError, match=r"unknown engine 'navite'; expected one of .*native.*older.*http://"):
        validate_engine_name("navite")
    with pytest.raises(ValueError, match="unknown engine 'ftp://there'"):
        validate_engine_name("ftp://there")
    with pytest.raises(ConfigError, match="no plug-in 'navite'"):
        create_engine("navite", tmp_path, EngineOptions())


def test_an_engine_says_what_an_administrator_should_know_about_it() -> None:
    assert "without any isolation" in check_host("process")
    assert check_host("http://127.0.0.1:1") == ""
