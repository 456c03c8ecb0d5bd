from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.authoring.declarations import Registry
from aenv.errors import LoadError, UsageError
from aenv.runtime.loader import load

TOOL = "from aenv import register_tool\n@register_tool\ndef {0}(): return '{0}'\n"


@pytest.fixture(autouse=True)
def _forget_modules(registry: Registry) -> Iterator[None]:
    modules, finders = set(sys.modules), list(sys.meta_path)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.meta_path[:] = finders


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_a_file_a_folder_and_a_project_load(tmp_path: Path) -> None:
    write(tmp_path, {"src/a.py": TOOL.format("a"), "outside.py": TOOL.format("outside")})
    assert set(load(tmp_path).tools) == {"a"}


def test_a_single_file_loads_alone(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": TOOL.format("a"), "b.py": TOOL.format("b")})
    assert set(load(tmp_path / "a.py").tools) == {"a"}


def test_relative_bare_and_package_imports_give_one_module(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "src/__init__.py": "",
            "src/helper.py": TOOL.format("from_helper") + "state = []\n",
            "src/one.py": "from .helper import state\nstate.append(1)\n",
            "src/two.py": "import helper\nhelper.state.append(2)\n",
            "src/three.py": "from src.helper import state\nstate.append(3)\n",
            "src/inner/__init__.py": "",
            "src/inner/deep.py": "from ..helper import state\nfrom helper import state as same\n"
            "assert state is same\nstate.append(4)\n" + TOOL.format("deep"),
            "src/zz.py": "import inner.deep\nfrom inner import deep\nassert inner.deep is deep\n",
        },
    )
    registry = load(tmp_path)
    assert set(registry.tools) == {"from_helper", "deep"}
    assert sorted(sys.modules["src.helper"].state) == [1, 2, 3, 4]
    assert sys.modules["helper"] is sys.modules["src.helper"]
    assert sys.modules["helper"].__spec__.name == "src.helper"


def test_a_folder_without_init_is_a_package_all_the_same(tmp_path: Path) -> None:
    write(tmp_path, {"src/a.py": "from .b import x\n" + TOOL.format("a"), "src/b.py": "x = 1\n"})
    assert set(load(tmp_path).tools) == {"a"}


def test_tests_vendored_trees_and_other_projects_stay_out(tmp_path: Path) -> None:
    bomb = "raise SystemExit('imported')\n"
    write(
        tmp_path,
        {
            "src/a.py": TOOL.format("a"),
            "src/_private.py": bomb,
            "src/test_a.py": bomb,
            "src/a_test.py": bomb,
            "src/conftest.py": bomb,
            "src/setup.py": bomb,
            "src/tests/b.py": bomb,
            "src/.venv/lib/c.py": bomb,
            "src/node_modules/d.py": bomb,
            "src/vendor/e.py": bomb,
            "src/benchmark/pyproject.toml": "",
            "src/benchmark/f.py": bomb,
            "src/not-a-module.py": bomb,
        },
    )
    assert set(load(tmp_path).tools) == {"a"}


def test_names_of_the_standard_library_are_not_shadowed(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"src/calendar.py": "mine = True\n", "src/a.py": "import calendar\ncalendar.monthrange\n" + TOOL.format("a")},
    )
    assert set(load(tmp_path).tools) == {"a"}


def test_a_folder_whose_name_is_no_identifier_loads(tmp_path: Path) -> None:
    write(tmp_path / "my-env 1.0", {"a.py": "from .b import x\n" + TOOL.format("a"), "b.py": "x = 1\n"})
    assert set(load(tmp_path / "my-env 1.0").tools) == {"a"}


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("x = 1\ndef broken(:\n    pass\n", 2, "invalid syntax"),
        ("x = 1\n\nraise ValueError('at import')\n", 3, "ValueError: at import"),
        ("import not_installed_at_all\n", 1, "pip install not_installed_at_all"),
        ("import sys\nsys.exit(0)\n", 2, "SystemExit"),
        ("def f():\n    return undefined_name\nf()\n", 2, "undefined_name"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    write(tmp_path, {"src/good.py": TOOL.format("good"), "src/bad.py": text})
    with pytest.raises(LoadError) as caught:
        load(tmp_path)
    assert f"{tmp_path / 'src' / 'bad.py'}:{line}" in caught.value.message
    assert says in caught.value.message


def test_a_tool_that_cannot_be_served_is_refused_with_its_line(tmp_path: Path) -> None:
    from aenv.runtime.calls.endpoints import EndpointCatalog

    text = "import socket\nfrom aenv import register_tool\n@register_tool\ndef t(s: socket.socket): ...\n"
    write(tmp_path, {"src/bad.py": text})
    with pytest.raises(LoadError, match=r"bad\.py:3.*cannot be sent as JSON"):
        EndpointCatalog(load(tmp_path))


def test_nothing_declared_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"src/a.py": "x = 1\n"})
    with pytest.raises(LoadError, match="@register_tool"):
        load(tmp_path)
    with pytest.raises(LoadError, match="no Python files"):
        load(write(tmp_path / "empty", {"readme.md": ""}))


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file or folder"):
        load(tmp_path / "nothing")
    with pytest.raises(UsageError, match="not a Python file"):
        load(write(tmp_path, {"a.txt": ""}) / "a.txt")
