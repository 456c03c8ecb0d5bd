"""Models behind HTTP APIs: each API's format, streams, retries, and what refused requests and bad answers become."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aenv.errors import UsageError
from aenv.http.client import DeadlineExceeded
from aenv.rollout import ModelEndpoint, ModelRefused, ModelRequest, ModelUnavailable, Reply, ScriptedModel
from aenv.rollout import endpoint as endpoints
from aenv.rollout.endpoint import find_model
from aenv.rollout.model import ContextExceeded, ModelUnreachable
from aenv.tracing import waits
from tests.certificates import self_signed
from tests.conftest import run
from tests.rollout.model_server import Answer, ModelServer, as_events, as_json, chat, model_server

TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}},
}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Add 1 and 2."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
    },
    {"role": "tool", "tool_call_id": "c0", "content": "3"},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]},
]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "FIRST_PAUSE", 0.0)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def ask(
    answer: Callable[[dict[str, Any], int], Answer],
    messages: Any = TALK,
    *,
    timeout: float | None = 30,
    sampling: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Reply, ModelServer, list[str]]:
    """Ask a model once; return its reply, the server, and the failures that were retried."""
    failures: list[str] = []

    async def main() -> tuple[Reply, ModelServer, list[str]]:
        async with model_server(answer) as server:
            url = server.url.removesuffix("/v1") if options.get("api") == "anthropic" else server.url
            model = ModelEndpoint("m", url, **{"key": "secret-key", "stream": False, **options})
            try:
                request = ModelRequest(messages, [TOOL], sampling or {}, timeout, failures.append)
                return await model.complete(request), server, failures
            finally:
                model.close()

    found: tuple[Reply, ModelServer, list[str]] = run(main())
    return found


def test_chat_completions_get_and_give_messages() -> None:
    reply, server, _ = ask(lambda body, number: chat("hi", ("add", {"a": 1})), sampling={"temperature": 0.5})
    assert server.paths == ["/v1/chat/completions"]
    assert server.headers[0]["authorization"] == "Bearer secret-key"
    assert (server.asked[0]["messages"], server.asked[0]["tools"]) == (TALK, [TOOL])
    assert server.asked[0]["temperature"] == 0.5
    assert (reply.text, reply.input_tokens, reply.output_tokens, reply.model) == ("hi", 10, 5, "m-1")
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("add", '{"a": 1}')]


def test_a_stream_of_chat_completions_is_put_together() -> None:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": "Let "},
        {"content": "me."},
        {"tool_calls": [{"index": 0, "id": "c0", "function": {"name": "add", "arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
        {"tool_calls": [{"index": 1, "id": "c1", "function": {"name": "sub", "arguments": "{}"}}]},
    ]
    logprobs = {"content": [{"token": "a", "logprob": -0.25}]}
    events: list[dict[str, Any]] = [{"choices": [{"delta": delta, "token_ids": [7]}]} for delta in deltas]
    events[0]["choices"][0]["logprobs"] = logprobs
    events.append({"choices": [{"delta": {}, "finish_reason": "tool_calls"}], "prompt_token_ids": [1, 2]})
    events.append({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}})
    reply, server, _ = ask(lambda body, number: as_events(events), stream=True)
    assert server.asked[0]["stream_options"] == {"include_usage": True}
    assert reply.text == "Let me."
    assert [(call.id, call.name, call.arguments) for call in reply.tool_calls] == [
        ("c0", "add", '{"a": 1}'), ("c1", "sub", "{}"),
    ]  # fmt: skip
    assert (reply.token_ids, reply.prompt_token_ids, reply.logprobs) == ([7] * 5, [1, 2], [-0.25])
    assert (reply.input_tokens, reply.output_tokens, reply.finish_reason) == (3, 4, "tool_calls")


def test_a_stream_may_contain_characters_that_end_a_line_elsewhere() -> None:
    event = {"choices": [{"delta": {"role": "assistant", "content": "a\u2028b\u0085c"}, "finish_reason": "stop"}]}
    body = f"data: {json.dumps(event, ensure_ascii=False)}\r\n\r\ndata: [DONE]\r\n\r\n".encode()
    reply, _, failures = ask(lambda body_, number: Answer(body, content_type="text/event-stream"), stream=True)
    assert (reply.text, failures) == ("a\u2028b\u0085c", [])


RESPONSE = {
    "model": "m-1",
    "status": "completed",
    "output": [
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
    ],
    "usage": {"input_tokens": 8, "output_tokens": 2},
}


@pytest.mark.parametrize("stream", [False, True])
def test_the_responses_api_gets_and_gives_messages(stream: bool) -> None:
    events = [{"type": "response.created"}, {"type": "response.completed", "response": RESPONSE}]
    made = as_events(events, done=False) if stream else as_json(RESPONSE)
    reply, server, _ = ask(lambda body, number: made, api="responses", stream=stream, sampling={"max_tokens": 9})
    sent = server.asked[0]
    assert (sent["instructions"], sent["max_output_tokens"], sent["store"]) == ("Be brief.", 9, False)
    assert [item.get("type") or item["role"] for item in sent["input"]] == [
        "user", "function_call", "function_call_output", "user",
    ]  # fmt: skip
    assert sent["tools"][0]["name"] == "add"
    assert (reply.text, [call.id for call in reply.tool_calls], reply.output_tokens) == ("hi", ["c1"], 2)
    _, server, _ = ask(lambda body, number: as_json(RESPONSE), [*TALK[:2], reply.message], api="responses")
    assert server.asked[0]["input"][1:] == RESPONSE["output"]  # as it came, reasoning included


MESSAGE = {
    "model": "m-1",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "hi"},
        {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
    ],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 6, "output_tokens": 3, "cache_read_input_tokens": 4},
}
MESSAGE_EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {"model": "m-1", "usage": {"input_tokens": 6, "cache_read_input_tokens": 4}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "hi"}},
    {"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "t1", "name": "add"}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"a": 1}'}},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_messages_get_and_give_messages(stream: bool) -> None:
    made = as_events(MESSAGE_EVENTS, done=False) if stream else as_json(MESSAGE)
    reply, server, _ = ask(lambda body, number: made, api="anthropic", stream=stream)
    assert server.paths == ["/v1/messages"]
    assert server.headers[0]["x-api-key"] == "secret-key"
    sent = server.asked[0]
    assert (sent["system"], sent["tools"][0]["name"]) == ("Be brief.", "add")
    assert [turn["role"] for turn in sent["messages"]] == ["user", "assistant", "user"]
    assert [block["type"] for block in sent["messages"][2]["content"]] == ["tool_result", "image"]
    assert (reply.text, reply.input_tokens, reply.output_tokens) == ("hi", 10, 3)
    assert [(call.id, json.loads(call.arguments)) for call in reply.tool_calls] == [("t1", {"a": 1})]
    _, server, _ = ask(lambda body, number: as_json(MESSAGE), [*TALK[:2], reply.message], api="anthropic")
    assert server.asked[0]["messages"][1]["content"] == MESSAGE["content"]  # as it came, thinking included


BAD_ONCE = {
    "429": lambda: as_json({"error": {"message": "slow down"}}, 429, retry_after="0"),
    "500": lambda: as_json({"error": "oops"}, 500),
    "529": lambda: as_json({"type": "error"}, 529),
    "invalid JSON": lambda: Answer(b'{"choices": [{"mess'),
    "something else": lambda: as_json({"object": "list"}),
    "not an object": lambda: as_json([1]),
    "cut body": lambda: Answer(b"x" * 1000, cut=True),
    "cut stream": lambda: as_events([{"choices": [{"delta": {"content": "Let me th"}}]}], done=False),
    "error in a stream": lambda: as_events([{"error": {"message": "overloaded"}}]),
}


@pytest.mark.parametrize("failure", BAD_ONCE)
def test_a_failure_of_the_server_is_retried(failure: str) -> None:
    reply, server, failures = ask(lambda body, number: chat("hi") if number else BAD_ONCE[failure]())
    assert (reply.text, len(server.asked), len(failures)) == ("hi", 2, 1)
    if failure in ("429", "500"):
        assert failures == [failure]


@pytest.mark.parametrize("failure", BAD_ONCE)
def test_a_failure_that_stays_is_not_the_agents(failure: str) -> None:
    with pytest.raises(ModelUnavailable, match="no answer after 2 retries") as caught:
        ask(lambda body, number: BAD_ONCE[failure](), retries=2)
    assert caught.value.fault == "infra"


def test_no_server_at_all_is_not_the_agents_failure() -> None:
    async def main() -> None:
        model = ModelEndpoint("m", "http://127.0.0.1:9/v1", retries=1)
        with pytest.raises(ModelUnavailable, match="cannot reach"):
            await model.complete(ModelRequest(TALK))

    run(main())


def test_waiting_for_a_server_that_cannot_be_reached_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waits, "FIRST", 0.0)
    caplog.set_level("INFO", "aenv.waits")

    async def main() -> None:
        model = ModelEndpoint("nobody-serves-it", "http://127.0.0.1:9/v1", retries=1)
        with pytest.raises(ModelUnavailable):
            await model.complete(ModelRequest(TALK))

    run(main())
    assert "waiting for the model nobody-serves-it: cannot reach http://127.0.0.1:9" in caplog.text


def test_waiting_for_a_busy_server_ends_before_the_deadline_and_is_not_the_agents_failure() -> None:
    with pytest.raises(ModelUnavailable, match="before the deadline"):
        ask(lambda body, number: as_json({"error": "full"}, 429, retry_after="50"), timeout=5)


def test_a_slow_model_uses_up_the_deadline() -> None:
    with pytest.raises(DeadlineExceeded):
        ask(lambda body, number: Answer(b"", never=True), timeout=0.1)


def test_a_request_without_an_answer_is_retried_while_there_is_time() -> None:
    reply, _, failures = ask(
        lambda body, number: chat("hi") if number else Answer(b"", never=True), request_seconds=0.1, timeout=60
    )
    assert reply.text == "hi"
    assert failures  # more than one on a busy machine


def test_the_time_to_the_first_token_of_a_stream_is_told() -> None:
    events = [{"model": "m-1", "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}]
    reply, _, _ = ask(lambda body, number: as_events(events), stream=True)
    assert reply.text == "hi"
    assert reply.first_token_seconds is not None
    assert ask(lambda body, number: chat("hi"))[0].first_token_seconds is None


def test_an_answer_without_end_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MAX_ANSWER", 1000)
    with pytest.raises(ModelUnavailable, match="over the limit"):
        ask(lambda body, number: chat("x" * 2000), retries=1)


def test_an_address_at_which_nothing_ever_listened_is_reported_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "PATIENCE", 0.0)
    with pytest.raises(ModelUnreachable, match=r"no model answers at http://127\.0\.0\.1:1/v1"):
        run(ModelEndpoint("m", "http://127.0.0.1:1/v1", key="").complete(ModelRequest(TALK)))


def test_a_server_that_has_answered_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "PATIENCE", 0.0)
    failures: list[str] = []

    async def main() -> None:
        async with model_server(lambda body, number: chat("hi")) as server:
            model = ModelEndpoint("m", server.url, key="", stream=False)
            assert (await model.complete(ModelRequest(TALK))).text == "hi"
        with pytest.raises(ModelUnavailable, match="after 8 retries"):
            await model.complete(ModelRequest(TALK, on_failure=failures.append))
        model.close()

    run(main())
    assert len(failures) == 8


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refused_request_is_the_callers_mistake_and_does_not_repeat_the_key(status: int) -> None:
    with pytest.raises(ModelRefused) as caught:
        ask(lambda body, number: as_json({"error": {"message": "bad key secret-key", "code": "no"}}, status))
    assert caught.value.fault == "caller"
    assert "bad key *** (no)" in caught.value.message


def test_a_conversation_that_is_too_long_is_told_apart() -> None:
    said = {"error": {"message": "This model's maximum context length is 10 tokens", "code": "context_length_exceeded"}}
    with pytest.raises(ContextExceeded):
        ask(lambda body, number: as_json(said, 400))


def test_https_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = self_signed(tmp_path)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(cert, key)

    async def asked() -> Reply:
        async with model_server(lambda body, number: chat("hi"), served) as server:
            model = ModelEndpoint("m", server.url, retries=0)
            try:
                return await model.complete(ModelRequest(TALK))
            finally:
                model.close()
                await asyncio.sleep(0)

    with pytest.raises(ModelUnavailable, match="certificate"):
        run(asked())
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    assert run(asked()).text == "hi"


def test_models_are_found_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    plain, named, other = find_model("m"), find_model("responses:m@http://h/v1"), find_model("anthropic:m")
    assert isinstance(plain, ModelEndpoint)
    assert isinstance(named, ModelEndpoint)
    assert isinstance(other, ModelEndpoint)
    assert (plain.name, plain.url, plain.api) == ("m", "http://localhost:1/v1", "chat")
    assert (named.name, named.url, named.api) == ("m", "http://h/v1", "responses")
    assert (other.url, other.key) == ("https://api.anthropic.com", "k")
    (tmp_path / "model.py").write_text("def answer(messages, tools):\n    return 'hi'\n")
    assert isinstance(find_model(f"{tmp_path}/model.py:answer"), ScriptedModel)
    for wrong in ("chat:", f"{tmp_path}/model.py:other", f"{tmp_path}/none.py:answer", "chat:m@ftp://x"):
        with pytest.raises(UsageError):
            find_model(wrong)
