"""Attacks on `bench terminal`, on a system that the agent can change completely."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.bench.base import Result
from aenv.bench.runner import run_all
from aenv.bench.runs import BenchRun, RunRequest
from aenv.bench.terminal.benchmark import TerminalBench
from aenv.images import base_systems
from tests.attacks.ledger import Attacks
from tests.attacks.system import INSTALLED, VERSION, make_system, shared_library
from tests.attacks.terminal import ATTACKS, FAKE, VERIFIERS

BASE = "attacked-1"
TOML = "[agent]\ntimeout_sec = 120.0\n[verifier]\ntimeout_sec = 120.0\n[environment]\nallow_internet = false\n"
DOCKERFILE = f"""FROM {BASE}
ENV PATH=/opt/tools:/usr/local/bin:/usr/bin:/bin:/opt/later PYTHONPATH=/opt/site BASH_ENV=/opt/env.sh HOME=/root
WORKDIR /app
COPY payload /payload
RUN mkdir -p /opt/tools /opt/site /root && touch /opt/env.sh && echo 'flag = 1' > /opt/site/sitecustomize.py
"""
CHECK = """
import pathlib, sys
found = pathlib.Path("/app/greeting.txt")
sys.exit(0 if found.is_file() and found.read_text() == "hello\\n" else 1)
"""
TESTS = """
import pathlib

def test_greeting():
    assert pathlib.Path("/app/greeting.txt").read_text() == "hello\\n"
"""
EXIT_0 = "#include <unistd.h>\n__attribute__((constructor)) static void leave(void) { _exit(0); }\n"
NSS = """#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void cheat(void) {
    FILE *file = fopen("/usr/bin/cat", "w");
    if (file) { fputs("#!/bin/sh\\necho hello\\n", file); fclose(file); }
}
"""
HONEST = {
    "sh": "echo hello > greeting.txt",
    "python": "echo hello > greeting.txt",
    "here": "echo hello > greeting.txt",
    "pytest": "echo hello > greeting.txt",
    "tool": "printf '#!/bin/sh\\necho hello\\n' > say; chmod 755 say; ./say > greeting.txt",
    "git": "mkdir repo; cd repo; git init -q; git -c user.name=a -c user.email=a@b commit -q --allow-empty -m hello",
    "login": "echo hello > greeting.txt",
    "venv": "echo hello > greeting.txt",
}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, sandboxes: None) -> Iterator[Path]:
    """Add the image to the bases of this machine, and compile the libraries for the attacks."""
    folder = tmp_path_factory.mktemp("attacked")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patched.setenv("XDG_DATA_HOME", str(folder / "data"))
        asyncio.run(base_systems.BaseSystems().add(BASE, make_system(folder / "root")))
        (folder / "payload").mkdir()
        shared_library(folder / "payload" / "exit.so", EXIT_0)
        shared_library(folder / "payload" / "nss.so", NSS)
        yield folder
        base_systems.remove(BASE)


def make_task(folder: Path, payload: Path, kind: str, script: str) -> None:
    """Create a task with this kind of verifier, whose solution is a script."""
    for name, text in {
        "task.toml": TOML,
        "instruction.md": "Say hello.",
        "environment/Dockerfile": DOCKERFILE,
        "solution/solve.sh": f"version={VERSION} packages={INSTALLED}\n{script}\nexit 0\n",
        "tests/test.sh": VERIFIERS[kind],
        "tests/check.py": CHECK,
        "tests/test_outputs.py": TESTS,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "environment" / "payload").mkdir()
    for file in payload.iterdir():
        (folder / "environment" / "payload" / file.name).write_bytes(file.read_bytes())


def results(tasks: Path, place: Path, agent: str = "oracle") -> dict[str, Result]:
    begun = BenchRun.begin(place, RunRequest("terminal", agent, {"tasks": str(tasks)}))
    asyncio.run(run_all(TerminalBench(begun.request.options), begun, parallel=2, progress=lambda *_: None))
    return {result.task: result for result in begun.results()}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_honest_work_gets_one_from_every_kind_of_verifier(system: Path, tmp_path: Path) -> None:
    for kind, script in HONEST.items():
        make_task(tmp_path / "tasks" / kind, system / "payload", kind, script)
    found = results(tmp_path / "tasks", tmp_path / "run")
    assert {kind: (result.reward, result.error) for kind, result in found.items()} == dict.fromkeys(HONEST, (1.0, ""))
    nothing = results(tmp_path / "tasks", tmp_path / "nop", "nop")
    assert {kind: result.reward for kind, result in nothing.items()} == dict.fromkeys(HONEST, 0.0)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_files_left_for_the_verifier_earn_nothing(system: Path, tmp_path: Path, attacks: Attacks) -> None:
    for number, attack in enumerate(ATTACKS):
        make_task(tmp_path / "tasks" / f"attack-{number}", system / "payload", attack.kind, attack.script)
    found = results(tmp_path / "tasks", tmp_path / "run")
    for number, attack in enumerate(ATTACKS):
        result = found[f"attack-{number}"]
        attacks.record("grading", f"bench terminal: {attack.name} ({result.error})", held=result.reward == 0.0)
    attacks.all_held()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_tampered_system_is_restored_and_reported(system: Path, tmp_path: Path) -> None:
    """The task is solved, and it counts, whatever else the agent has changed."""
    broken = {
        "cat": "rm /usr/bin/cat",
        "sitecustomize": "echo 'import os; os._exit(7)' > /opt/site/sitecustomize.py",
        "library": f"echo 'raise SystemExit(7)' > /usr/local/lib/{VERSION}/pathlib.py",
    }
    for name, script in broken.items():
        kind = "sh" if name == "cat" else "python"
        make_task(tmp_path / "tasks" / name, system / "payload", kind, f"{HONEST[kind]}; {script}")
    found = results(tmp_path / "tasks", tmp_path / "run")
    assert {name: result.reward for name, result in found.items()} == dict.fromkeys(broken, 1.0)
    assert found["cat"].outputs["restored"] == ["/usr/bin/cat"]
    assert found["sitecustomize"].outputs["restored"] == ["/opt/site/sitecustomize.py"]


def test_a_program_that_the_task_assigns_to_the_agent_is_not_restored(system: Path, tmp_path: Path) -> None:
    script = FAKE.format(path="/opt/tools/cat")
    make_task(tmp_path / "tasks" / "own", system / "payload", "sh", script)
    toml = tmp_path / "tasks" / "own" / "task.toml"
    toml.write_text(toml.read_text().replace("[verifier]", '[verifier]\nagent_programs = ["cat"]'))
    assert results(tmp_path / "tasks", tmp_path / "run")["own"].reward == 1.0
