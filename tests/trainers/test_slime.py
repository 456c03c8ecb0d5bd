"""The generate function for slime, with slime's own Sample and HTTP code; a script stands for SGLang.

slime is not in a package index: these tests need its source on the path.
"""

from __future__ import annotations

import asyncio
import json
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.tiny_model import call, tokenizer
from tests.trainers.treasure import TREASURE, losing_instances, outcomes

rollout = pytest.importorskip(
    "slime.rollout.sglang_rollout", reason="needs the source of slime on the path", exc_type=ImportError
)

from slime.utils import http_utils  # noqa: E402
from slime.utils.types import Sample  # noqa: E402

from aenv.adapters.trainers.episodes import EpisodeFailed  # noqa: E402
from aenv.adapters.trainers.slime import environment_generate  # noqa: E402


@contextmanager
def sglang(*texts: str) -> Iterator[tuple[Namespace, list[str]]]:
    """Serve answers by a script as SGLang does, and yield slime's arguments and the prompts that came."""
    words, left, prompts = tokenizer(), list(texts), []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            prompts.append(words.decode(body["input_ids"]))
            text = left.pop(0) + "<|im_end|>"
            tokens = words.encode(text, add_special_tokens=False)
            about = {
                "finish_reason": {"type": "stop"},
                "output_token_logprobs": [[-0.5, token, None] for token in tokens],
            }
            data = json.dumps({"text": text, "meta_info": about}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *given: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield Namespace(sglang_router_ip="127.0.0.1", sglang_router_port=server.server_port, ci_test=False), prompts
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def generate(args: Namespace, store: Path, monkeypatch: pytest.MonkeyPatch, task: str) -> Any:
    monkeypatch.setattr(rollout, "GenerateState", lambda args: Namespace(tokenizer=tokenizer()))
    made = environment_generate(TREASURE, store=str(store))

    async def main() -> Any:
        import httpx

        async with httpx.AsyncClient() as client:
            monkeypatch.setattr(http_utils, "_http_client", client)
            monkeypatch.setattr(http_utils, "_distributed_post_enabled", False, raising=False)
            return await made(args, Sample(metadata={"task_id": task}), {"max_new_tokens": 4096, "temperature": 1.0})

    return asyncio.run(main())


def test_a_sample_has_tokens_mask_log_probabilities_and_reward(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sglang(call("right"), "I am there.") as (args, prompts):
        sample = generate(args, store, monkeypatch, "right")
    assert (sample.status, sample.reward) == (Sample.Status.COMPLETED, 1.0)
    assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length
    words = tokenizer()
    pairs = list(zip(sample.tokens[-sample.response_length :], sample.loss_mask, strict=True))
    assert words.decode([token for token, own in pairs if own]) == f"{call('right')}<|im_end|>I am there.<|im_end|>"
    assert '"place":6' in words.decode([token for token, own in pairs if not own])
    assert "right end" in prompts[0]
    assert prompts[1] == words.decode(sample.tokens[: len(words.encode(prompts[1], add_special_tokens=False))])
    assert outcomes(store) == [("right", "ok", 1.0)]


def test_a_lost_instance_is_tried_again_and_then_raises(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sglang(*[call("left")] * 3) as (args, _), losing_instances(), pytest.raises(EpisodeFailed):
        generate(args, store, monkeypatch, "left")
    assert [outcome for _, outcome, _ in outcomes(store)] == ["infra"] * 3
