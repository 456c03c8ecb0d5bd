"""An episode as its agent sees it: the instruction, the tools, the model and the budget. Everything is recorded."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from aenv.authoring.results import ToolResult
from aenv.errors import AEnvError, InvalidUse, ToolServerError, ToolTimeoutError, UsageError, UserFailed
from aenv.http.client import DeadlineExceeded
from aenv.rollout.budget import Budget
from aenv.rollout.model import Message, Model, ModelRequest, Reply
from aenv.rollout.outcome import AgentLacks
from aenv.rollout.tools import Tools
from aenv.rollout.world import World
from aenv.schema.tasks import Task, TaskStep

if TYPE_CHECKING:
    from aenv.rollout.users.user_conversation import UserConversation

CALL_SECONDS = 300.0
"""Time limit of a tool call, unless less of the episode's time is left."""


class Recorder(Protocol):
    """Receiver of the events of an episode."""

    @property
    def episode_id(self) -> str:
        """Identifier of the episode."""
        ...

    def append(self, kind: str, /, **fields: Any) -> object:
        """Record an event."""
        ...


class Price:
    """Price of a model's tokens, per million."""

    def __init__(self, input: float, output: float) -> None:
        if not all(math.isfinite(each) and each >= 0 for each in (input, output)):
            raise UsageError(f"invalid price {input:g}/{output:g}; expected two numbers that are not negative")
        self.input = input
        self.output = output

    def of(self, reply: Reply) -> float:
        """Return the cost of an answer."""
        return (reply.input_tokens * self.input + reply.output_tokens * self.output) / 1e6


class Episode:
    """Attempt at a task, for an agent: ``async def agent(episode) -> None``.

    Example:
        ```python
        async def agent(episode: Episode) -> None:
            result = await episode.call("add", a=1, b=2)
            await episode.call("submit", answer=result.data)
        ```
    """

    def __init__(
        self,
        task: Task,
        *,
        instruction: str,
        env: World,
        tools: Tools,
        recorder: Recorder,
        budget: Budget,
        sample: int = 0,
        seed: int = 0,
        model: Model | None = None,
        sampling: Mapping[str, Any] | None = None,
        price: Price | None = None,
        call_seconds: float = CALL_SECONDS,
        user: UserConversation | None = None,
        solution: Callable[[], Awaitable[list[TaskStep]]],
        on_reply: Callable[[Reply], None] = lambda reply: None,
        on_model_failure: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.task = task.public()
        """The task, without what agents must not see."""
        self.instruction = instruction
        """Instruction for the agent."""
        self.env = env
        """The instance, for what `call` does not offer. Calls on it are not recorded."""
        self.model = model
        """The model of the rollout, if it has one; `ask` asks it."""
        self.user = user
        """The user whom the agent talks to, if there is one: ``opening()`` and ``say(text)``."""
        self.budget = budget
        """Limits of the episode, and its use so far."""
        self.sample = sample
        """Number of this sample of the task, from 0."""
        self.seed = seed
        """Seed for random choices of the agent: the same for the same rollout, task and sample."""
        self.final_text = ""
        """Last text of the model without tool calls."""
        self._solution = solution
        self._tools = tools
        self._recorder = recorder
        self.sampling = dict(sampling or {})
        """Sampling parameters of the rollout; `ask` sends them to the model."""
        self._price = price
        self._call_seconds = call_seconds
        self._on_reply = on_reply
        self._on_model_failure = on_model_failure
        self._said: list[str] = []
        self._calls = 0
        self._ended = False

    @property
    def id(self) -> str:
        """Identifier of the episode, for `aenv trajectory show`."""
        return self._recorder.episode_id

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools, in the format of OpenAI's Chat Completions."""
        return self._tools.definitions

    async def call(self, tool: str, /, **arguments: Any) -> ToolResult:
        """Call a tool and return its result. An error of the tool or its arguments is a result, for the agent to read.

        Raises:
            BudgetSpent: the episode may make no further call.
            AEnvError: there is no result; let it pass, and the runner finds the outcome.
        """
        return await self.call_tool(tool, arguments)

    async def call_tool(self, tool: str, arguments: Mapping[str, Any] | str | None, *, id: str = "") -> ToolResult:
        """Call a tool with a dict of arguments, or with the JSON text that a model wrote.

        ``id``: the model's identifier of the call. See `call`.
        """
        self._check_open()
        self.budget.take_step()
        self._calls += 1
        id = id or f"call-{self._calls}"
        name = self._tools.own_name(tool)
        self._recorder.append("call", id=id, of="tool", tool=name, arguments=_readable(arguments))
        began = time.monotonic()
        try:
            result = await self._result(tool, arguments)
        except AEnvError as error:
            self._recorder.append(
                "result",
                id=id,
                content=[],
                is_error=True,
                fault=error.fault,
                error=error.message,
                seconds=_since(began),
            )
            raise
        fields: dict[str, Any] = {"content": result.content, "is_error": result.is_error, "seconds": _since(began)}
        if result.structured is not None:
            fields["structured"] = result.structured
        if result.fault is not None:
            fields["fault"] = result.fault
        self._recorder.append("result", id=id, **fields)
        if result.fault == "user":
            raise UserFailed(result.text)
        if result.fault == "infra":
            raise ToolServerError(result.text, tool)
        return result

    async def _result(self, tool: str, arguments: Mapping[str, Any] | str | None) -> ToolResult:
        left = self.budget.seconds_left
        timeout = self._call_seconds if left is None else min(self._call_seconds, left)
        try:
            return await self._tools.call(self.env, tool, arguments, timeout)
        except ToolTimeoutError as error:
            if left is not None and timeout >= left:
                raise self.budget.out_of_time() from error
            return ToolResult([{"type": "text", "text": error.message}], is_error=True, fault="timeout")

    async def ask(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None, **sampling: Any
    ) -> Reply:
        """Ask the model and return its answer. Its failures are retried within the episode's deadline.

        Args:
            messages: The conversation so far, in the format of OpenAI's Chat Completions.
            tools: Tools that the model may call; default: those of the environment.
            **sampling: Sampling parameters, over those of the rollout.

        Raises:
            BudgetSpent: tokens, cost or seconds are used up.
            AEnvError: there is no answer; let it pass, and the runner finds the outcome.
        """
        self._check_open()
        if self.model is None:
            raise AgentLacks(
                "the agent asks a model, and the rollout has none", {"hint": "Give it one: model, --model."}
            )
        self.budget.check()
        self._record_messages(messages)
        options = {**self.sampling, **sampling}
        left = self.budget.tokens_left
        if left is not None:
            options["max_tokens"] = min(left, options.get("max_tokens") or left)
        began = time.monotonic()
        offered = self.tools if tools is None else tools
        request = ModelRequest(messages, offered, options, self.budget.seconds_left, self._on_model_failure)
        try:
            reply = await self.model.complete(request)
        except DeadlineExceeded as error:
            raise self.budget.out_of_time() from error
        reply.seconds = _since(began)
        self._record_reply(reply)
        self.count(reply)
        return reply

    def count(self, reply: Reply) -> None:
        """Count an answer of the model: tokens, cost and progress. `ask` does so.

        Raises:
            AgentLacks: the episode has a budget for cost, and nobody says what the answer cost.
        """
        if self._price is not None and not reply.cost:
            reply.cost = self._price.of(reply)
        if self._price is None and not reply.cost and self.budget.limits.cost is not None:
            message = "the episode has a limit for its cost, and the model's server does not report any"
            raise AgentLacks(message, {"hint": "Give the price of its tokens (price, --price); 0/0 if it is free."})
        self.budget.use(reply.input_tokens, reply.output_tokens, reply.cost)
        self._on_reply(reply)
        if not reply.tool_calls:
            self.final_text = reply.text

    @property
    def recorder(self) -> Recorder:
        """Receiver of the events of the episode, for agents that talk to a model by themselves."""
        return self._recorder

    def note(self, text: str = "", **data: Any) -> None:
        """Record a remark in the trajectory."""
        self._recorder.append("note", **({"text": text} if text else {}), **({"data": data} if data else {}))

    def end(self) -> None:
        """Refuse further calls. The runner calls this before it grades."""
        self._ended = True

    async def solution(self) -> list[TaskStep]:
        """Return the known solution of the task, for agents that replay it; empty if there is none."""
        return await self._solution()

    def _check_open(self) -> None:
        if self._ended:
            raise InvalidUse("the episode has ended; its agent may call nothing more")

    def _record_messages(self, messages: Sequence[Message]) -> None:
        """Record the messages that were not sent in the previous request; note where an agent has changed those."""
        keys = [_key(message) for message in messages]
        same = 0
        while same < min(len(keys), len(self._said)) and keys[same] == self._said[same]:
            same += 1
        if same < len(self._said):
            self._recorder.append("note", data={"context_kept": same})
        for message in messages[same:]:
            self._recorder.append("message", **message)
        self._said = keys

    def _record_reply(self, reply: Reply) -> None:
        fields: dict[str, Any] = {
            "usage": {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens},
            "model": reply.model,
            "finish_reason": reply.finish_reason,
            "prompt_token_ids": reply.prompt_token_ids,
            "token_ids": reply.token_ids,
            "logprobs": reply.logprobs,
            "seconds": reply.seconds,
            "first_token_seconds": reply.first_token_seconds,
        }
        self._recorder.append(
            "message", **reply.message, **{name: value for name, value in fields.items() if value is not None}
        )
        self._said.append(_key(reply.message))


def _readable(arguments: Mapping[str, Any] | str | None) -> Any:
    """Return a model's arguments as a dict, or as its text if that is no JSON object."""
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments or "{}")
        except ValueError:
            return arguments
        return parsed if isinstance(parsed, dict) else arguments
    return dict(arguments or {})


def _key(message: Message) -> str:
    return json.dumps(message, sort_keys=True, default=str)


def _since(began: float) -> float:
    return round(time.monotonic() - began, 6)
