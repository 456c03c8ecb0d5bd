"""A person plays the user of a rollout in the console."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aenv.console.web_user import WebUser
from aenv.errors import Conflict, InvalidArguments
from aenv.http.messages import Request
from aenv.rollout.users.user import UserMessage
from aenv.schema.tasks import UserProfile
from tests.conftest import fetch
from tests.console.test_private import local  # noqa: F401
from tests.rollout.conftest import SHOP

if TYPE_CHECKING:
    from playwright.sync_api import Page

PROFILE = UserProfile(goal="Get 2 apples.", persona="<b>In a hurry</b>", knowledge={"Order number": 17})
TASK = {
    "id": "one",
    "prompt": "You are the clerk of a shop.",
    "reward": {"arguments": {"wanted": {"apple": 2}}},
    "user_profile": PROFILE.model_dump(),
}


def posted(**body: object) -> Request:
    request = Request()
    request.method, request.body = "POST", json.dumps(body).encode()
    return request


def test_only_the_turn_that_waits_is_answered() -> None:
    async def main() -> None:
        user = WebUser()
        with pytest.raises(Conflict):
            await user.page_answer(posted(turn=0, text="too early"))
        asked = asyncio.create_task(user.answer(PROFILE, []))
        await asyncio.sleep(0)
        with pytest.raises(InvalidArguments, match="empty"):
            await user.page_answer(posted(turn=1, text="  "))
        with pytest.raises(InvalidArguments):
            await user.page_answer(posted(turn="x"))
        with pytest.raises(Conflict):
            await user.page_answer(posted(turn=2, text="another turn"))
        await user.page_answer(posted(turn=1, text=" Apples. "))
        with pytest.raises(Conflict):
            await user.page_answer(posted(turn=1, text="twice"))
        assert await asked == "Apples."
        asked = asyncio.create_task(user.answer(PROFILE, [UserMessage("agent", "How many?")]))
        await asyncio.sleep(0)
        await user.page_answer(posted(turn=2, leave=True))
        assert await asked is None

    asyncio.run(main())


def test_a_person_plays_the_user_in_the_browser(
    local: dict[str, str],  # noqa: F811
    watched: Callable[..., Page],
    tmp_path: Path,
) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps([TASK]))
    (tmp_path / "clerk.py").write_text("from tests.rollout.test_users import clerk\n")
    command = [sys.executable, "-m", "aenv.cli", "rollout", SHOP, "--tasks", str(tmp_path / "tasks.json")]
    command += ["--user", "console", "--model", f"{tmp_path / 'clerk.py'}:clerk", "--no-baseline", "-o", "json"]
    variables = {**os.environ, **local, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables) as running:
        assert running.stderr is not None
        link = None
        for line in running.stderr:
            if link := re.search(r"http://\S+", line):
                break
        assert link, "no link was printed"
        assert fetch(link[0].partition("/console/")[0], "/console/user")[0] == 401
        page = watched()
        page.goto(link[0])
        page.get_by_label("Your role").get_by_text("<b>In a hurry</b>").wait_for()
        for number, said in enumerate(("Apples, please.", "Oh, two.")):
            page.get_by_label("Your message to the agent").fill(said)
            page.get_by_role("button", name="Send").click()
            page.locator(".message.assistant").nth(number).wait_for()
        page.locator(".message.assistant", has_text="How many do you want?").wait_for()
        page.get_by_role("button", name="Leave the conversation").click()
        stdout, stderr = running.communicate(timeout=120)
    assert running.returncode == 0, stderr
    [result] = json.loads(stdout)["results"]
    assert (result["reward"], result["user"]["kind"]) == (1.0, "human")
