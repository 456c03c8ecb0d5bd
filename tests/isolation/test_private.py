"""A project's private/ folder: readable by the author's code, and by no program that a tool starts."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aenv.errors import FunctionFailed, LoadError
from aenv.isolation.files import private_folder
from aenv.sdk.blocking import SyncEnvironment
from tests.isolation.conftest import make_project
from tests.isolation.host import Platform
from tests.tiny import make_root

SECRET = "forty-two-but-spelled-out"
ENVIRONMENT = """
import json, multiprocessing, subprocess
from aenv import private, register_function, register_reward, register_tool, run_python

@register_tool
def shell(command: str) -> str:
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, errors="replace")
    return done.stdout + done.stderr

@register_tool
def solution(code: str) -> dict:
    run = run_python(code, call="solve", arguments=[], timeout=60.0)
    return {"value": run.value, "err": run.stderr}

@register_tool
def read(path: str) -> str:
    with open(path) as file:
        return file.read()

@register_reward
def solved(answer: str) -> float:
    return float(answer == json.loads(private("answers.json").read_text())["answer"])

@register_function
def listed() -> list[str]:
    return [str(place) for place in private().iterdir()]

@register_function
def checked(answer: str) -> bool:
    return private("deep/checker.py").module().check(answer)

@register_function
def table() -> str:
    return private("table.csv").read_text()

@register_function
def copied(target: str) -> list[str]:
    import os
    private().copy_to(target)
    return sorted(os.path.join(place, name) for place, _, names in os.walk(target) for name in names)
"""


def add_private(project: Path, secret: str = SECRET) -> None:
    folder = project / "private" / "deep"
    folder.mkdir(parents=True)
    (folder.parent / "answers.json").write_text(json.dumps({"answer": secret}))
    (folder.parent / "table.csv").write_text("1,2\n")
    (folder / "checker.py").write_text(f"def check(answer):\n    return answer == {secret!r}\n")
    (folder.parent / "outside").symlink_to("/etc/passwd")
    os.mkfifo(folder.parent / "pipe")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_project(tmp_path_factory.mktemp("private"), ENVIRONMENT, name="keeper")
    add_private(made)
    return made


@pytest.fixture(scope="module")
def based(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_project(tmp_path_factory.mktemp("private-based"), ENVIRONMENT, name="based", base="./base/root")
    add_private(made)
    tools = ("sh", "cat", "ls", "find", "grep", "mkdir", "rm", "mv", "env")
    shutil.copytree(make_root(tmp_path_factory.mktemp("root") / "root", tools), made / "base" / "root", symlinks=True)
    return made


@pytest.fixture(params=["loaded", "forked", "based"])
def env(request: pytest.FixtureRequest, platform: Platform) -> Iterator[SyncEnvironment]:
    where = str(request.getfixturevalue("based" if request.param == "based" else "project"))
    own = {} if request.param == "forked" else {"arguments": [request.node.name]}
    for _ in range(0 if own else 3):  # the first creates of a project are not served by a preloaded parent
        with SyncEnvironment(where):
            pass
    with SyncEnvironment(where, max_retries=0, **own) as made:
        yield made


def shell(env: SyncEnvironment, command: str) -> str:
    return env.call_tool("shell", {"command": command}).text


def test_the_reward_reads_private_files(env: SyncEnvironment) -> None:
    assert env.call_reward({"answer": SECRET}) == 1.0
    assert env.call_reward({"answer": "wrong"}) == 0.0
    assert env.call_function("checked", {"answer": SECRET}) is True
    assert env.call_function("listed", {}) == ["private/answers.json", "private/deep", "private/table.csv"]


@pytest.mark.attack("grading")
def test_programs_cannot_find_private_files(env: SyncEnvironment) -> None:
    assert "private" not in shell(env, "ls -a /app /app/src").split()
    assert "No such file" in shell(env, "cat /app/private/answers.json")
    assert "answers.json" not in shell(env, "find / -xdev -name answers.json 2>/dev/null")
    for place in ("/.project", "/opt/aenv/project"):
        assert SECRET not in shell(env, f"ls -la {place}/private; cat {place}/private/*; cat {place}/private/deep/*")
    command = "grep -rls forty-two-but /app /.project /opt/aenv/project /tmp /home /run /mnt /dev/shm /.masked"
    assert shell(env, command) == ""
    for look in (
        "cat /proc/1/mem",
        "cat /proc/1/environ",
        "ls /proc/1/fd/",
        "ls /proc/1/root/",
        "ls /proc/1/map_files/",
    ):
        output = shell(env, look)
        assert SECRET not in output
        assert "denied" in output or "not permitted" in output, (look, output)


@pytest.mark.attack("grading")
@pytest.mark.parametrize(
    "path", ["/app/private/answers.json", "private/answers.json", "/.project/private/answers.json", "/proc/self/mem"]
)
def test_a_tool_that_opens_paths_of_the_agent_cannot_read_private_files(env: SyncEnvironment, path: str) -> None:
    answer = env.call_tool("read", {"path": path})
    assert answer.is_error
    assert SECRET not in answer.text


@pytest.mark.attack("grading")
@pytest.mark.parametrize(
    "body",
    [
        "from aenv import private; return private('answers.json').read_text()",
        "return open('/app/private/answers.json').read()",
        "return open('/proc/1/mem', 'rb').read(10).hex()",
        "import os; return os.listdir('/proc/1/fd')",
        "import sys; sys.path.insert(0, '/app/src'); import keeper_env; return keeper_env.solved('x')",
        "import sys, json; return [str(m) for m in sys.modules if 'keeper' in m][0]",
    ],
)
def test_agent_code_in_a_separate_process_cannot_read_private_files(env: SyncEnvironment, body: str) -> None:
    code = "def solve():\n    " + body.replace("; ", "\n    ")
    found = env.call_tool("solution", {"code": code}).data
    assert found["value"] is None
    assert "Error" in found["err"]
    assert SECRET not in found["err"]


def test_agent_code_in_a_separate_process_returns_a_value(env: SyncEnvironment) -> None:
    assert env.call_tool("solution", {"code": "def solve():\n    return [1, 'two']"}).data["value"] == [1, "two"]


@pytest.mark.attack("grading")
def test_files_that_a_program_puts_into_private_are_not_read(env: SyncEnvironment) -> None:
    forged = json.dumps({"answer": "forged"})
    shell(env, f"mkdir -p /app/private && echo '{forged}' > /app/private/answers.json && cat /app/private/answers.json")
    assert env.call_reward({"answer": "forged"}) == 0.0
    assert env.call_reward({"answer": SECRET}) == 1.0


def test_links_and_pipes_in_private_are_skipped(env: SyncEnvironment) -> None:
    assert "private/outside" not in env.call_function("listed", {})
    assert "private/pipe" not in env.call_function("listed", {})


def test_private_files_can_be_copied_out_for_a_verifier(env: SyncEnvironment) -> None:
    names = env.call_function("copied", {"target": "/tmp/verifier"})
    assert names == [f"/tmp/verifier/{name}" for name in ("answers.json", "deep/checker.py", "table.csv")]
    assert SECRET in shell(env, "cat /tmp/verifier/answers.json")


def test_the_next_instance_sees_changes_to_private_files(tmp_path: Path, platform: Platform) -> None:
    project = make_project(tmp_path, ENVIRONMENT, name="changing")
    add_private(project)
    for expected in ("1,2\n", "3,4,5\n"):
        (project / "private" / "table.csv").write_text(expected)
        with SyncEnvironment(str(project)) as env:
            assert env.call_function("table", {}) == expected


def test_a_missing_private_file_is_reported_with_the_existing_ones(tmp_path: Path, platform: Platform) -> None:
    project = make_project(tmp_path, ENVIRONMENT, name="without")
    with SyncEnvironment(str(project)) as env, pytest.raises(FunctionFailed, match=r"no such file: private/table\.csv"):
        env.call_function("table", {})


def test_a_private_folder_over_the_limit_is_refused(tmp_path: Path, platform: Platform) -> None:
    project = make_project(tmp_path, ENVIRONMENT, name="large")
    (project / "private").mkdir()
    with (project / "private" / "large.bin").open("wb") as file:
        file.truncate(private_folder.MOST_BYTES + 1)
    with pytest.raises(LoadError, match="more than 64 MiB or 10000 files") as raised, SyncEnvironment(str(project)):
        pass
    assert raised.value.fault == "env"


def test_private_files_are_read_from_disk_outside_a_sandbox(tmp_path: Path) -> None:
    project = make_project(tmp_path, ENVIRONMENT, name="plain")
    add_private(project)
    scope: dict[str, Any] = {"__file__": str(project / "src" / "plain_env.py"), "__name__": "plain"}
    code = "from aenv import private\nresult = private('answers.json').read_text(), private('deep').is_dir()"
    exec(code, scope)
    assert json.loads(scope["result"][0]) == {"answer": SECRET}
    assert scope["result"][1]
    assert sys.modules.get("checker") is None


@pytest.mark.parametrize("name", ["../config.json", "/etc/passwd", "deep/../../config.json"])
def test_a_private_path_cannot_lead_out_of_the_folder(name: str) -> None:
    from aenv import private

    with pytest.raises(ValueError, match="not a path"):
        private(name)
