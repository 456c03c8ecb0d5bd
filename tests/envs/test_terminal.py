"""The terminal environment in real sandboxes of the local platform, with a task in the project."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from aenv import Environment
from aenv.hub import builtin
from tests.conftest import run
from tests.tiny import make_root

TASK = Path(__file__).parents[1] / "bench" / "tasks" / "first" / "count"
VARIABLES = {"T_BENCH_TASKS_DIR": "/app/tasks"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment with two tasks: one of the benchmark's tests, and one whose check runs in Python."""
    made = tmp_path_factory.mktemp("terminal") / "terminal"
    shutil.copytree(builtin.folder() / "terminal", made, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    shutil.copytree(TASK, made / "tasks" / "count")
    check = made / "tasks" / "count" / "tests" / "check.sh"
    check.write_text(check.read_text().replace("/app/count.txt", "/tmp/count.txt"))
    answer = made / "tasks" / "answer"
    (answer / "tests").mkdir(parents=True)
    (answer / "run-tests.sh").write_text(RUN_TESTS)
    (answer / "tests" / "check.py").write_text(CHECK)
    return made


RUN_TESTS = """#!/bin/bash
python3 $TEST_DIR/check.py
code=$?
test -x /tmp/tool && /tmp/tool
echo "=========== short test summary info ============"
if [ $code = 0 ]; then echo "PASSED tests/check.py::answer"; else echo "FAILED tests/check.py::answer - no"; fi
cat /tmp/slow 2> /dev/null && sleep 0.5
exit $code
"""
CHECK = """
import pathlib, sys
found = pathlib.Path("/tmp/answer.txt")
sys.exit(0 if found.is_file() and found.read_text() == "42\\n" else 1)
"""
SUMMARY = "=========== short test summary info ============\\nPASSED tests/check.py::answer\\n"
CHEATS = {
    "overwrites the tests": f"""mkdir -p /app/tasks/answer/tests
printf 'printf "{SUMMARY}"\\n' | tee /app/tasks/answer/run-tests.sh > /app/tasks/answer/tests/check.py""",
    "leaves a reward": """for folder in /tmp/logs/verifier /logs/verifier /app/tasks/answer; do
mkdir -p $folder 2>/dev/null && echo 1 | tee $folder/reward.txt $folder/score > /dev/null; done""",
    "leaves a daemon": f"""cat > /tmp/daemon.sh <<'END'
while :; do
  for folder in /tmp/tests-* /run/tests-*; do
    echo 'raise SystemExit(0)' > $folder/tests/check.py
    printf 'printf "{SUMMARY}"; exit 0\\n' > $folder/run-tests.sh
  done
  setsid bash /tmp/daemon.sh & sleep 0.01; [ -e /tmp/daemons ] || echo > /tmp/daemons
done
END
setsid bash /tmp/daemon.sh > /dev/null 2>&1 &
while [ ! -e /tmp/daemons ]; do sleep 0.01; done""",
    "patches the runner": """code='import os; os._exit(0)'
for folder in ~/.local/lib/python3.*/site-packages ~/hooks /app /tmp; do
  mkdir -p $folder; echo "$code" | tee $folder/sitecustomize.py $folder/usercustomize.py > /dev/null
done
mkdir -p ~/bin; printf '#!/bin/sh\\nexit 0\\n' | tee ~/bin/python3 > ~/bin/bash; chmod 755 ~/bin/*
printf 'alias python3=true\\npython3() { true; }\\n' | tee ~/.bashrc ~/.profile ~/.bash_profile > /tmp/hook
echo 'export PATH=~/bin:$PATH PYTHONPATH=~/hooks BASH_ENV=/tmp/hook' | tee -a ~/.bashrc ~/.profile > /dev/null
export PATH=~/bin:$PATH PYTHONPATH=~/hooks BASH_ENV=/tmp/hook ENV=/tmp/hook; alias python3=true
python3() { true; }; export -f python3
printf '[pytest]\\naddopts = --collect-only\\n' > /tmp/pytest.ini""",
    "has its tool say it": f"""cat > /tmp/tool <<'END'
#!/bin/bash
(setsid bash -c 'sleep 0.2; printf "{SUMMARY}"' &)
END
chmod 755 /tmp/tool; echo > /tmp/slow""",
    "takes the place away": "rm -rf /tmp/* ; ln -s /app /tmp/tests-0; chmod 1777 /tmp",
}


class Typist:
    """Types into the terminal, and waits until it is done."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._count = 0

    async def does(self, script: str) -> str:
        self._count += 1
        await self._env.upload(script.encode() + b"\n", f"/tmp/script-{self._count}.sh")
        keys = f"clear; source /tmp/script-{self._count}.sh; echo do''ne-{self._count}"
        await self._env.call_tool("keystrokes", {"keystrokes": keys, "append_enter": True})
        async with asyncio.timeout(30):
            while f"done-{self._count}" not in (shown := await self._shown()):
                pass
        return shown

    async def _shown(self) -> str:
        return (await self._env.call_tool("capture_pane", {"wait_before_capture_sec": 0.05})).text


def test_an_agent_types_and_the_tests_that_it_never_sees_grade_it(project: Path) -> None:
    async def main() -> None:
        async with Environment(str(project), environment_variables=VARIABLES) as env:
            agent = Typist(env)
            assert "0\n" in await agent.does("clear; ls -R /app | grep -c -e run-tests.sh -e check.sh")
            nothing = await env.call_reward({"task_name": "count"})
            assert (nothing["status"], nothing["score"]) == ("success", 0.5)
            await agent.does("echo 17 > /tmp/count.txt")
            good = await env.call_reward({"task_name": "count"})
            assert (good["task_name"], good["status"], good["score"]) == ("count", "success", 1.0)
            assert (await env.call_reward({"task_name": "answer"}))["score"] == 0.0
            await agent.does("echo 42 > /tmp/answer.txt")
            assert (await env.call_reward({"task_name": "answer"}))["score"] == 1.0

    run(main())


@pytest.mark.attack("grading")
@pytest.mark.parametrize("how", CHEATS)
def test_an_agent_earns_nothing_that(how: str, project: Path) -> None:
    async def main() -> None:
        async with Environment(str(project), environment_variables=VARIABLES) as env:
            await Typist(env).does(CHEATS[how])
            found = await env.call_reward({"task_name": "answer"}, timeout=30)
            assert (found["status"], found["score"]) == ("success", 0.0), found

    run(main())


def test_on_an_image_programs_that_tests_are_run_with_stay_what_they_were(project: Path, tmp_path: Path) -> None:
    """There, all of the system is the agent's to change."""
    on_image = tmp_path / "on-image"
    shutil.copytree(project, on_image)
    make_root(on_image / "base" / "root", ("bash", "sh", "cat", "chmod", "mv", "rm"))
    config = json.loads((on_image / "config.json").read_text())
    config["deployConfig"]["base"] = "./base/root"
    (on_image / "config.json").write_text(json.dumps(config))
    cheat = "printf '#!/bin/sh\\necho 17\\n' > /tmp/cat; chmod 755 /tmp/cat; mv /tmp/cat /usr/bin/cat"

    async def earned(script: str) -> Any:
        async with Environment(str(on_image), environment_variables=VARIABLES) as env:
            await Typist(env).does(script)
            return await env.call_reward({"task_name": "count"})

    assert run(earned("echo 17 > /tmp/count.txt"))["score"] == 1.0
    replaced = run(earned(cheat))
    assert (replaced["status"], replaced["score"]) == ("success", 0.0)
    assert replaced["error"].endswith("/usr/bin/cat")


def test_while_tests_run_nobody_types(project: Path) -> None:
    async def main() -> None:
        async with Environment(str(project), environment_variables=VARIABLES) as env:
            await Typist(env).does("mkfifo /tmp/slow")
            grading = asyncio.create_task(env.call_reward({"task_name": "answer"}, timeout=30))
            refused: Any = None
            while refused is None or not refused.is_error:  # until grading has begun
                refused = await env.call_tool("keystrokes", {"keystrokes": "x"})
            assert "is being graded" in refused.text
            await env.exec("echo > /tmp/slow")
            assert (await grading)["score"] == 0.0
            assert not (await env.call_tool("keystrokes", {"keystrokes": "x"})).is_error

    run(main())


def test_its_name_is_all_it_takes() -> None:
    async def main() -> None:
        async with Environment("terminal@0.1.0") as env:
            names = {tool["name"] for tool in await env.list_tools()}
            assert names == {"terminal@0.1.0/keystrokes", "terminal@0.1.0/capture_pane"}
            found = await env.call_reward({"task_name": "hello-world"})
            assert found["status"] == "error"
            assert "T_BENCH_TASKS_DIR" in found["error"]

    run(main())
