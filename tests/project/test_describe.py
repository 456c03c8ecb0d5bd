"""Discovery of a project's declarations without a sandbox; for sandboxes see tests/e2e."""

import asyncio
import time
from pathlib import Path

import pytest

from aenv.client import local_lease
from aenv.errors import LoadError, Unavailable
from aenv.project import discovery

GOOD = """
import os
from aenv import register_tool, register_function, register_reward, register_health

print("the author may print")

@register_tool
def add(a: int, b: int = 1) -> int:
    "Add two numbers."
    return a + b

@register_tool(description=os.environ.get("SECRET", "no secret"))
def look() -> str:
    return ""

@register_function
def double(n: int) -> int:
    return 2 * n

@register_reward
def reward() -> float:
    return 1.0

@register_health
def health() -> bool:
    return True
"""


@pytest.fixture(autouse=True)
def _no_sandboxes(monkeypatch):
    monkeypatch.setattr(local_lease, "_lease", None)  # drop the lease that another test has taken
    monkeypatch.setenv("AENV_RUNTIME_DIR", "/dev/null/nowhere")


def described(tmp_path, text):
    (tmp_path / "env.py").write_text(text)
    return asyncio.run(discovery.describe(tmp_path, "env", sandbox=False))


@pytest.mark.attack("build")
def test_untrusted_code_does_not_run_without_a_sandbox(tmp_path):
    mark = tmp_path / "ran"
    (tmp_path / "env.py").write_text(f"open({str(mark)!r}, 'w').close()")
    with pytest.raises(Unavailable, match="no sandbox could be created") as caught:
        asyncio.run(discovery.describe(tmp_path, "env"))
    assert "--no-sandbox" in caught.value.details["hint"]
    assert not mark.exists()


def test_all_declarations_are_found_without_a_sandbox_if_the_user_asks(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "s3cret")
    schemas = described(tmp_path, GOOD)
    assert [tool["name"] for tool in schemas.tools] == ["add", "look"]
    assert schemas.tools[0]["inputSchema"]["required"] == ["a"]
    assert schemas.tools[1]["description"] == "no secret"
    assert [len(each) for each in (schemas.functions, schemas.rewards, schemas.health)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_of_that_name", "nothing_of_that_name"),
        ("def f(:", "invalid syntax"),
        ("x = 1", "nothing is declared"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import os; os._exit(3)", "exit code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "exit code -9"),
    ],
)
def test_code_that_does_not_load_is_a_load_error(tmp_path, text, message):
    with pytest.raises(LoadError, match=message):
        described(tmp_path, text)


def test_an_endless_import_is_killed_with_its_child_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "PLAIN_SECONDS", 3.0)
    pids = tmp_path / "pids"
    text = (
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(1000)\n"
    )
    with pytest.raises(LoadError, match="longer than 3 s"):
        described(tmp_path, text)
    for pid in pids.read_text().split():
        while _is_there(pid):
            time.sleep(0.01)


def _is_there(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
