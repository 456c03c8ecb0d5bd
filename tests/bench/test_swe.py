"""SWE-bench with an instance made from a small repository: only a solution is resolved."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from aenv import Environment
from aenv.bench.base import BenchJob, Result
from aenv.bench.swe import pythons
from aenv.bench.swe.benchmark import SweBench
from aenv.bench.swe.dataset import load
from aenv.bench.swe.repositories import source_of
from aenv.cli.commands.evaluate.rollout import command as rollout_command
from aenv.errors import ConfigError, EnvironmentError, UsageError
from tests.local.conftest import _use_platform, platform

__all__ = ["_use_platform", "platform"]

NAME = "acme__calc-1"
FILES = {
    "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
    '[project]\nname = "calc"\nversion = "1.0"\n[tool.setuptools]\npy-modules = ["calc"]\n',
    "calc.py": "def add(a, b):\n    return a - b\n\n\ndef double(a):\n    return 2 * a\n",
    "tests/test_calc.py": "from calc import double\n\n\ndef test_double():\n    assert double(3) == 6\n",
}
BLANK = " "
"""An empty line in a patch."""
GOLD = f"""\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,5 +1,5 @@
 def add(a, b):
-    return a - b
+    return a + b
{BLANK}
{BLANK}
 def double(a):
"""
TEST_PATCH = f"""\
diff --git a/tests/test_calc.py b/tests/test_calc.py
--- a/tests/test_calc.py
+++ b/tests/test_calc.py
@@ -1,5 +1,9 @@
-from calc import double
+from calc import add, double
{BLANK}
{BLANK}
 def test_double():
     assert double(3) == 6
+
+
+def test_add():
+    assert add(2, 2) == 4
"""
PASSED = "PASSED tests/test_calc.py::test_add\\nPASSED tests/test_calc.py::test_double"
PINS = ["iniconfig==2.3.1", "packaging==26.3", "pluggy==1.7.0", "pygments==2.21.0", "pytest==9.2.0"]


def added(name: str, text: str) -> str:
    """Return a patch that adds a file."""
    lines = text.splitlines()
    body = "".join(f"+{line}\n" for line in lines)
    head = f"diff --git a/{name} b/{name}\nnew file mode 100644\n--- /dev/null\n+++ b/{name}\n"
    return f"{head}@@ -0,0 +1,{len(lines)} @@\n{body}"


CHEATS = {
    "edits the tests": TEST_PATCH.replace("add(2, 2) == 4", "True"),
    "prints that they passed": added("conftest.py", f'def pytest_unconfigure():\n    print("{PASSED}")\n'),
    "prints and leaves": added("conftest.py", f'import os\n\nprint("{PASSED}", flush=True)\nos._exit(0)\n'),
    "lets every test pass": added(
        "conftest.py",
        "import pytest\n\n\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport():\n"
        '    report = (yield).get_result()\n    report.outcome = "passed"\n',
    ),
    "comes before all else": added("sitecustomize.py", f'import os\n\nprint("{PASSED}", flush=True)\nos._exit(0)\n'),
}
CHEATING_AGENT = f"""
printf 'def test_add():\\n    assert True\\n' > tests/test_calc.py
mkdir -p /tmp/evil /logs/verifier 2>/dev/null; echo 1 > /tmp/reward.txt; echo 1 > /logs/verifier/reward.txt
printf 'print("{PASSED}")\\nimport os; os._exit(0)' > /tmp/evil/sitecustomize.py
cp /tmp/evil/sitecustomize.py /app/python/lib/python3*/site-packages/
echo 'export PYTHONPATH=/tmp/evil' >> ~/.bashrc; echo 'export PYTHONPATH=/tmp/evil' >> ~/.profile
git config --global alias.apply '!true'
printf '#!/bin/sh\\nexit 0\\n' > .git/hooks/post-checkout; chmod +x .git/hooks/post-checkout
nohup sh -c 'while sleep 0.05; do echo "def add(a, b): return a + b" > /app/testbed/calc.py; done' >/dev/null 2>&1 &
git checkout calc.py; kill %1; git checkout calc.py
"""


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Write a file with one row next to a clone of its repository; prepared projects go into the same folder."""
    folder = tmp_path_factory.mktemp("swe")
    clone = folder / "repos" / "acme" / "calc"
    for name, text in FILES.items():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text(text)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "base"]):
        subprocess.run(["git", *command], cwd=clone, check=True)
    base = subprocess.run(["git", "rev-parse", "HEAD"], cwd=clone, capture_output=True, text=True, check=True).stdout
    (clone / "secret.txt").write_text("what came later")
    for command in (["add", "-A"], [*who, "commit", "-qm", "later"]):
        subprocess.run(["git", *command], cwd=clone, check=True)
    (folder / "instances.jsonl").write_text(json.dumps(row(base.strip())) + "\n")
    uv = os.environ.get("UV_CACHE_DIR") or str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "uv")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("UV_CACHE_DIR", uv)  # reuse earlier downloads
        patched.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield folder / "instances.jsonl"


def row(base: str) -> dict[str, Any]:
    script = f"""#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
git config --global --add safe.directory /testbed
git checkout {base} tests/test_calc.py
git apply -v - <<'EOF_1'
{TEST_PATCH}EOF_1
: '>>>>> Start Test Output'
pytest -rA tests/test_calc.py
: '>>>>> End Test Output'
git checkout {base} tests/test_calc.py
"""
    return {
        "instance_id": NAME,
        "repo": "acme/calc",
        "base_commit": base,
        "version": "1.0",
        "problem_statement": "add subtracts",
        "patch": GOLD,
        "test_patch": TEST_PATCH,
        "eval_script": script,
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
        "image": "",
        "FAIL_TO_PASS": json.dumps(["tests/test_calc.py::test_add"]),
        "PASS_TO_PASS": json.dumps(["tests/test_calc.py::test_double"]),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "requirements": PINS,
        "install": ["python -m pip install -e ."],
        "build_requirements": ["pip==26.3", "setuptools==80.9.0", "wheel==0.45.1"],
    }


def opened(instances: Path) -> SweBench:
    return SweBench({"instances": str(instances), "repos": str(instances.parent / "repos")})


def attempt(instances: Path, folder: Path, agent: str = "", patch: str | None = None) -> Result:
    """Return the result of an agent, or of a patch."""
    job = BenchJob(NAME, agent, folder)
    benchmark = opened(instances)
    if patch is None:
        return asyncio.run(benchmark.run(job))
    (folder / "patch.diff").write_text(patch)
    return asyncio.run(benchmark.grade(job))


@pytest.mark.long
def test_the_gold_patch_resolves_the_issue(instances: Path, tmp_path: Path) -> None:
    result = attempt(instances, tmp_path, "gold")
    assert result.reward == 1.0
    tests = {"FAIL_TO_PASS": "1/1", "PASS_TO_PASS": "1/1"}
    assert result.outputs == {"resolved": True, "applied": True, "trusted": True, **tests}
    assert "test_add" in (tmp_path / "test.log").read_text()
    assert json.loads((tmp_path / "report.json").read_text())[NAME]["trusted"] is True


def test_an_empty_patch_does_not_resolve_the_issue(instances: Path, tmp_path: Path) -> None:
    result = attempt(instances, tmp_path, "empty")
    assert (result.reward, result.outputs["FAIL_TO_PASS"], result.outputs["PASS_TO_PASS"]) == (0.0, "0/1", "1/1")


@pytest.mark.long
def test_rollouts_score_the_gold_patch_1_and_doing_nothing_0(instances: Path, tmp_path: Path) -> None:
    tasks = f"swe?instances={instances}&repos={instances.parent / 'repos'}"
    for agent, score in (("gold", 1.0), ("nop", 0.0)):
        given = ["--tasks", tasks, "--agent", agent, "--store", str(tmp_path), "--no-baseline", "-o", "json"]
        done = CliRunner().invoke(rollout_command, given)
        assert done.exit_code == 0, done.output
        [result] = json.loads(done.stdout)["results"]
        assert (result["task"], result["outcome"], result["score"]) == (NAME, "ok", score)


def test_a_patch_that_does_not_apply_does_not_resolve_the_issue(instances: Path, tmp_path: Path) -> None:
    result = attempt(instances, tmp_path, patch=GOLD.replace("a - b", "a * b").replace("def ", "class "))
    assert (result.reward, result.outputs["applied"]) == (0.0, False)


@pytest.mark.parametrize("how", CHEATS)
def test_a_cheating_patch_does_not_resolve_the_issue(how: str, instances: Path, tmp_path: Path) -> None:
    result = attempt(instances, tmp_path, patch=CHEATS[how])
    assert result.reward == 0.0


AGENT = """
import asyncio, os, sys
from pathlib import Path
from aenv import Environment

async def main():
    assert "add subtracts" in Path(os.environ["AENV_TASK_INSTRUCTION"]).read_text()
    async with Environment("swebench@1.0.0") as env:
        print((await env.call_tool("shell", {"command": sys.argv[1]})).data)

asyncio.run(main())
"""


def agent(folder: Path, command: str) -> str:
    """Return the command of an agent that makes one change."""
    (folder / "agent.py").write_text(AGENT)
    return shlex.join([sys.executable, str(folder / "agent.py"), command])


def test_changes_of_a_cheating_agent_to_its_instance_earn_nothing(instances: Path, tmp_path: Path) -> None:
    result = attempt(instances, tmp_path, agent(tmp_path, CHEATING_AGENT))
    assert "test_calc.py" in (tmp_path / "patch.diff").read_text()
    assert result.reward == 0.0


def test_a_program_solves_the_issue_with_the_tools(instances: Path, tmp_path: Path) -> None:
    result = attempt(instances, tmp_path, agent(tmp_path, "sed -i s/-/+/ calc.py"))
    assert result.reward == 1.0
    assert result.calls[0]["arguments"] == {"command": "sed -i s/-/+/ calc.py"}
    assert '"returncode":0' in result.calls[0]["output"]


def test_a_failing_agent_is_reported_and_earns_nothing(instances: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exit code 3:\nno idea"):
        attempt(instances, tmp_path, "echo no idea; exit 3")


def test_tools_work_on_the_repository_and_do_not_reveal_the_solution(instances: Path) -> None:
    async def main() -> None:
        prepared = await opened(instances).prepared(NAME)
        async with Environment(str(prepared.agent)) as env:

            async def call(tool: str, **arguments: Any) -> Any:
                return (await env.call_tool(tool, arguments)).data

            task = await env.call_function("get_task", {})
            assert "add subtracts" in task["instruction"]
            assert set(task) == {"instance_id", "repo", "base_commit", "version", "problem_statement", "repository",
                                 "instruction"}  # fmt: skip
            seen = await call(
                "shell", command="git log --all --oneline | wc -l; ls; ls /app; grep -r test_add /app/task"
            )
            assert seen["output"].split()[0] == "1"
            assert "secret.txt" not in seen["output"]
            assert "hidden" not in seen["output"]
            assert seen["returncode"] == 1
            assert "     2\t    return a - b" in await call("view", path="calc.py", end=3)
            assert await call("search", pattern=r"a - b$") == "calc.py:2:    return a - b\n"
            assert (await call("run_tests", tests="tests"))["returncode"] == 0
            assert await call("edit", path="calc.py", old="a - b", new="b + a") == "calc.py is changed"
            assert "not once" in await call("edit", path="calc.py", old="return", new="x")
            assert await call("edit", path="notes/n.txt", old="", new="new\n") == "notes/n.txt is made"
            assert "does not apply" in await call("apply_patch", patch=GOLD)
            assert (await call("shell", command="sleep 60", timeout=0.2))["returncode"] == 124
            patch = await env.call_function("get_patch", {})
            assert "+    return b + a" in patch
            assert "b/notes/n.txt" in patch
            assert "pycache" not in patch
            assert "egg-info" not in patch
            with pytest.raises(Exception, match="grade its patch in a new one"):
                await env.call_reward({"instance": NAME, "model_patch": patch})
        async with Environment(str(prepared.grade)) as env:
            graded = await env.call_reward({"instance": NAME, "model_patch": patch}, timeout=100)
            assert (graded["returncode"], graded["score"]) == (0, 1.0)

    asyncio.run(main())


def test_a_missing_repository_is_reported_with_how_to_get_one() -> None:
    async def main() -> None:
        async with Environment("swebench@1.0.0") as env:
            result = await env.call_tool("shell", {"command": "true"})
            assert "aenv bench swe" in result.text

    asyncio.run(main())


# --- instances and repositories


def test_instances_are_read_from_files_and_folders(tmp_path: Path) -> None:
    one = row("0" * 40)
    (tmp_path / "rows.json").write_text(json.dumps([one, {**one, "instance_id": "other"}]))
    assert [found.name for found in load(str(tmp_path / "rows.json"))] == [NAME, "other"]
    assert [found.name for found in load(str(tmp_path / "rows.json"), ["other"])] == ["other"]
    task = tmp_path / "tasks" / NAME
    task.mkdir(parents=True)
    (task / "task.yaml").write_text(
        f"base_commit: {'0' * 40}\ninstance_id: {NAME}\nrepo: acme/calc\nversion: '1.0'\n"
        "log_parser: parse_log_pytest\ndatasets:\n- one\n- two\n"
    )
    for name, text in (
        ("gold.patch", GOLD),
        ("test.patch", TEST_PATCH),
        ("eval.sh", one["eval_script"]),
        ("problem_statement.md", "add subtracts"),
        ("tests.json", '{"FAIL_TO_PASS": ["a"], "PASS_TO_PASS": []}'),
        (
            "environment.yml",
            "dependencies:\n  - python=3.9.20=h_1\n  - xz=5.4=h1\n  - pip=24.2=py39h_0\n"
            "  - tomli=2.0.1=py39h_0\n  - pip:\n      - pytest==7.1.0\n",
        ),
    ):
        (task / name).write_text(text)
    for place in (tmp_path, tmp_path / "tasks", task):
        (found,) = load(str(place))
        assert (found.name, found.python, found.pins, found.build) == (
            NAME,
            "3.9",
            ("tomli==2.0.1", "pytest==7.1.0"),
            ("pip==24.2",),
        )
        assert found.row["version"] == "1.0"


def test_instances_are_read_from_parquet_and_from_a_downloaded_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    rows = [{**row("0" * 40), "instance_id": name} for name in ("one", "two")]
    for split, chosen in (("test", rows), ("dev", rows[:1])):
        parquet.write_table(pyarrow.Table.from_pylist(chosen), tmp_path / "data" / f"{split}-00000-of-00001.parquet")
    whole = load(str(tmp_path / "data" / "test-00000-of-00001.parquet"))
    assert [found.row for found in whole] == rows
    assert (whole[0].pins, whole[0].python) == (tuple(PINS), row("")["python"])
    assert [found.name for found in load(str(tmp_path), ["two"])] == ["two"]
    assert [found.name for found in load(str(tmp_path), split="dev")] == ["one"]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="needs the package pyarrow"):
        load(str(tmp_path))


def test_an_unreachable_hub_is_reported_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "datasets.py").write_text("def load_dataset(name, split):\n    raise ConnectionError(f'no {name}')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="cannot be loaded from the datasets hub: no acme/set") as raised:
        load("acme/set")
    assert "HF_HOME" in raised.value.details["hint"]
    del sys.modules["datasets"]


def test_an_invalid_instance_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or folder: nowhere"):
        load("nowhere")
    with pytest.raises(UsageError, match="need the package datasets") as raised:
        load("acme/no-such-dataset")
    assert "pip install datasets" in raised.value.details["hint"]
    (tmp_path / "rows.jsonl").write_text('{"instance_id": "x", "repo": "a/b"}\n')
    with pytest.raises(ConfigError, match="x has no base_commit, problem_statement"):
        load(str(tmp_path / "rows.jsonl"))
    (tmp_path / "rows.jsonl").write_text(json.dumps(row("0")) + "\n")
    with pytest.raises(UsageError, match="has no instance y"):
        load(str(tmp_path / "rows.jsonl"), ["y"])


def test_repositories_come_from_clones_mirrors_or_github(tmp_path: Path) -> None:
    (tmp_path / "acme__calc" / ".git").mkdir(parents=True)
    assert source_of("acme/calc", str(tmp_path)) == str(tmp_path / "acme__calc")
    assert source_of("acme/calc", "https://mirror.example/git/") == "https://mirror.example/git/acme/calc"
    assert source_of("acme/calc", "") == "https://github.com/acme/calc"
    with pytest.raises(UsageError, match="no clone of acme/other"):
        source_of("acme/other", str(tmp_path))


def test_a_package_without_a_wheel_is_replaced_by_a_later_version(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[build-system]\nrequires = ["setuptools>=61"]\n')
    changed = pythons.install(tmp_path / "made", "", ["zss==1.2.0"], (), tmp_path)
    assert changed == ["zss==1.2.0 (left out)"]
    done = subprocess.run([tmp_path / "made/python/bin/python", "-c", "import setuptools, pip"], check=False)
    assert done.returncode == 0
    with pytest.raises(EnvironmentError, match=r"Python 3\.5 is not installed") as raised:
        pythons.install(tmp_path / "old", "3.5", [], (), tmp_path)
    assert (raised.value.fault, Result("x").failed(raised.value).reward) == ("infra", None)
    with pytest.raises(EnvironmentError, match="cannot install packages"):
        pythons.install(tmp_path / "other", "", ["aenv-no-such-package==1.0"], (), tmp_path)
