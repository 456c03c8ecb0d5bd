"""Every example runs unchanged, without a key, and prints its documented output or passes its own tests.

All work offline, except that projects get missing packages of their requirements.txt from the package index.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import stop_all

EXAMPLES = Path(__file__).parents[2] / "examples"

PRINTED = {
    "01_local_sandbox.py": """
total     2
inside    ['env', 'sandbox'] no rights
rollout 0: total 0, reward 1.0
rollout 1: total 1, reward 0.0
rollout 2: total 2, reward 1.0
rollout 3: total 3, reward 0.0
""",
    "02_hello.py": """
tool      hello@1.0.0/greet: Say hello to somebody.
result    {'greeting': 'HELLO, ADA!'}
mistake   fault=policy: Error calling tool 'greet': invalid arguments: name: missing; nam: unknown argument; ...
reward    0.5
reset     0.0
""",
    "03_rollouts.py": """
episode 5 is lost: tool 'guess' may have run, but gave no answer: the connection broke before the answer: EOF
episode 0: 1.0
episode 1: 0.0
episode 2: 1.0
episode 3: 0.0
episode 4: 0.0
episode 5: no reward
episode 6: 1.0
episode 7: 0.0
7 of 8 episodes count; their mean reward is 0.429
""",
    "04_images_and_progress.py": """
Here is #ff8000: image/png, 16x16, 80 bytes
  1/3 frame 1
  2/3 frame 2
  3/3 frame 3
3 frames
""",
    "05_openai_agents.py": """
model     sees read_thermometer, set_heating
model     reads {"room":"kitchen","celsius":17.0}
model     reads kitchen is at 21 now
answer    The kitchen was cold; I turned the heating up.
reward    1.0
""",
    "06_agent_as_environment/main.py": """
whales: Moby-Dick
cheese: I have nothing on that.
You asked me 3 times.
the librarian heard: ['Something about whales?', 'Something about cheese?', 'How often did I ask so far?']
without the librarian: is_error=True fault=infra
""",
    "07_mcp_client.py": """
auto: protocol 2026-07-28
  tools  ['pin', 'read']
  pin    {'notes': 1}
  read   is_error=True: Error calling tool 'read': list index out of range
  fault  env
legacy: protocol 2025-...
  tools  ['pin', 'read']
  pin    {'notes': 2}
  read   is_error=True: Error calling tool 'read': list index out of range
  fault  env
""",
    "11_agents_together/main.py": """
conversation: found after 4 guesses
hierarchy: flour: 500 g, eggs: 3, salt: none
red team: the target gave in after 3 tries: It is swordfish.
debate: the judge chose the optimist
""",
    "12_tree_search.py": """
solved    in 7 moves, 14 states seen
calls     40, instead of 154 with replays: 74% saved
reward    1.0, in a fork 1.0
""",
}


BRIEF = "08_sqlite_shop"
PROJECTS = {"08_sqlite_shop": "score", "09_fix_a_repository": "score", "10_slow_observatory": None}
"""Examples that are projects, with the number that counts in their rewards."""


def entry_points() -> set[str]:
    files = {path.name for path in EXAMPLES.glob("*.py")}
    return files | {f"{path.parent.name}/main.py" for path in EXAMPLES.glob("*/main.py")}


@pytest.fixture
def home() -> Iterator[Path]:
    """A home with a short path, as there are sockets in it; a local platform that was started there is stopped."""
    with tempfile.TemporaryDirectory(prefix="aenv-t-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
        stop_all(Path(folder) / "run")


def variables(home: Path, folder: Path) -> dict[str, str]:
    """Variables of a user with a new home and no settings of aenv."""
    ours = ("AENV_", "OPENAI_", "DUMMY_", "PYTEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    own = {"HOME": str(home), "AENV_RUNTIME_DIR": str(home / "run"), "TMPDIR": str(folder)}
    caches = {"XDG_CACHE_HOME": str(home / ".cache"), "XDG_DATA_HOME": str(home / ".data")}
    return {**kept, **own, **caches, "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(PRINTED))
def test_the_example_prints_its_documented_output(name: str, tmp_path: Path, home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        cwd=tmp_path,
        env=variables(home, tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    wanted = ".*".join(re.escape(part) for part in PRINTED[name].strip().split("..."))  # ... is the rest of a line
    assert re.fullmatch(wanted, done.stdout.strip()), done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == BRIEF else pytest.mark.long) for name in sorted(PROJECTS)]
)
def test_the_project_passes_its_tests_and_its_solutions_earn_the_full_reward(
    name: str, tmp_path: Path, home: Path
) -> None:
    project = tmp_path / name
    shutil.copytree(EXAMPLES / name, project, ignore=shutil.ignore_patterns(".pytest_cache", "__pycache__"))

    def aenv(*arguments: str) -> str:
        command = [str(Path(sys.executable).with_name("aenv")), *arguments]
        done = subprocess.run(
            command, cwd=project, env=variables(home, tmp_path), capture_output=True, text=True, timeout=500
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert re.search(r"^\d+ passed in", aenv("test", "-q"), re.MULTILINE)
    score = PROJECTS[name]
    chosen = () if score is None else ("--score", score)
    summary = json.loads(aenv("rollout", ".", "--agent", "gold", "--baseline", *chosen, "--output", "json"))
    assert summary["outcomes"] == {"ok": summary["episodes"]}
    assert (summary["reward"]["mean"], summary["do_nothing"]) == (1.0, 0.0)


def test_every_example_is_run_and_listed() -> None:
    assert entry_points() == set(PRINTED)
    assert {path.parent.name for path in EXAMPLES.glob("*/config.json")} == set(PROJECTS)
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"({name})" in listed for name in [*PRINTED, *(f"{name}/README.md" for name in PROJECTS)])


SCRIPTS = [path for path in EXAMPLES.rglob("*.py") if path.relative_to(EXAMPLES).parts[0] not in PROJECTS]


@pytest.mark.parametrize("path", sorted(SCRIPTS), ids=lambda path: path.name)
def test_every_example_starts_with_two_lines_about_itself(path: Path) -> None:
    first, second, third = path.read_text(encoding="utf-8").splitlines()[:3]
    assert first.startswith("# ")
    assert second.startswith("# ")
    assert third == ""
