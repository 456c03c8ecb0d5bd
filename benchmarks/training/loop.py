"""Train a tiny random model with TRL for some steps, and print the time that its environment takes, as JSON.

`run.py` starts this once for each environment and round, in an environment with TRL, OpenEnv and this repository.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

HERE = Path(__file__).parent
CALL = '<tool_call>\n{"name": "echo_message", "arguments": {"message": "%s"}}\n</tool_call>'
WARM_UP = 2
"""Steps that are not counted: the first ones load and create what later ones keep."""


class BusyClock:
    """Time during which at least one call into the environment runs, whatever thread or event loop it runs in."""

    def __init__(self) -> None:
        self._lock, self._running, self._since = threading.Lock(), 0, 0.0
        self.seconds = 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._running += 1
            if self._running == 1:
                self._since = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._running -= 1
            if not self._running:
                self.seconds += time.perf_counter() - self._since

    def around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method with its time counted; its signature and docstring stay, which TRL reads."""
        if inspect.iscoroutinefunction(method):

            @functools.wraps(method)
            async def timed_async(*given: Any, **named: Any) -> Any:
                with self:
                    return await method(*given, **named)

            return timed_async

        @functools.wraps(method)
        def timed(*given: Any, **named: Any) -> Any:
            with self:
                return method(*given, **named)

        return timed


class StepTimes(TrainerCallback):  # type: ignore[misc]
    """Seconds of each step, and those of them that the environment took."""

    def __init__(self, clock: BusyClock) -> None:
        self._clock, self._began, self._busy = clock, 0.0, 0.0
        self.steps: list[tuple[float, float]] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if not self._began:
            self._began, self._busy = time.perf_counter(), self._clock.seconds

    def on_step_end(self, *_: Any, **__: Any) -> None:
        now, busy = time.perf_counter(), self._clock.seconds
        self.steps.append((now - self._began, busy - self._busy))
        self._began, self._busy = now, busy


def ours(folder: Path, url: str) -> type:
    """An instance of the environment for each episode, in a sandbox, graded and recorded."""
    from aenv.adapters.trainers.trl import environment_class

    return environment_class(str(HERE / "echo"), store=folder / "trajectories")


def openenv(folder: Path, url: str) -> type:
    """A session of a running OpenEnv server for each object; the reward is computed here, as the server's is 0."""
    from openenv.core.mcp_client import MCPToolClient

    class Echo:
        def __init__(self) -> None:
            self._client = MCPToolClient(base_url=url).sync()
            self._client.connect()
            self._last = ""

        def reset(self, **row: Any) -> str:
            self._client.reset()
            self._last = ""
            return "Repeat a message."

        def echo_message(self, message: str) -> str:
            """Repeat a message.

            Args:
                message: The message.
            """
            self._last = str(self._client.call_tool("echo_message", message=message))
            return self._last

        def get_reward(self) -> float:
            return min(1.0, len(self._last) / 10)

    return Echo


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of a few words, two of which are calls, so that a random model makes some."""
    made = Tokenizer(models.WordLevel({"<unk>": 0, "word": 1}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    known = ["<|im_start|>", "<|im_end|>", CALL % "short", CALL % "a long message"]
    made.add_tokens([AddedToken(each, normalized=False) for each in known])
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<unk>", unk_token="<unk>")
    fast.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    return fast


def model(words: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Return a model of 100,000 random weights."""
    config = Qwen3Config(
        vocab_size=len(words), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, head_dim=16, max_position_embeddings=512, eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("environment", choices=("aenv", "openenv"))
    parser.add_argument("--url", default="", help="address of the OpenEnv server")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    torch.manual_seed(1)
    torch.set_num_threads(1)
    clock = BusyClock()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        made: Any = {"aenv": ours, "openenv": openenv}[args.environment](Path(name), args.url)
        calls = {"reset": 0, "echo_message": 0, "get_reward": 0}
        for method in calls:
            setattr(made, method, clock.around(counted(calls, method, getattr(made, method))))
        words, times = tokenizer(), StepTimes(clock)
        trainer = GRPOTrainer(
            model(words), processing_class=words, environment_factory=made, callbacks=[times],
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": ""}], "task_id": "echo"}] * 64),
            args=GRPOConfig(
                output_dir=f"{name}/out", max_steps=args.steps + WARM_UP, learning_rate=0.0, num_generations=16,
                per_device_train_batch_size=args.batch, max_completion_length=24, max_tool_calling_iterations=1,
                beta=0.0, logging_steps=1000, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True,
                seed=1, log_level="error",
            ),
        )  # fmt: skip
        trainer.train()
    counted_steps = times.steps[WARM_UP:]
    seconds, busy = (sum(each[part] for each in counted_steps) for part in (0, 1))
    shown = {
        "step_ms": 1000 * statistics.median(step for step, _ in counted_steps),
        "environment_ms": 1000 * statistics.median(part for _, part in counted_steps),
        "share": busy / seconds,
        "rollouts_per_second": args.batch * len(counted_steps) / seconds,
        "environment_rollouts_per_second": args.batch * len(counted_steps) / busy,
        "calls": calls,
    }
    sys.stdout.write(json.dumps(shown) + "\n")


def counted(calls: dict[str, int], name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method, whose calls are counted: both environments must have as many."""
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def count_async(*given: Any, **named: Any) -> Any:
            calls[name] += 1
            return await method(*given, **named)

        return count_async

    @functools.wraps(method)
    def count(*given: Any, **named: Any) -> Any:
        calls[name] += 1
        return method(*given, **named)

    return count


if __name__ == "__main__":
    main()
