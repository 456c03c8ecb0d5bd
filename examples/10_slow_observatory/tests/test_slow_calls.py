"""What callers of slow tools see: progress, pictures, cancellation and time limits, in sandboxes."""

import asyncio
import base64
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from aenv import Environment
from aenv.errors import ToolTimeoutError

PROJECT = str(Path(__file__).parents[1])
ENDLESS = {"target": "orion", "exposures": 10_000}


def in_an_instance(test: Callable[[Environment], Awaitable[None]], **options: object) -> None:
    async def main() -> None:
        async with Environment(PROJECT, **options) as env:
            await test(env)

    asyncio.run(main())


def test_a_picture_comes_with_its_progress():
    async def test(env: Environment) -> None:
        steps: list[tuple[float, float | None, str | None]] = []
        result = await env.call_tool(
            "take_picture", {"target": "lyra", "exposures": 3}, on_progress=lambda *step: steps.append(step)
        )
        assert steps == [(number, 3, f"exposure {number} of lyra") for number in (1, 2, 3)]
        words, picture = result.content
        assert words["text"] == "lyra, 3 exposures: 3 of its stars can be seen."
        assert picture["mimeType"] == "image/png"
        assert base64.b64decode(picture["data"]).startswith(b"\x89PNG")
        assert await env.call_reward({"target": "lyra", "exposures": 5}) == 0.6

    in_an_instance(test)


def test_one_result_can_have_several_pictures_and_data():
    async def test(env: Environment) -> None:
        result = await env.call_tool("survey")
        assert [block["type"] for block in result.content] == ["text", "image"] * 3
        assert result.data == {"targets": ["pleiades", "orion", "lyra"]}

    in_an_instance(test)


@pytest.mark.parametrize(
    ("tool", "arguments"), [("take_picture", ENDLESS), ("count_stars", {"target": "orion", "rounds": 10_000})]
)
def test_a_cancelled_call_stops_its_tool(tool: str, arguments: dict[str, object]):
    async def test(env: Environment) -> None:
        begun = asyncio.Event()
        call = asyncio.create_task(env.call_tool(tool, arguments, on_progress=lambda *_: begun.set()))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        (job,) = await env.call_function("settled")
        assert job["state"] == "cancelled"
        assert 1 <= job["done"] < 10_000
        # The telescope is free again.
        assert not (await env.call_tool("take_picture", {"target": "lyra"})).is_error

    in_an_instance(test)


def test_the_callers_time_limit_stops_the_tool():
    async def test(env: Environment) -> None:
        with pytest.raises(ToolTimeoutError) as error:
            await env.call_tool("take_picture", ENDLESS, timeout=0.3)
        assert (error.value.fault, error.value.details["budget"]) == ("timeout", "call")
        assert all(job["state"] == "cancelled" for job in await env.call_function("settled"))

    in_an_instance(test)


def test_the_projects_time_limit_is_a_result_that_the_agent_can_read(tmp_path: Path):
    """`timeouts.call` of config.json; here that of a copy with a shorter limit."""
    project = tmp_path / "observatory"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    config = json.loads((project / "config.json").read_text())
    (project / "config.json").write_text(json.dumps({**config, "timeouts": {"call": "4s"}}))

    async def main() -> None:
        async with Environment(str(project)) as env:
            result = await env.call_tool("take_picture", ENDLESS)
            assert (result.is_error, result.fault) == (True, "timeout")
            assert [job["state"] for job in await env.call_function("settled")] == ["cancelled"]

    asyncio.run(main())


def test_slow_calls_leave_the_others_alone():
    async def test(env: Environment) -> None:
        begun = asyncio.Event()
        slow = asyncio.create_task(env.call_tool("take_picture", ENDLESS, on_progress=lambda *_: begun.set()))
        await begun.wait()
        assert (await env.call_tool("list_targets")).data == ["pleiades", "orion", "lyra"]
        assert (await env.check_health())["data"] == {"status": "healthy", "running": 1}
        slow.cancel()

    in_an_instance(test)
