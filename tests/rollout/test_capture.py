"""The capture proxy: unchanged agents, exact records, budgets, and no key in the agent's hands."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from aenv.errors import AEnvError
from aenv.http.client import ConnectionLost, HttpClient
from aenv.http.url import ServerUrl
from aenv.rollout import Budget, EpisodeResult, ModelEndpoint, Price, TaskLimits, rollout
from aenv.rollout.capture import CaptureProxy, CaptureSession, Upstream
from aenv.rollout.capture import session as capture_session
from aenv.trajectory import TrajectoryStore
from tests.isolation.host import Platform
from tests.rollout.conftest import SHOP
from tests.rollout.controlled_model import ControlledModel, controlled_model

USER = {"role": "user", "content": "How many lakes?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"text": "lakes"}'}}


class Events:
    """Collects events as a recorder does."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []

    def append(self, kind: str, /, **fields: Any) -> int:
        self.all.append({"kind": kind, **fields})
        return len(self.all) - 1

    def messages(self) -> list[dict[str, Any]]:
        return [event for event in self.all if event["kind"] == "message"]


def chat(text: str | None, calls: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {}), "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop", **more}
    usage = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
    return {"id": "r1", "model": "m-1", "choices": [choice], "usage": usage}


def with_proxy(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in an event loop, with a model server and a proxy in front of it."""

    def run(**given: Any) -> None:
        async def main() -> None:
            async with controlled_model() as model, CaptureProxy(Upstream(f"{model.url}/v1", "secret-key")) as proxy:
                await test(model=model, proxy=proxy, **given)

        asyncio.run(main())

    signature = inspect.signature(test)
    given = [each for name, each in signature.parameters.items() if name not in ("model", "proxy")]
    run.__signature__ = signature.replace(parameters=given)  # type: ignore[attr-defined]
    run.__name__ = test.__name__
    return run


async def post(url: str, body: object, headers: list[tuple[str, str]] | None = None) -> tuple[int, bytes]:
    client = HttpClient(ServerUrl.parse(url), headers=headers or [("authorization", "Bearer mine")])
    try:
        answer = await client.request("POST", "", json.dumps(body).encode())
    finally:
        client.close()
    return answer.status, answer.body


async def ask(session: CaptureSession, *messages: object, **more: Any) -> tuple[int, Any]:
    status, body = await post(
        f"{session.openai_url}/chat/completions", {"model": "m", "messages": list(messages), **more}
    )
    return status, json.loads(body)


@with_proxy
async def test_a_request_and_its_response_pass_unchanged(model: ControlledModel, proxy: CaptureProxy) -> None:
    session = proxy.open()
    answer = b'{"id":"x",  "choices" : [] ,"odd":"\\u00e4"}'
    model.answers.append((200, answer))
    body = '{ "messages":[ {"role":"user","content":"ä"} ],"x": 1e3}'.encode()
    client = HttpClient(ServerUrl.parse(session.url))
    got = await client.request("POST", "/v1/chat/completions?a=b", body)
    client.close()
    assert got.body == answer
    assert model.requests[0].body == body
    assert model.requests[0].target == b"/v1/chat/completions?a=b"


@with_proxy
async def test_the_upstream_key_replaces_the_agents_and_is_not_shown_to_it(
    model: ControlledModel, proxy: CaptureProxy
) -> None:
    session = proxy.open()
    model.will_answer(chat("three"))
    await ask(session, USER)
    assert model.requests[0].header(b"authorization") == b"Bearer secret-key"
    assert "secret-key" not in json.dumps(session.variables)


@with_proxy
async def test_a_conversation_is_recorded_message_by_message(model: ControlledModel, proxy: CaptureProxy) -> None:
    events = Events()
    session = proxy.open(events)
    model.will_answer(chat(None, [CALL]))
    model.will_answer(chat("Three."))
    _, first = await ask(session, USER, temperature=0.5)
    reply = {name: value for name, value in first["choices"][0]["message"].items() if value is not None}
    result = {"role": "tool", "tool_call_id": "c1", "content": "3 found"}
    await ask(session, USER, reply, result, temperature=0.5)
    await proxy.close_session(session)
    said = [(each["role"], each.get("content"), each["thread"]) for each in events.messages()]
    assert said == [
        ("user", "How many lakes?", 0), ("assistant", None, 0), ("tool", "3 found", 0), ("assistant", "Three.", 0)
    ]  # fmt: skip
    replies = [each for each in events.messages() if each["role"] == "assistant"]
    assert replies[0]["tool_calls"] == [CALL]
    assert replies[0]["request"]["temperature"] == 0.5
    assert replies[0]["usage"]["input_tokens"] == 20
    assert (replies[1]["model"], replies[1]["finish_reason"], replies[1]["messages"]) == ("m-1", "stop", 3)
    assert replies[1]["response"] == chat("Three.")


@with_proxy
async def test_two_conversations_at_the_same_time_are_kept_apart(model: ControlledModel, proxy: CaptureProxy) -> None:
    events = Events()
    session = proxy.open(events)
    other = {"role": "user", "content": "And rivers?"}
    for text in ("one", "two", "three"):
        model.will_answer(chat(text))
    await ask(session, USER)
    await ask(session, other)
    await ask(session, USER, {"role": "assistant", "content": "one"}, {"role": "user", "content": "Sure?"})
    await proxy.close_session(session)
    threads = [(each["content"], each["thread"]) for each in events.messages()]
    assert threads == [
        ("How many lakes?", 0), ("one", 0), ("And rivers?", 1), ("two", 1), ("Sure?", 0), ("three", 0)
    ]  # fmt: skip


@with_proxy
async def test_token_ids_and_log_probabilities_are_recorded(model: ControlledModel, proxy: CaptureProxy) -> None:
    events = Events()
    session = proxy.open(events, add_fields={"return_token_ids": True})
    logprobs = {"content": [{"token": "T", "logprob": -0.1}, {"token": "wo", "logprob": -2}]}
    model.will_answer(chat("Two", token_ids=[7, 8], prompt_token_ids=[1, 2, 3], logprobs=logprobs))
    await ask(session, USER)
    await proxy.close_session(session)
    reply = events.messages()[-1]
    assert (reply["prompt_token_ids"], reply["token_ids"], reply["logprobs"]) == ([1, 2, 3], [7, 8], [-0.1, -2.0])
    assert json.loads(model.requests[0].body)["return_token_ids"] is True


def chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "s1", "model": "m-1", "choices": [{"index": 0, "delta": delta, **more}]}


@with_proxy
async def test_a_stream_passes_while_it_arrives_and_is_recorded_whole(
    model: ControlledModel, proxy: CaptureProxy
) -> None:
    events = Events()
    session = proxy.open(events)
    part = {"index": 0, "id": "c1", "function": {"name": "find", "arguments": '{"text"'}}
    rest = {"index": 0, "function": {"arguments": ': "lakes"}'}}
    model.will_stream(
        chunk({"role": "assistant", "content": "Let me "}),
        chunk({"content": "look"}, token_ids=[4], logprobs={"content": [{"token": "x", "logprob": -1.0}]}),
        chunk({"tool_calls": [part]}),
        chunk({"tool_calls": [rest]}, finish_reason="tool_calls"),
        {"id": "s1", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}},
        "[DONE]",
    )
    model.hold.clear()
    reader, writer = await asyncio.open_connection("127.0.0.1", ServerUrl.parse(proxy.url).port)
    body = json.dumps({"messages": [USER], "stream": True}).encode()
    path = f"/s/{session.token}/v1/chat/completions"
    writer.write(f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    early = await reader.readuntil(b"look")
    assert b"Let me " in early, "the beginning comes before the model has ended"
    assert not [each for each in events.messages() if each["role"] == "assistant"]
    model.hold.set()
    await reader.readuntil(b"[DONE]")
    writer.close()
    await proxy.close_session(session)
    reply = events.messages()[-1]
    assert reply["content"] == "Let me look"
    assert reply["tool_calls"] == [CALL]
    assert (reply["token_ids"], reply["logprobs"]) == ([4], [-1.0])
    assert reply["usage"]["output_tokens"] == 4
    assert reply["stream"].endswith("data: [DONE]\n\n")


@with_proxy
async def test_a_response_that_is_too_long_to_keep_passes_whole_and_is_recorded_as_cut(
    model: ControlledModel, proxy: CaptureProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_session, "MAX_KEPT", 5000)
    events = Events()
    session = proxy.open(events)
    model.will_stream(chunk({"role": "assistant"}), *[chunk({"content": "word " * 20})] * 500, "[DONE]")
    status, body = await post(f"{session.openai_url}/chat/completions", {"messages": [USER], "stream": True})
    assert (status, body.count(b"word ")) == (200, 10_000)
    model.will_answer(chat("x" * 20_000))
    status, body = await post(f"{session.openai_url}/chat/completions", {"messages": [USER]})
    assert (status, len(body) > 20_000) == (200, True)
    await proxy.close_session(session)
    [streamed] = [each for each in events.messages() if each["role"] == "assistant"]
    assert streamed["cut"]
    assert len(streamed["stream"]) <= 5000
    assert streamed["bytes_left_out"] == streamed["bytes"] - 5000
    assert streamed["usage"]["output_tokens"] > 10_000
    assert streamed["first_token_seconds"] > 0
    [note] = [each for each in events.all if each["kind"] == "note"]
    assert note["data"]["bytes_left_out"] > 15_000


@with_proxy
async def test_a_stream_that_is_cut_is_recorded_as_cut(model: ControlledModel, proxy: CaptureProxy) -> None:
    events = Events()
    session = proxy.open(events)
    model.will_stream(chunk({"role": "assistant", "content": "Let"}), "[DONE]")
    model.cut = True
    with pytest.raises(ConnectionLost):
        await ask(session, USER, stream=True)
    await proxy.close_session(session)
    assert events.messages()[-1]["content"] == "Let"
    assert events.messages()[-1]["cut"] is True


@with_proxy
async def test_anthropic_messages_are_recorded_in_the_same_form(model: ControlledModel, proxy: CaptureProxy) -> None:
    events = Events()
    session = proxy.open(events)
    block = {"type": "tool_use", "id": "t1", "name": "find", "input": {"text": "lakes"}}
    usage = {"input_tokens": 11, "output_tokens": 3}
    model.will_answer(
        {"id": "m", "type": "message", "content": [{"type": "text", "text": "Let me look"}, block], "usage": usage,
         "stop_reason": "tool_use", "model": "c-1"}
    )  # fmt: skip
    model.will_stream(
        {"type": "message_start", "message": {"id": "n", "model": "c-1", "usage": {"input_tokens": 30}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Three"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
        named=True,
    )
    url = f"{session.url}/v1/messages"
    user = {"role": "user", "content": [{"type": "text", "text": "How many lakes?"}]}
    await post(url, {"system": "Be brief.", "messages": [user], "max_tokens": 9})
    replied = {"role": "assistant", "content": [{"type": "text", "text": "Let me look"}, block]}
    found = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "3"}]}
    body = {"system": "Be brief.", "messages": [user, replied, found], "max_tokens": 9, "stream": True}
    await post(url, body)
    await proxy.close_session(session)
    said = [(each["role"], each.get("content")) for each in events.messages()]
    assert said == [
        ("system", "Be brief."), ("user", "How many lakes?"), ("assistant", "Let me look"), ("tool", "3"),
        ("assistant", "Three"),
    ]  # fmt: skip
    assert events.messages()[2]["tool_calls"][0]["function"] == {"name": "find", "arguments": '{"text": "lakes"}'}
    assert events.messages()[-1]["usage"]["input_tokens"] == 30
    assert model.requests[0].header(b"x-api-key") == b"secret-key"


@with_proxy
async def test_the_responses_api_is_recorded_also_where_the_server_keeps_the_conversation(
    model: ControlledModel, proxy: CaptureProxy
) -> None:
    events = Events()
    session = proxy.open(events)
    call = {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"text": "lakes"}'}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Three"}]}
    usage = {"input_tokens": 3, "output_tokens": 4}
    model.will_answer({"id": "resp-1", "status": "completed", "output": [call], "usage": usage})
    model.will_stream(
        {"type": "response.created", "response": {"id": "resp-2", "status": "in_progress", "output": []}},
        {"type": "response.output_item.done", "output_index": 0, "item": said},
        {"type": "response.completed", "response": {"id": "resp-2", "status": "completed", "output": [said],
                                                     "usage": usage}},
        named=True,
    )  # fmt: skip
    url = f"{session.openai_url}/responses"
    await post(url, {"model": "m", "instructions": "Be brief.", "input": "How many lakes?"})
    output = {"type": "function_call_output", "call_id": "c1", "output": "3"}
    await post(url, {"model": "m", "previous_response_id": "resp-1", "input": [output], "stream": True})
    await proxy.close_session(session)
    found = [(each["role"], each.get("content"), each["thread"]) for each in events.messages()]
    assert found == [
        ("system", "Be brief.", 0), ("user", "How many lakes?", 0), ("assistant", None, 0), ("tool", "3", 0),
        ("assistant", "Three", 0),
    ]  # fmt: skip
    assert events.messages()[2]["tool_calls"] == [CALL]


@with_proxy
async def test_a_spent_budget_refuses_the_next_request_in_a_way_that_clients_do_not_retry(
    model: ControlledModel, proxy: CaptureProxy
) -> None:
    budget = Budget(TaskLimits(tokens=25))
    session = proxy.open(Events(), budget=budget, price=Price(input=1.0, output=2.0))
    model.will_answer(chat("one"))
    assert (await ask(session, USER))[0] == 200
    status, said = await ask(session, USER)
    assert (status, budget.tokens) == (403, 25)
    assert "25 of 25 tokens" in said["error"]["message"]
    assert session.refused is not None
    assert budget.cost == pytest.approx(30e-6)
    assert len(model.requests) == 1
    _, anthropic = await post(f"{session.url}/v1/messages", {"messages": []})
    assert json.loads(anthropic)["error"]["type"] == "permission_error"


@with_proxy
async def test_errors_of_the_model_pass_and_are_noted(model: ControlledModel, proxy: CaptureProxy) -> None:
    events = Events()
    session = proxy.open(events)
    model.will_answer({"error": {"message": "slow down"}}, 429)
    assert await ask(session, USER) == (429, {"error": {"message": "slow down"}})
    await proxy.close_session(session)
    assert "429" in events.all[-1]["text"]
    assert "slow down" in events.all[-1]["data"]["body"]


@with_proxy
async def test_a_model_that_cannot_be_reached_is_a_502(model: ControlledModel, proxy: CaptureProxy) -> None:
    async with CaptureProxy(Upstream("http://127.0.0.1:9")) as proxy:
        events = Events()
        session = proxy.open(events)
        status, said = await ask(session, USER)
        await proxy.close_session(session)
    assert status == 502
    assert said["error"]["code"] == "upstream_failed"
    assert "502" in events.all[-1]["text"]


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/files", 404), ("/v1/../v1/files", 404), ("/v1/fine_tuning/jobs", 404), ("/", 404)]
)
@with_proxy
async def test_only_paths_for_models_are_forwarded(
    proxy: CaptureProxy, model: ControlledModel, path: str, status: int
) -> None:
    session = proxy.open()
    assert (await post(f"{session.url}{path}", {}))[0] == status
    assert not model.requests


@with_proxy
async def test_a_session_that_does_not_exist_or_has_ended_is_refused(
    model: ControlledModel, proxy: CaptureProxy
) -> None:
    assert (await post(f"{proxy.url}/s/guess/v1/chat/completions", {}))[0] == 401
    session = proxy.open()
    await proxy.close_session(session)
    assert (await ask(session, USER))[0] == 401


@with_proxy
async def test_what_cannot_be_recorded_does_not_go_on(model: ControlledModel, proxy: CaptureProxy) -> None:
    class Full(Events):
        def append(self, kind: str, /, **fields: Any) -> int:
            raise AEnvError("no space left")

    session = proxy.open(Full())
    model.will_answer(chat("one"))
    assert (await ask(session, USER))[0] == 200
    await session.settled()
    status, said = await ask(session, USER)
    assert status == 403
    assert "no space left" in said["error"]["message"]


@with_proxy
async def test_bodies_that_make_no_sense_pass_and_break_nothing(model: ControlledModel, proxy: CaptureProxy) -> None:
    events = Events()
    session = proxy.open(events)
    for answer in (b"not json", b"[]", b'{"choices": 3}', b'{"choices": [null, 4]}', b'{"choices":[{"message":[]}]}'):
        model.answers.append((200, answer))
        client = HttpClient(ServerUrl.parse(session.url))
        got = await client.request("POST", "/v1/chat/completions", b'{"messages": {"a": [1, null]}}')
        client.close()
        assert got.body == answer
    await proxy.close_session(session)
    assert session.refused is None


@with_proxy
async def test_openais_own_client_works_through_the_proxy(model: ControlledModel, proxy: CaptureProxy) -> None:
    openai = pytest.importorskip("openai")
    events = Events()
    session = proxy.open(events)
    model.will_answer({"object": "chat.completion", "created": 1, **chat("Three.")})
    model.will_stream(chunk({"role": "assistant", "content": "Th"}), chunk({"content": "ree"}), "[DONE]")
    async with openai.AsyncOpenAI(base_url=session.openai_url, api_key="captured", max_retries=0) as client:
        whole = await client.chat.completions.create(model="m", messages=[USER])
        stream = await client.chat.completions.create(model="m", messages=[USER], stream=True)
        parts = [part.choices[0].delta.content async for part in stream]
    await proxy.close_session(session)
    assert whole.choices[0].message.content == "Three."
    assert parts == ["Th", "ree"]
    assert [each["content"] for each in events.messages() if each["role"] == "assistant"] == ["Three.", "Three"]
    assert events.messages()[-1]["usage_estimated"] is True


AGENT = """
import json, os, sys, urllib.error, urllib.request
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
assert os.environ["OPENAI_API_KEY"] == "captured"
body = json.dumps({"model": os.environ["AENV_MODEL"], "messages": [{"role": "user", "content": "How many?"}]}).encode()
request = urllib.request.Request(url, body, {"content-type": "application/json"})
for _ in range(int(sys.argv[1])):
    try:
        urllib.request.urlopen(request).read()
    except urllib.error.HTTPError as error:
        sys.exit(f"status {error.code}")
"""


@pytest.mark.parametrize(
    ("requests", "statuses", "limits", "outcome", "messages"),
    [
        (1, [200], {}, "ok", 2),
        (3, [200, 200, 200], {"tokens": 30}, "timeout", 4),
        (1, [503], {}, "infra", 1),
        (1, [400], {}, "policy", 1),
    ],
    ids=["answered", "budget", "unavailable", "refused"],
)
def test_a_command_as_agent_is_recorded_and_its_models_failures_are_not_its_own(
    platform: Platform,
    store: TrajectoryStore,
    tmp_path: Path,
    requests: int,
    statuses: list[int],
    limits: dict[str, int],
    outcome: str,
    messages: int,
) -> None:
    program = tmp_path / "agent.py"
    program.write_text(AGENT)

    async def main() -> list[EpisodeResult]:
        async with controlled_model() as model:
            for status in statuses:
                model.will_answer(chat("Two.") if status == 200 else {"error": {"message": "no"}}, status)
            endpoint = ModelEndpoint("m", f"{model.url}/v1", key="secret-key")
            made = rollout(
                SHOP, agent=f"{sys.executable} {program} {requests}", model=endpoint, store=store, limit=1,
                limits=limits, retries=0, sampling={"return_token_ids": True},
            )  # fmt: skip
            found = [result async for result in made]
            assert all(json.loads(asked.body)["return_token_ids"] for asked in model.requests)
            return found

    [result] = asyncio.run(main())
    assert result.outcome == outcome
    events = list(store.events(result.episode))
    found = [event for event in events if event["kind"] == "message"]
    assert len(found) == messages
    assert "secret-key" not in json.dumps(events)
    if outcome == "ok":
        assert found[-1]["content"] == "Two."
        assert result.tokens == {"input": 20, "output": 5}
