"""Users of episodes: scripted, played by a model or a person; their failures are never the agent's."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from aenv.cli.main import main
from aenv.errors import UsageError, UserFailed
from aenv.rollout import (
    EpisodeResult,
    ModelRefused,
    ModelRequest,
    ModelUnavailable,
    Reply,
    ScriptedModel,
    ToolLoop,
    calls,
    rollout,
)
from aenv.rollout.model import ContextExceeded
from aenv.rollout.users import (
    HumanUser,
    ModelUser,
    ScriptedUser,
    User,
    UserConversation,
    UserMessage,
    UserProfile,
    find_user,
)
from aenv.rollout.users.human_user import PROMPT
from aenv.trajectory import TrajectoryStore
from tests.conftest import run
from tests.isolation.host import Platform
from tests.rollout.conftest import SHOP, results_of

PROFILE = UserProfile(
    goal="Get 2 apples.",
    knowledge={"Order number": 17},
    script=[{"say": "Two of them.", "when": "how many"}],
)
TASK = {
    "id": "one",
    "prompt": "You are the clerk of a shop.",
    "reward": {"arguments": {"wanted": {"apple": 2}}},
    "user_profile": PROFILE.model_dump(),
}


def talk(user: User, *said: str, profile: UserProfile = PROFILE) -> list[str | None]:
    """Return the opening, and the answers to what an agent says."""

    async def conversation() -> list[str | None]:
        made = UserConversation(user, profile, lambda **data: None)
        return [await made.opening(), *[await made.say(text) for text in said]]

    return run(conversation())


def clerk(messages: Sequence[dict[str, Any]], tools: Sequence[Any]) -> Any:
    """Play an agent that asks how many, buys them, and says so."""
    last = messages[-1]
    if last["role"] == "tool":
        return "Done: 2 apples are in the cart."
    if "two" in str(last["content"]).lower():
        return calls(("add_to_cart", {"item": "apple", "count": 2}))
    return "How many do you want?"


def serve(store: TrajectoryStore, **options: Any) -> list[EpisodeResult]:
    given: dict[str, Any] = {"tasks": [TASK], "retries": 0, "model": ScriptedModel(clerk), **options}
    return results_of(rollout(SHOP, store=store, **given))


# --- users by themselves


def test_a_scripted_user_follows_its_script_tells_facts_agrees_and_leaves() -> None:
    said = talk(ScriptedUser(), "How many?", "What is your order number?", "How many? Shall I?", "Done.", "Hello?")
    assert said == ["Get 2 apples.", "Two of them.", "My Order number is 17.", "Yes, please go ahead.", None, None]


def test_a_user_leaves_when_its_patience_is_used_up() -> None:
    profile = UserProfile(goal="Wait.", patience=2)
    assert talk(ScriptedUser(), "Ready?", "Ready?", "Ready?", profile=profile) == [
        "Wait.", "Yes, please go ahead.", "Yes, please go ahead.", None,
    ]  # fmt: skip


def test_a_model_plays_the_user_by_its_profile_and_leaves_with_a_call() -> None:
    requests: list[tuple[list[dict[str, Any]], list[Any]]] = []

    def model(messages: Sequence[dict[str, Any]], tools: Sequence[Any]) -> Any:
        requests.append((list(messages), list(tools)))
        return ["Hello, apples please.", "Two.", calls(("leave_conversation", {"satisfied": True}))][len(requests) - 1]

    user = ModelUser(ScriptedModel(model, "played"))
    assert talk(user, "How many?", "Done.") == ["Hello, apples please.", "Two.", None]
    prompt = requests[0][0][0]["content"]
    assert "Get 2 apples." in prompt
    assert "Order number: 17" in prompt
    assert requests[0][1] == []  # it cannot leave before it has said something
    assert [(each["role"], each["content"]) for each in requests[2][0][2:]] == [
        ("assistant", "Hello, apples please."), ("user", "How many?"), ("assistant", "Two."), ("user", "Done."),
    ]  # fmt: skip


def test_the_digest_of_a_model_user_changes_with_its_prompt_and_sampling() -> None:
    model = ScriptedModel(["hi"], "played")
    digests = {
        user.about()["prompt"]
        for user in (
            ModelUser(model),
            ModelUser(model, instructions="Be rude."),
            ModelUser(model, sampling={"temperature": 0}),
        )
    }
    assert len(digests) == 3
    assert ModelUser(model).about() == ModelUser(model).about()


def test_a_person_reads_what_the_agent_says_and_leaves_at_the_end_of_input() -> None:
    shown: list[str] = []
    lines = iter(["", "apples", "two"])

    def read(prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    assert talk(HumanUser(read, shown.append), "How many?", "Done.") == ["apples", "two", None]
    assert "Get 2 apples." in shown[0]
    assert shown[1:] == ["agent> How many?", "agent> Done."]


@pytest.mark.parametrize(
    "failure", [ModelUnavailable("down"), RuntimeError("bug"), TypeError("bug"), TimeoutError("slow")], ids=repr
)
def test_every_failure_of_a_user_is_its_own(failure: Exception) -> None:
    def user(profile: UserProfile, messages: Sequence[UserMessage]) -> str:
        raise failure

    found = find_user(user)
    assert found is not None
    with pytest.raises(UserFailed):
        talk(found)


def test_a_user_that_does_not_answer_in_time_has_failed() -> None:
    class Slow(ScriptedUser):
        answer_seconds = 0.01

        async def answer(self, profile: UserProfile, messages: Sequence[UserMessage]) -> str | None:
            await asyncio.Event().wait()
            return None

    with pytest.raises(UserFailed, match="has not answered within"):
        talk(Slow())


def test_an_agent_cannot_make_a_user_fail_by_what_it_writes() -> None:
    class Strict(ScriptedModel):
        async def complete(self, request: ModelRequest) -> Reply:
            text = str(request.messages[-1]["content"])
            if "x" * 100_000 in text or "LONG" in text:
                raise ContextExceeded("too long")
            if "FORBIDDEN" in text:
                raise ModelRefused("content filter")
            return await super().complete(request)

    def user() -> ModelUser:
        return ModelUser(Strict(["hi", "", "more"]))

    assert talk(user(), "LONG", "more") == ["hi", None, None]
    assert talk(user(), "FORBIDDEN", "more") == ["hi", None, None]
    assert talk(user(), "x" * 1_000_000) == ["hi", "..."]  # only its beginning is read; an empty answer is silence


def test_a_model_that_refuses_the_very_first_request_stops_the_rollout() -> None:
    class Refusing(ScriptedModel):
        async def complete(self, request: ModelRequest) -> Reply:
            raise ModelRefused("wrong key")

    with pytest.raises(ModelRefused):
        talk(ModelUser(Refusing([])))


def test_an_unknown_user_is_rejected() -> None:
    with pytest.raises(UsageError, match="unknown user 'robot'"):
        find_user("robot")
    with pytest.raises(UsageError, match="invalid user"):
        find_user(17)
    assert find_user(None) is None


# --- users in rollouts


def test_the_loop_talks_to_the_user_until_the_user_leaves(platform: Platform, store: TrajectoryStore) -> None:
    [result] = serve(store, user="scripted")
    assert (result.outcome, result.reward) == ("ok", 1.0)
    assert result.user is not None
    assert (result.user["kind"], result.user["model"]) == ("scripted", None)
    events = list(store.events(result.episode))
    said = [(event["role"], event.get("content")) for event in events if event["kind"] == "message"]
    assert said[:4] == [
        ("system", "You are the clerk of a shop."), ("user", "Get 2 apples."),
        ("assistant", "How many do you want?"), ("user", "Two of them."),
    ]  # fmt: skip
    notes = [event["data"] for event in events if event["kind"] == "note"]
    assert notes[-1] == {"user_left": "user"}
    assert "Order number" not in json.dumps(events[0])  # agents see the record's task; the profile is not in it


def test_any_task_can_have_a_user_who_wants_what_it_says(platform: Platform, store: TrajectoryStore) -> None:
    task = {"id": "plain", "prompt": "Buy two apples.", "reward": {"arguments": {"wanted": {"apple": 2}}}}
    [result] = serve(store, tasks=[task], user="scripted")
    assert (result.outcome, result.reward) == ("ok", 1.0)
    messages = [event for event in store.events(result.episode) if event["kind"] == "message"]
    assert "apples" not in messages[0]["content"]
    assert messages[1]["content"] == "Buy two apples."


@pytest.mark.parametrize("by_tool", [False, True])
def test_a_failed_user_ends_the_episode_as_user_without_a_reward(
    platform: Platform, store: TrajectoryStore, by_tool: bool
) -> None:
    def user(profile: UserProfile, messages: Sequence[UserMessage]) -> str:
        if messages:
            raise RuntimeError("the line is dead")
        return "Hello"

    def agent(messages: Sequence[dict[str, Any]], tools: Sequence[Any]) -> Any:
        return calls(("message_user", {"text": "How many?"})) if by_tool else "How many?"

    [result] = serve(store, user=user, user_by_tool=by_tool, model=ScriptedModel(agent))
    assert (result.outcome, result.reward, result.fault) == ("user", None, "user")
    assert "the line is dead" in result.error


def test_a_task_with_a_profile_needs_a_user_only_if_the_agent_talks(platform: Platform, store: TrajectoryStore) -> None:
    [idle] = serve(store, agent="nop")
    assert (idle.outcome, idle.reward, idle.user) == ("ok", 0.0, None)
    with pytest.raises(UsageError, match="does not say who plays it"):
        serve(store)


def test_a_command_talks_to_the_user_with_a_tool(platform: Platform, store: TrajectoryStore) -> None:
    program = """
import os
from aenv import SyncEnvironment
with SyncEnvironment("shop") as env:
    assert "Get 2 apples." in open(os.environ["AENV_TASK_INSTRUCTION"]).read()
    assert env.call_tool("message_user", {"text": "How many?"}).data == "Two of them."
    assert env.call_tool("message_user", {}).is_error
    env.call_tool("add_to_cart", {"item": "apple", "count": 2})
    assert "left" in env.call_tool("message_user", {"text": "Done."}).data
"""
    [result] = serve(store, agent=shlex.join([sys.executable, "-c", program]), user="scripted", model=None)
    assert (result.outcome, result.reward, result.error) == ("ok", 1.0, "")


def test_a_resumed_run_keeps_its_user_and_refuses_another(platform: Platform, store: TrajectoryStore) -> None:
    [first] = serve(store, user="scripted", run="talk")
    [again] = serve(store, user="scripted", run="talk")
    assert again.resumed
    assert again.user == first.user
    with pytest.raises(UsageError, match="different arguments: user"):
        serve(store, user=ModelUser(ScriptedModel(["hi"])), run="talk")


def test_a_system_prompt_and_the_role_are_one_message(platform: Platform, store: TrajectoryStore) -> None:
    [result] = serve(store, user="scripted", agent=ToolLoop("Be brief."))
    messages = [event for event in store.events(result.episode) if event["kind"] == "message"]
    assert (result.reward, messages[0]["content"]) == (1.0, "Be brief.\n\nYou are the clerk of a shop.")


def test_the_command_line_names_the_user(
    platform: Platform, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps([TASK]))
    (tmp_path / "clerk.py").write_text("from tests.rollout.test_users import clerk\n")
    arguments = ["rollout", SHOP, "--tasks", str(tmp_path / "tasks.json"), "--user", "scripted"]
    arguments += ["--model", f"{tmp_path / 'clerk.py'}:clerk", "--store", str(tmp_path / "records"), "-o", "json"]
    assert main([*arguments, "--no-baseline"]) == 0
    [result] = json.loads(capsys.readouterr().out)["results"]
    assert (result["reward"], result["user"]["kind"]) == (1.0, "scripted")
    assert main([*arguments[:5], "robot"]) == 2


def test_a_person_plays_the_user_at_a_terminal(platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps([TASK]))
    (tmp_path / "clerk.py").write_text("from tests.rollout.test_users import clerk\n")
    command = [sys.executable, "-m", "aenv.cli", "rollout", SHOP, "--tasks", str(tmp_path / "tasks.json")]
    command += ["--user", "human", "--model", f"{tmp_path / 'clerk.py'}:clerk", "--store", str(tmp_path / "records")]
    done = subprocess.run(
        [*command, "--no-baseline", "-o", "json"],
        input="Apples, please.\nOh, two.\n",
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    [result] = json.loads(done.stdout)["results"]
    assert (result["reward"], result["user"]["kind"]) == (1.0, "human")
    assert "Get 2 apples." in done.stderr
    assert "agent> How many do you want?" in done.stderr


def test_a_rollout_that_waits_for_a_person_is_stopped_by_ctrl_c(platform: Platform, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "aenv.cli", "rollout", SHOP, "--user", "human", "--model", "none"]
    with subprocess.Popen(
        [*command, "--store", str(tmp_path / "records")], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as waiting:
        assert waiting.stderr is not None
        seen = b""
        while PROMPT.encode() not in seen and (data := os.read(waiting.stderr.fileno(), 4096)):
            seen += data
        waiting.send_signal(signal.SIGINT)
        seen += waiting.stderr.read()
    assert waiting.returncode == 130, seen
    assert b"Fatal" not in seen
    assert b"Resume it" in seen
