"""The terminal environment in real sandboxes of the local platform, with a task in the project."""

from __future__ import annotations

import shutil
from pathlib import Path

from aenv import Environment
from aenv.hub import builtin
from tests.conftest import run

TASK = Path(__file__).parents[1] / "bench" / "tasks" / "first" / "count"


def test_an_agent_types_and_the_tests_that_it_never_sees_grade_it(tmp_path: Path) -> None:
    project = tmp_path / "terminal"
    shutil.copytree(builtin.folder() / "terminal", project, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    shutil.copytree(TASK, project / "tasks" / "count")
    check = project / "tasks" / "count" / "tests" / "check.sh"
    check.write_text(check.read_text().replace("/app/count.txt", "/tmp/count.txt"))

    async def main() -> None:
        variables = {"T_BENCH_TASKS_DIR": "/app/tasks"}
        async with Environment(str(project), environment_variables=variables) as env:

            async def shown(keys: str, wanted: str) -> None:
                await env.call_tool("keystrokes", {"keystrokes": f"clear; {keys}", "append_enter": True})
                while wanted not in (await env.call_tool("capture_pane", {"wait_before_capture_sec": 0.05})).text:
                    pass

            await shown("ls -R /app | grep -c -e run-tests.sh -e check.sh; echo do''ne", "0\ndone")
            nothing = await env.call_reward({"task_name": "count"})
            assert (nothing["status"], nothing["score"]) == ("success", 0.5)
            await shown("(while :; do echo 0 > /tmp/count.txt; sleep 0.01; done) & echo le''ft", "left")
            await shown("kill %1; wait; echo 17 > /tmp/count.txt; echo wri''tten", "written")
            good = await env.call_reward({"task_name": "count"})
            assert (good["task_name"], good["status"], good["score"]) == ("count", "success", 1.0)

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
