"""One task, step by step: the benchmark's own orchestrator, environment and evaluator, without a thread.

The orchestrator is stepped until it wants something from the agent. So there is nothing to wait for but a user's model,
and an episode that has not begun can be forked. The name begins with an underscore so that it is not loaded where
there is no benchmark.
"""

import time
from typing import Any

import _models
from _solutions import solution, spoiled
from _users import ScriptedUser
from tau2.agent.base_agent import HalfDuplexAgent
from tau2.data_model.message import AssistantMessage, ToolCall, UserMessage
from tau2.data_model.tasks import Task
from tau2.orchestrator.orchestrator import Orchestrator, Role
from tau2.registry import registry
from tau2.user.user_simulator import DummyUser, UserSimulator
from tau2.utils.tools import to_functional_format
from tau2.utils.utils import get_now

from aenv import UserFailed

STOP = "###STOP###"
BANKING = "banking_knowledge"
ALIASES = {"banking": BANKING}


class GymAgent(HalfDuplexAgent):
    """Says what it is told to. The orchestrator lets only agents of this name be alone."""

    said: AssistantMessage | None = None

    def generate_next_message(self, message: Any, state: Any) -> tuple[AssistantMessage, Any]:
        """What was said last."""
        said, self.said = self.said, None
        assert said is not None, "nobody spoke for the agent"
        return said, state

    def get_init_state(self, message_history: Any = None) -> list[Any]:
        """There is nothing to remember."""
        return []

    @classmethod
    def is_stop(cls, message: AssistantMessage) -> bool:
        """Whether this ends the episode."""
        return STOP in (message.content or "")

    def set_seed(self, seed: int) -> None:
        """It draws no numbers."""


class Loaded:
    """A task and how it is played; cheap to begin again."""

    def __init__(
        self,
        domain: str,
        task_id: str,
        solo: bool | None,
        max_steps: int,
        user: dict[str, Any] | None = None,
        judge: _models.Judge | None = None,
    ) -> None:
        self.domain = ALIASES.get(domain, domain)
        if self.domain not in registry.get_domains():
            known = ", ".join(sorted(registry.get_domains()))
            raise ValueError(f"TAU2_DOMAIN: there is no domain {domain!r}; there are: {known}")
        self.task = _find_task(self.domain, task_id)
        self.solo = self._is_for_one() if solo is None else solo
        self.max_steps = max_steps
        self.user = user or {}
        self.judge = judge or _models.Judge()
        if self.solo and not self.task.ticket:
            raise ValueError(
                f"TAU2_SOLO_MODE: task {self.task.id} of {domain} has a user; set TAU2_SOLO_MODE=false, and "
                "TAU2_USER_LLM to a model, or leave that out for a user that follows a script"
            )
        environment = self._environment()
        self.policy = environment.get_policy()
        self._theirs = environment.get_user_tools(include=self.task.user_tools) if environment.user_tools else []
        self.tools = environment.get_tools() + (self._theirs if self.solo else [])
        self._unused: Any = environment  # the first episode's: a copy of it would be nobody else's memory

    def _is_for_one(self) -> bool:
        """Whether it can be played without a user, and nobody has to be told anything."""
        criteria = self.task.evaluation_criteria
        to_tell = criteria is not None and bool(criteria.communicate_info)
        return bool(self.task.ticket) and self.domain in ("telecom", "mock") and not to_tell

    def begin(self) -> "Episode":
        """A new episode of it."""
        unused, self._unused = self._unused, None
        return Episode(self, unused or self._environment(), self._make_user())

    def do_nothing(self) -> float | None:
        """What an agent gets that says goodbye at once. No words matter for that, so no model is asked to speak."""
        user = DummyUser() if self.solo else ScriptedUser(self.task, self._theirs or None)
        idle = Episode(self, self._environment(), user, frugal=True)
        idle.finish()
        return idle.reward

    def solution(self, wrong: bool = False) -> list[dict[str, Any]]:
        """The benchmark's own; or, if ``wrong``, one with a mistake in it."""
        steps = solution(self.task, self.solo)
        if wrong:
            others = (other for load in [registry.get_tasks_loader(self.domain)] for other in load())
            steps = spoiled(steps, self.task, self._environment(), others)
        return [{"tool": step.tool, "arguments": step.arguments} for step in steps]

    def _environment(self) -> Any:
        """A new one."""
        alone: dict[str, Any] = {"solo_mode": True} if self.solo else {}
        made = registry.get_env_constructor(self.domain)(**alone, **self.grading_options())
        if self.solo and hasattr(made, "set_solo_mode"):
            made.set_solo_mode(True)
        return made

    def grading_options(self) -> dict[str, Any]:
        """What the evaluator has to make its own environments with. Others of banking's ways to search need a model."""
        return {"retrieval_variant": "bm25", "task": self.task} if self.domain == BANKING else {}

    def _make_user(self) -> Any:
        if self.solo:
            return DummyUser()
        tools = self._theirs or None
        if not self.user.get("llm"):
            return ScriptedUser(self.task, tools)
        return UserSimulator(tools=tools, instructions=self.task.user_scenario, **self.user)


class Episode:
    """From the first word to the reward."""

    def __init__(self, loaded: Loaded, environment: Any, user: Any, frugal: bool = False) -> None:
        self._loaded = loaded
        self._frugal = frugal
        self._agent = GymAgent(tools=loaded.tools, domain_policy=loaded.policy)
        self._run = Orchestrator(
            domain=loaded.domain,
            agent=self._agent,
            user=user,
            environment=environment,
            task=loaded.task,
            max_steps=2 * loaded.max_steps,  # a call and its result are two for the orchestrator
            solo_mode=loaded.solo,
        )
        self._begun = False
        self.steps = 0
        self.last = ""
        self.reward: float | None = None
        self.reward_info: dict[str, Any] = {}
        self._failed: Exception | None = None

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self._run.done

    def open(self) -> str:
        """Let the user speak first, if there is one; what the agent is to answer."""
        history = self._loaded.task.initial_state and self._loaded.task.initial_state.message_history
        if not self._begun and (history or not self._loaded.solo):
            self._begin()
            self._play(0)
        return self.last

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Use a tool; what came of it."""
        return self._say(tool_calls=[ToolCall(id=f"call_{self.steps}", name=name, arguments=arguments)])

    def speak(self, message: str) -> str:
        """Say something to the user; what they answer."""
        return self._say(content=message)

    def finish(self) -> None:
        """The agent is done."""
        if not self.done:
            self._say(content=STOP)

    def rewards(self) -> list[float]:
        """The reward, once it is over. Raises when there is none, since something broke: that is not a 0.

        Raises:
            UserFailed: the user's model failed.
        """
        if self._failed is not None:
            raise self._failed
        return [self.reward or 0.0] if self.done else []

    def graded(self) -> float:
        """The reward so far. Raises as `rewards` does."""
        return sum(self.rewards())

    def _say(self, **message: Any) -> str:
        if self._failed is not None:
            raise self._failed
        if self.done:
            raise RuntimeError("this episode is over; make a new instance for another")
        self.open()
        self._agent.said = AssistantMessage(
            role="assistant", **message
        )  # now: messages are put in order by their times
        self.steps += 1
        if not self._begun:
            self._begin()
            seen = 1
        else:
            seen = len(self._run.trajectory) + 1
        self._play(seen)
        return self.last

    def _begin(self) -> None:
        self._begun = True
        self._run._run_start_time = get_now()
        self._run._run_start_perf = time.perf_counter()
        self._run.initialize()

    def _play(self, seen: int) -> None:
        """On until it is the agent's turn, or over. What came since `seen` messages is what the agent observes."""
        run = self._run
        while not run.done and not (run.to_role is Role.AGENT and self._agent.said is None):
            users_turn = run.to_role is Role.USER
            try:
                run.step()
            except Exception as error:  # what was said last has no answer, so this cannot go on
                told = f"the episode could not go on: {_models.told(error)}{self._hint()}"
                self._failed = UserFailed(told) if users_turn else RuntimeError(told)
                raise self._failed from None  # the cause may have shown the key
            run._check_termination()
        self.last = "\n".join(_shown(message) for message in run.trajectory[seen:])
        if run.done:
            self._grade()

    def _hint(self) -> str:
        user = self._loaded.user
        if not user or user["llm_args"].get("api_base"):
            return ""
        return " (TAU2_USER_LLM_API_BASE says where the user's model is; an instance reaches nothing that nobody named)"

    def _grade(self) -> None:
        loaded = self._loaded
        try:
            self.reward, self.reward_info = loaded.judge.evaluated(
                loaded.task,
                frugal=self._frugal,
                simulation=self._run._finalize(),
                solo_mode=loaded.solo,
                domain=loaded.domain,
                env_kwargs=loaded.grading_options(),
            )
        except Exception as error:
            self._failed = RuntimeError(f"the benchmark could not grade this episode: {_models.told(error)}")


def task_names(domain: str, split: str = "") -> list[str]:
    """The tasks of a domain, or of a part of it."""
    domain = ALIASES.get(domain, domain)
    if domain not in registry.get_domains():
        raise ValueError(f"there is no domain {domain!r}; there are: {', '.join(sorted(registry.get_domains()))}")
    load = registry.get_tasks_loader(domain)
    return [task.id for task in (load(split) if split else load())]


def _find_task(domain: str, task_id: str) -> Task:
    load = registry.get_tasks_loader(domain)
    tasks = load()
    if task_id and all(task.id != task_id for task in tasks):
        tasks = load(None) if domain != BANKING else tasks  # all splits
    if not task_id:
        return tasks[0]
    for task in tasks:
        if task.id == task_id:
            return task
    raise ValueError(
        f"TAU2_TASK_ID: {domain} has no task {task_id!r}; there are {len(tasks)}, the first: {tasks[0].id!r}"
    )


def _shown(message: Any) -> str:
    calls = message.tool_calls if isinstance(message, (UserMessage, AssistantMessage)) else None
    text = ", ".join(to_functional_format(call) for call in calls) if calls else message.content
    return f"{message.role}: {text}"
