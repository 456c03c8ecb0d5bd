"""TAU2-Bench as an environment: the tools of one task's domain, its functions and its reward.

Which task is played, and with which user, is said by variables: TAU2_DOMAIN, TAU2_TASK_ID, TAU2_MAX_STEPS,
TAU2_SOLO_MODE; TAU2_USER_LLM, TAU2_USER_LLM_API_BASE and TAU2_USER_LLM_API_KEY for the user's model; the same with
JUDGE for the model that judges what was said.
"""

import contextlib
import inspect
import os
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import WithJsonSchema
from tau2_source import find

from aenv import register_function, register_reward, register_tool

if TYPE_CHECKING:
    from _episode import Episode, Loaded

PREVIEW = 500
problem = find()
# What follows is here so that it is imported once, for all instances of all tasks.
with contextlib.suppress(ModuleNotFoundError):
    import tau2_bench_data  # noqa: F401
with contextlib.suppress(ModuleNotFoundError):
    import multiprocessing.context  # noqa: F401

    import litellm  # noqa: F401
    import pandas  # noqa: F401
    import tau2.evaluator.evaluator
    import tau2.orchestrator.orchestrator  # noqa: F401


def _setting(name: str, default: str = "") -> str:
    return os.environ.get(name) or default


def _load() -> "Loaded":
    from _episode import Loaded
    from _models import Judge

    solo = _setting("TAU2_SOLO_MODE").lower()
    if solo not in ("", "true", "false", "1", "0", "yes", "no"):
        raise ValueError(f"TAU2_SOLO_MODE: say true or false, not {solo!r}")
    user = {"llm": _setting("TAU2_USER_LLM"), "llm_args": _endpoint("USER")} if _setting("TAU2_USER_LLM") else None
    return Loaded(
        _setting("TAU2_DOMAIN", "telecom"),
        _setting("TAU2_TASK_ID"),
        None if not solo else solo in ("true", "1", "yes"),
        int(_setting("TAU2_MAX_STEPS", "50")),
        user,
        Judge(_setting("TAU2_JUDGE_LLM"), {**_endpoint("USER"), **_endpoint("JUDGE")}),
    )


def _endpoint(whose: str) -> dict[str, str]:
    said = {name: _setting(f"TAU2_{whose}_LLM_{name.upper()}") for name in ("api_base", "api_key")}
    return {name: value for name, value in said.items() if value}


loaded = _load() if problem is None else None


@cache
def _episode() -> "Episode":
    return _ready().begin()


def _ready() -> "Loaded":
    if loaded is None:
        raise RuntimeError(problem)
    return loaded


def _after(observation: str) -> dict[str, Any]:
    episode = _episode()
    return {"observation": observation, "reward": episode.graded(), "done": episode.done, "step": episode.steps}


def _publish(tool: Any) -> None:
    """Offer a tool of the domain. Its arguments are the benchmark's to check: mistakes in them are part of the game."""
    schema = tool.params.model_json_schema()
    definitions = schema.get("$defs", {})
    required = schema.get("required", [])
    parameters, annotations = [], {}
    for name, described in schema.get("properties", {}).items():
        annotations[name] = Annotated[Any, WithJsonSchema(_inlined(described, definitions))]
        default = inspect.Parameter.empty if name in required else described.get("default")
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotations[name])
        )

    def call(**arguments: Any) -> dict[str, Any]:
        return _after(_episode().call(tool.name, arguments))

    call.__name__ = call.__qualname__ = tool.name
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = annotations
    register_tool(name=tool.name, description=tool.openai_schema["function"]["description"])(call)


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
        return {name: _inlined(value, definitions) for name, value in schema.items()}
    return [_inlined(value, definitions) for value in schema] if isinstance(schema, list) else schema


for _tool in loaded.tools if loaded is not None else ():
    _publish(_tool)


@register_tool
@register_function
def tau2_get_task_info() -> dict[str, Any]:
    """Tell which task this is, and how it is played."""
    task = _ready()
    return {
        "task_id": task.task.id,
        "domain": task.domain,
        "ticket": task.task.ticket,
        "tools": [tool.name for tool in task.tools],
        "policy_preview": task.policy[:PREVIEW],
        "max_steps": task.max_steps,
        "solo_mode": task.solo,
    }


@register_function
def tau2_get_system_prompt() -> str:
    """Give the instructions for the agent: how to act, the policy, and the ticket where there is no user."""
    task = _ready()
    act = (
        "You are a customer service agent. Follow the policy below in everything you do. There is nobody to talk to: "
        "solve the ticket with tools alone, and call `done` when it is solved."
        if task.solo
        else "You are a customer service agent. Follow the policy below in everything you do. In each turn either say "
        "something to the user or use one tool, not both."
    )
    ticket = f"\n\n<ticket>\n{task.task.ticket}\n</ticket>" if task.solo else ""
    return f"<instructions>\n{act}\n</instructions>\n\n<policy>\n{task.policy}\n</policy>{ticket}"


@register_function
def tau2_get_available_tools() -> list[dict[str, Any]]:
    """Describe the tools of this task's domain, as the OpenAI API takes them."""
    return [tool.openai_schema for tool in _ready().tools]


@register_function
def tau2_list_tasks(domain: str = "", split: str = "") -> list[str]:
    """The names that TAU2_TASK_ID can have.

    Args:
        domain: Of which domain; this instance's unless told.
        split: Of which part of its tasks; the benchmark's own choice unless told.
    """
    _ready()
    from _episode import task_names

    return task_names(domain or _setting("TAU2_DOMAIN", "telecom"), split)


@register_function
def tau2_get_solution(wrong: bool = False) -> list[dict[str, Any]]:
    """Tell a program what solves the task: the calls that an agent would make.

    Args:
        wrong: Stop before the last of them that matters; or, where nothing is to be changed, change something.
    """
    return _ready().solution(wrong)


@register_function
def tau2_get_status() -> dict[str, Any]:
    """Tell how far the episode is. The user's model and its key are nobody's business."""
    episode, task = _episode(), _ready()
    episode.open()
    rewards = episode.rewards()
    return {
        "step": episode.steps,
        "max_steps": task.max_steps,
        "done": episode.done,
        "last_observation": episode.last,
        "rewards": rewards,
        "total_reward": sum(rewards),
        "environment": {"domain": task.domain, "task_id": task.task.id, "solo_mode": task.solo, "user": _user_kind()},
    }


@register_tool
@register_function
def tau2_send_message(message: str) -> dict[str, Any]:
    """Say something to the user.

    Args:
        message: The words.
    """
    episode = _episode()
    # To go on talking after the end does no harm; loops do so where the agent has used the tool that ends it.
    seen = _after(episode.last if episode.done else episode.speak(message))
    return {name: seen[name] for name in ("observation", "reward", "done")}


@register_tool
def done() -> dict[str, Any]:
    """Say that the task is done. Nothing can be done after it."""
    _episode().finish()
    return _after(_episode().last)


@register_function
def tau2_done() -> dict[str, Any]:
    """End the episode."""
    episode = _episode()
    episode.finish()
    return {
        "done": True,
        "total_reward": episode.graded(),
        "steps": episode.steps,
        "final_observation": episode.last,
    }


@register_reward
def tau2_reward() -> dict[str, Any]:
    """Score the episode with the benchmark's own evaluator, beside what doing nothing at all would score."""
    episode = _episode()
    rewards = episode.rewards()
    return {
        "rewards": rewards,
        "total_reward": sum(rewards),
        "done": episode.done,
        "steps": episode.steps,
        "do_nothing_reward": _do_nothing(),
        "reward_info": episode.reward_info,
    }


@cache
def _do_nothing() -> float | None:
    return _ready().do_nothing()


def _user_kind() -> str:
    task = _ready()
    return "none" if task.solo else "model" if task.user.get("llm") else "scripted"
