"""Every example runs unchanged, offline and without a key, and prints its documented output."""

from __future__ import annotations

import os
import re
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
}


def entry_points() -> set[str]:
    files = {path.name for path in EXAMPLES.glob("*.py")}
    return files | {f"{path.parent.name}/main.py" for path in EXAMPLES.glob("*/main.py")}


@pytest.fixture
def home() -> Iterator[Path]:
    """A home with a short path, as there are sockets in it; a local platform that was started there is stopped."""
    with tempfile.TemporaryDirectory(prefix="aenv-t-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
        stop_all(Path(folder) / "run")


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_the_example_prints_its_documented_output(name: str, tmp_path: Path, home: Path) -> None:
    ours = ("AENV_", "OPENAI_", "DUMMY_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    own = {"HOME": str(home), "AENV_RUNTIME_DIR": str(home / "run"), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        cwd=tmp_path,
        env={**kept, **own, "XDG_CACHE_HOME": str(home / ".cache"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    wanted = ".*".join(re.escape(part) for part in PRINTED[name].strip().split("..."))  # ... is the rest of a line
    assert re.fullmatch(wanted, done.stdout.strip()), done.stdout
    assert list(tmp_path.iterdir()) == []


def test_every_example_is_run_and_listed() -> None:
    assert entry_points() == set(PRINTED)
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"({name})" in listed for name in PRINTED)


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.name)
def test_every_example_starts_with_two_lines_about_itself(path: Path) -> None:
    first, second, third = path.read_text(encoding="utf-8").splitlines()[:3]
    assert first.startswith("# ")
    assert second.startswith("# ")
    assert third == ""
