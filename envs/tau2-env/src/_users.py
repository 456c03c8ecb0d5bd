"""Users that need no model."""

from itertools import groupby
from typing import Any

from tau2.data_model.message import ToolCall, UserMessage
from tau2.data_model.tasks import Task
from tau2.user.user_simulator import UserSimulator
from tau2.user.user_simulator_base import STOP

PATIENCE = 30  # answers, then this user hangs up
AGREES = "Yes, please go ahead."


class ScriptedUser(UserSimulator):
    """Says what the matter is, agrees to everything, and does what the task's solution has a user do, step by step.

    For tests, offline runs and comparisons. A score with it says how well an agent acts, not how well it talks.
    """

    def __init__(self, task: Task, tools: Any) -> None:
        super().__init__(tools=tools, instructions=str(task.user_scenario), llm="none")
        # Instructions may tell a user when to say the words that end an episode; this one must not say them first.
        self._opening = str(task.user_scenario.instructions).replace("###", "")
        actions = (task.evaluation_criteria.actions if task.evaluation_criteria else None) or []
        groups = groupby(actions, key=lambda action: action.requestor == "user")
        self._to_do = [list(group) for mine, group in groups if mine]
        self._now: list[Any] = []
        self._answers = 0

    def _generate_next_message(self, message: Any, state: Any) -> UserMessage:
        if not self._now and not isinstance_tool(message):
            if self._answers and self._to_do:
                self._now = self._to_do.pop(0)
            self._answers += 1
        if self._now:
            action = self._now.pop(0)
            call = ToolCall(id=action.action_id, name=action.name, arguments=action.arguments, requestor="user")
            return UserMessage(role="user", content=None, tool_calls=[call])
        if self._answers == 1:
            return UserMessage(role="user", content=self._opening)
        return UserMessage(role="user", content=AGREES if self._answers <= PATIENCE else STOP)


def isinstance_tool(message: Any) -> bool:
    """Whether this is the result of something that the user did."""
    return getattr(message, "role", "") == "tool"
