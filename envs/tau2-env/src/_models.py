"""The models that an episode may need: one that judges what was said. And their keys, which nobody gets to see."""

import os
from dataclasses import dataclass, field
from typing import Any

import httpx
import litellm
from loguru import logger
from tau2.data_model.tasks import RewardType, Task
from tau2.evaluator import evaluator_nl_assertions
from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation
from tau2.utils import llm_utils

KEYS = ("TAU2_USER_LLM_API_KEY", "TAU2_JUDGE_LLM_API_KEY", "OPENAI_API_KEY")
NONE = "none"
HIDDEN = "***"
litellm.suppress_debug_info = True  # it writes advertisements to stdout
if os.environ.get("HTTP_PROXY"):  # the benchmark's own client was made on import, before there was a proxy
    litellm.client_session = httpx.Client(limits=llm_utils.httpx_limits)


@dataclass(frozen=True)
class Judge:
    """Who says whether assertions in words are met. Without a name, the benchmark's own, if there is a key for it."""

    llm: str = ""
    llm_args: dict[str, Any] = field(default_factory=dict, repr=False)

    def evaluated(self, task: Task, *, frugal: bool, **episode: Any) -> tuple[float, dict[str, Any]]:
        """The reward by the benchmark's own evaluator, and what it is made of.

        ``frugal``: a model is asked only if it could still make a difference.

        Raises:
            RuntimeError: a model would have to judge, and there is none, or it did not.
        """
        words = assertions(task)
        if not words:
            return _evaluate(task, episode)
        if frugal or self.llm == NONE:
            reward, info = _evaluate(_without_words(task), episode)
            if self.llm == NONE or not reward:
                return reward, {**info, "not_judged": words}
        if not self.llm and not os.environ.get("OPENAI_API_KEY"):
            raise RuntimeError(
                f"a model has to judge {len(words)} of this task's assertions; name one with TAU2_JUDGE_LLM, "
                "TAU2_JUDGE_LLM_API_BASE and TAU2_JUDGE_LLM_API_KEY, or set TAU2_JUDGE_LLM=none to do without them"
            )
        if self.llm:
            evaluator_nl_assertions.DEFAULT_LLM_NL_ASSERTIONS = self.llm
            evaluator_nl_assertions.DEFAULT_LLM_NL_ASSERTIONS_ARGS = {"temperature": 0.0, **self.llm_args}
        reward, info = _evaluate(task, episode)
        if len(info["nl_assertions"] or []) != len(words):  # the evaluator would take silence for a yes
            raise RuntimeError(f"the judge spoke of {len(info['nl_assertions'] or [])} of {len(words)} assertions")
        return reward, info


def told(error: Exception) -> str:
    """An error in words that may be shown: services like to repeat the key that they were given."""
    return hidden(f"{type(error).__name__}: {error}")


def hidden(text: str) -> str:
    """The text, without keys."""
    for name in KEYS:
        key = os.environ.get(name)
        if key:
            text = text.replace(key, HIDDEN)
    return text


logger.configure(patcher=lambda record: record.update(message=hidden(record["message"])))


def assertions(task: Task) -> list[str]:
    """Those in words, which only a model can judge, where they count."""
    criteria = task.evaluation_criteria
    if criteria is None or RewardType.NL_ASSERTION not in criteria.reward_basis:
        return []
    return list(criteria.nl_assertions or [])


def _without_words(task: Task) -> Task:
    plain = task.model_copy(deep=True)
    criteria = plain.evaluation_criteria
    assert criteria is not None
    criteria.reward_basis = [basis for basis in criteria.reward_basis if basis is not RewardType.NL_ASSERTION]
    if not criteria.reward_basis:
        raise RuntimeError("this task is graded by a judge alone, and TAU2_JUDGE_LLM=none says that there is none")
    return plain


def _evaluate(task: Task, episode: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    result = evaluate_simulation(task=task, evaluation_type=EvaluationType.ALL, **episode)
    return result.reward, result.model_dump(mode="json")
