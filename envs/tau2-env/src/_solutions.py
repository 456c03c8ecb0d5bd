"""What solves a task, as the calls that an agent would make, and what nearly does."""

import re
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from _models import assertions
from tau2.data_model.message import ToolCall
from tau2.data_model.tasks import RewardType, Task
from tau2.environment.toolkit import ToolType, get_tool_types

MESSAGE = "tau2_send_message"
ASKED = "Please do that."
_DUTY = re.compile(r"^(the )?agent should (tell the user (that )?)?", re.IGNORECASE)


@dataclass
class Step:
    """A call, and what of the task's solution is done by it: in a word to the user, what they do then."""

    tool: str
    arguments: dict[str, Any]
    does: list[Any] = field(default_factory=list)


def solution(task: Task, solo: bool) -> list[Step]:
    """The task's calls, a word to the user where they have something to do, and what they are to be told."""
    steps: list[Step] = []
    asked = False
    for action in _actions(task):
        theirs = action.requestor == "user" and not solo
        if not theirs:
            steps.append(Step(action.name, action.arguments))
        elif not asked:
            steps.append(_said(ASKED))
        steps[-1].does.append(action)
        asked = theirs
    criteria = task.evaluation_criteria
    to_tell = [*((criteria.communicate_info if criteria else None) or []), *map(_as_told, assertions(task))]
    if to_tell:
        steps.append(_said("; ".join(to_tell)))
    return [*steps, Step("done", {})]


def spoiled(steps: list[Step], task: Task, environment: Any, others: Iterable[Task]) -> list[Step]:
    """The same up to the last step that matters, without it. Where there is none, since nothing is to be changed,
    something is: what one of the ``others`` asks for.

    Raises:
        ValueError: nothing can be changed.
    """
    mattering = [number for number, matters in enumerate(_tried(steps, task, environment)) if matters]
    if mattering:
        return [*steps[: mattering[-1]], steps[-1]]
    writing = {name for name, kind in get_tool_types(environment.tools).items() if kind is ToolType.WRITE}
    for other in others:
        for action in _actions(other):
            if action.name in writing and any(_tried([Step("", {}, [action])], task, environment)):
                return [*steps[:-1], Step(action.name, action.arguments), steps[-1]]
    raise ValueError("nothing wrong can be done in this task")


def _actions(task: Task) -> list[Any]:
    return list((task.evaluation_criteria.actions if task.evaluation_criteria else None) or [])


def _tried(steps: Iterable[Step], task: Task, environment: Any) -> Iterator[bool]:
    """Of each step, whether it changes something or, where calls are graded, passes the user on to somebody else.

    It is tried, and not told by the kind of tool: some that can write only look something up.
    """
    tried, start = deepcopy(environment), task.initial_state
    history = (start and start.message_history) or []
    tried.set_state(start and start.initialization_data, start and start.initialization_actions, history)
    kinds = {**(get_tool_types(tried.user_tools) if tried.user_tools else {}), **get_tool_types(tried.tools)}
    calls_count = bool(task.evaluation_criteria and RewardType.ACTION in task.evaluation_criteria.reward_basis)
    state = _state(tried)
    for step in steps:
        matters = False
        for action in step.does:
            who = "assistant" if tried.solo_mode else action.requestor
            tried.get_response(ToolCall(id="tried", name=action.name, arguments=action.arguments, requestor=who))
            if kinds.get(action.name) is ToolType.WRITE:
                before, state = state, _state(tried)
                matters |= state != before
            matters |= calls_count and kinds.get(action.name) is ToolType.GENERIC
        yield matters


def _state(environment: Any) -> tuple[Any, Any]:
    return environment.get_db_hash(), environment.get_user_db_hash()


def _as_told(assertion: str) -> str:
    """What the agent should tell, told."""
    return _DUTY.sub("", assertion)


def _said(text: str) -> Step:
    return Step(MESSAGE, {"message": text})
