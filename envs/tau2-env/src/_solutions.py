"""What solves a task, as the calls that an agent would make, and what nearly does."""

import re
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
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
    """A call, and whether the task is spoiled without it."""

    tool: str
    arguments: dict[str, Any]
    matters: bool = False


def solution(task: Task, environment: Any, solo: bool) -> list[Step]:
    """The task's calls, a word to the user where they have something to do, and what they are to be told."""
    steps: list[Step] = []
    asked = False
    counted = _counted(task, environment)
    for action in _actions(task):
        theirs = action.requestor == "user" and not solo
        if not theirs:
            steps.append(Step(action.name, action.arguments, action.name in counted))
        elif not asked:
            steps.append(_said(ASKED))
        if theirs:
            steps[-1].matters |= action.name in counted
        asked = theirs
    criteria = task.evaluation_criteria
    to_tell = [*((criteria.communicate_info if criteria else None) or []), *map(_as_told, assertions(task))]
    if to_tell:
        steps.append(_said("; ".join(to_tell)))
    return [*steps, Step("done", {})]


def spoiled(steps: list[Step], environment: Any, others: Iterable[Task]) -> list[Step]:
    """The same without the last step that matters. Where there is none, since nothing is to be changed, something is:
    what one of the ``others`` asks for.

    Raises:
        ValueError: nothing can be changed.
    """
    for number in reversed(range(len(steps))):
        if steps[number].matters:
            silent = steps[number].tool == MESSAGE  # else the next word would have the user do it all the same
            later = [step for step in steps[number + 1 :] if not (silent and step.tool == MESSAGE)]
            return [*steps[:number], *later]
    for other in others:
        for action in _actions(other):
            if action.requestor == "assistant" and _changes(environment, action):
                return [*steps[:-1], Step(action.name, action.arguments), steps[-1]]
    raise ValueError("nothing wrong can be done in this task")


def _actions(task: Task) -> list[Any]:
    return list((task.evaluation_criteria.actions if task.evaluation_criteria else None) or [])


def _counted(task: Task, environment: Any) -> set[str]:
    """The tools whose use decides: those that change something and, where calls themselves are graded, those that pass
    the user on to somebody else.
    """
    kinds = {**(get_tool_types(environment.user_tools) if environment.user_tools else {})}
    kinds |= get_tool_types(environment.tools)
    deciding = {ToolType.WRITE}
    if task.evaluation_criteria and RewardType.ACTION in task.evaluation_criteria.reward_basis:
        deciding.add(ToolType.GENERIC)
    return {name for name, kind in kinds.items() if kind in deciding}


def _changes(environment: Any, action: Any) -> bool:
    """Whether it would do something here."""
    if get_tool_types(environment.tools).get(action.name) is not ToolType.WRITE:
        return False
    tried = deepcopy(environment)
    before = tried.get_db_hash()
    call = ToolCall(id="tried", name=action.name, arguments=action.arguments, requestor=action.requestor)
    return not tried.get_response(call).error and tried.get_db_hash() != before


def _as_told(assertion: str) -> str:
    """What the agent should tell, told."""
    return _DUTY.sub("", assertion)


def _said(text: str) -> Step:
    return Step(MESSAGE, {"message": text})
