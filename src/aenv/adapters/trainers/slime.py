"""A generate function for slime (``--custom-generate-function-path``): a tool loop in an environment.

slime is not a package of an index, so nothing of it is imported before the first call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from aenv.adapters.trainers.episodes import (
    RETRIES,
    EpisodeFailed,
    OpenEpisode,
    at_home,
    score_of,
    shared_source,
)
from aenv.adapters.trainers.text_calls import calls_in
from aenv.errors import AEnvError

Generate = Callable[[Any, Any, dict[str, Any]], Awaitable[Any]]


def environment_generate(environment: str = "", *, max_turns: int = 32, **options: Any) -> Generate:
    """Return a generate function for slime, whose samples are episodes of an environment.

    ``sample.metadata["task_id"]`` names the task; without it, one is chosen. Tokens of tools have a loss mask of 0. An
    episode that fails for infra reasons is run again in a new instance; one without a reward raises `EpisodeFailed`.

    Args:
        environment: ``name``, ``name@version``, or the path of a project on this machine.
        max_turns: Maximum number of the model's answers.
        **options: Other arguments of `EpisodeSource`.

    Example:
        ```python
        # my_rollout.py, for --custom-generate-function-path my_rollout.generate
        generate = environment_generate("tau2-env@1.0.0")
        ```
    """
    given = {"environment": environment, **options}

    async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        state = import_module("slime.rollout.sglang_rollout").GenerateState(args)
        post = import_module("slime.utils.http_utils").post
        url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"

        async def ask(tokens: list[int], left: int) -> dict[str, Any]:
            limited = {**sampling_params, "max_new_tokens": left}
            found: dict[str, Any] = await post(
                url, {"input_ids": tokens, "sampling_params": limited, "return_logprob": True}
            )
            return found

        for attempt in range(RETRIES + 1):
            try:
                return await _play(args, sample, state.tokenizer, ask, sampling_params["max_new_tokens"])
            except EpisodeFailed as error:
                if error.fault != "infra" or attempt == RETRIES:
                    raise
                _forget(sample)
        raise AssertionError("unreachable")

    async def _play(args: Any, sample: Any, tokenizer: Any, ask: Any, budget: int) -> Any:
        wanted = (sample.metadata or {}).get("task_id")
        episode = await at_home(shared_source(given).open(None if wanted is None else str(wanted)))
        try:
            await _converse(args, sample, tokenizer, ask, budget, episode, max_turns)
            result = await at_home(episode.finish())
        except BaseException:
            await at_home(episode.cancel())
            raise
        sample.metadata = {**(sample.metadata or {}), "aenv_episode": result.episode}
        if sample.status != type(sample).Status.ABORTED:  # slime generates those again
            sample.reward = score_of(result)
        return sample

    return generate


async def _converse(
    args: Any, sample: Any, tokenizer: Any, ask: Any, budget: int, episode: OpenEpisode, max_turns: int
) -> None:
    """Let the model call tools until it answers without a call, or its tokens are used up."""
    status = type(sample).Status
    messages = _messages(sample.prompt, episode)
    sample.tokens = tokenizer.apply_chat_template(
        messages, tools=episode.tools, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    for _ in range(max_turns):
        output = await ask(sample.tokens, budget - sample.response_length)
        about, text = output["meta_info"], output["text"]
        pairs = about.get("output_token_logprobs") or []
        sample.append_response_tokens(
            args,
            tokens=[pair[1] for pair in pairs],
            log_probs=[pair[0] for pair in pairs],
            trainable=True,
            meta_info=about,
            text=text,
        )
        reason = about["finish_reason"]["type"]
        wanted = calls_in(text)
        if reason == "abort":
            sample.status = status.ABORTED
            return
        if reason == "length" or not wanted or sample.response_length >= budget:
            sample.status = status.TRUNCATED if reason == "length" else status.COMPLETED
            return
        said = [*messages, {"role": "assistant", "content": text.removesuffix(tokenizer.eos_token or "")}]
        try:
            answers = [{"role": "tool", "content": (await at_home(episode.call(*call))).text} for call in wanted]
        except EpisodeFailed:
            raise
        except AEnvError:  # a budget is used up, or the agent has ended its own instance
            sample.status = status.COMPLETED
            return
        following = _following(tokenizer, said, answers, episode)
        sample.append_response_tokens(
            args, tokens=tokenizer.encode(following, add_special_tokens=False), trainable=False, text=following
        )
        messages = [*said, *answers]
        if sample.response_length >= budget:
            break
    sample.status = status.TRUNCATED


def _following(tokenizer: Any, said: list[Any], answers: list[Any], episode: OpenEpisode) -> str:
    """Return the text of tool results, as the chat template writes it after what the model has said."""
    before: str = tokenizer.apply_chat_template(said, tools=episode.tools, tokenize=False)
    after: str = tokenizer.apply_chat_template(
        [*said, *answers], tools=episode.tools, add_generation_prompt=True, tokenize=False
    )
    return after[len(before) :] if after.startswith(before) else after[after.rindex(answers[0]["content"]) :]


def _messages(prompt: Any, episode: OpenEpisode) -> list[dict[str, Any]]:
    if isinstance(prompt, list) and any(message.get("content") for message in prompt):
        return list(prompt)
    return [{"role": "user", "content": prompt if isinstance(prompt, str) and prompt else episode.instruction}]


def _forget(sample: Any) -> None:
    """Remove what a failed attempt has put into the sample."""
    sample.tokens, sample.response, sample.response_length = [], "", 0
    sample.loss_mask = sample.rollout_log_probs = None
    sample.status = type(sample).Status.PENDING
