"""Attacks on the environment `terminal` on an image that the agent can change completely."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.images import base_systems
from tests.attacks.environment import earned, make_project
from tests.attacks.system import INSTALLED, VERSION, make_system, shared_library
from tests.attacks.terminal import EXIT, FAKE
from tests.envs.conftest import _own_hub
from tests.local.conftest import _use_platform, platform

__all__ = ["_own_hub", "_use_platform", "platform"]

BASE = "attacked-2"
PYTHON = f"/usr/local/lib/{VERSION}"
ON_IMAGE = {
    "another python3": "printf '#!/bin/sh\\nexit 0\\n' > /tmp/p; chmod 755 /tmp/p; mv /tmp/p /usr/local/bin/python3",
    "another interpreter behind the link": f"cp /usr/bin/true /usr/local/bin/{VERSION}",
    "a program before the image's": FAKE.format(path="/usr/local/sbin/python3"),
    "a changed module of the library": f"echo '{EXIT}' >> {PYTHON}/pathlib.py",
    "a new module in the library": f"echo '{EXIT}' > {PYTHON}/sitecustomize.py",
    "a compiled module of the library": f"""python3 - <<'END'
import importlib.util, marshal, pathlib
code = marshal.dumps(compile("{EXIT}", "pathlib.py", "exec"))
path = pathlib.Path(importlib.util.cache_from_source(pathlib.__file__))
path.parent.mkdir(exist_ok=True)
path.unlink(missing_ok=True)
path.write_bytes(importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + code)
END""",
    "sitecustomize among the packages": f"echo '{EXIT}' > {PYTHON}/{INSTALLED}/sitecustomize.py",
    "a .pth file that runs": f"echo '{EXIT}' > {PYTHON}/{INSTALLED}/a.pth",
    "/etc/ld.so.preload": "cp /payload/exit.so /tmp/e.so; echo /tmp/e.so > /etc/ld.so.preload",
    "another C library": "for f in /usr/lib/*/libm.so.6 /lib/*/libm.so.6; do "
    "test -e $f && { cp /payload/exit.so /tmp/m; mv /tmp/m $f; }; done",
}  # fmt: skip
EXIT_0 = "#include <unistd.h>\n__attribute__((constructor)) static void leave(void) { _exit(0); }\n"


@pytest.fixture(scope="module")
def on_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Create the environment on a system that the agent can change completely."""
    folder = tmp_path_factory.mktemp("on-image")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patched.setenv("XDG_DATA_HOME", str(folder / "data"))
        root = make_system(folder / "root")
        (root / "payload").mkdir()
        shared_library(root / "payload" / "exit.so", EXIT_0)
        asyncio.run(base_systems.BaseSystems().add(BASE, root))
        yield make_project(folder / "terminal", base=BASE)
        base_systems.remove(BASE)


@pytest.mark.long
def test_honest_work_on_an_image_gets_one_and_doing_nothing_gets_zero(on_image: Path) -> None:
    good = earned(on_image, "echo 42 > /tmp/answer.txt; python3 -c 'import pathlib, json'")
    assert good["score"] == 1.0, good
    assert earned(on_image, ":")["score"] == 0.0


@pytest.mark.long
@pytest.mark.attack("grading")
@pytest.mark.parametrize("how", ON_IMAGE)
def test_an_attack_on_an_image_earns_nothing(how: str, on_image: Path) -> None:
    found = earned(on_image, ON_IMAGE[how])
    assert found["score"] == 0.0, found
