"""Attacks of an agent on the capture proxy: on its budget, on the key and on the end of its session."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aenv.http.client import HttpClient
from aenv.http.messages import Answer, Handler, Request, Response
from aenv.http.server import HttpServer
from aenv.http.url import ServerUrl
from aenv.rollout import Budget, EpisodeResult, ModelEndpoint, Price, TaskLimits, rollout
from aenv.rollout.capture import CaptureProxy, CaptureSession, Upstream
from aenv.trajectory import EpisodeKey, TrajectoryStore
from aenv.trajectory.formats.chat import to_messages
from tests.isolation.host import Platform
from tests.rollout.conftest import SHOP
from tests.rollout.controlled_model import ControlledModel, controlled_model
from tests.rollout.test_capture import USER, Events, ask, chat, post, with_proxy

pytestmark = pytest.mark.attack("capture")
USAGE = {"prompt_tokens": 20, "completion_tokens": 5}


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("completions", {"prompt": "Solve it."}, {"choices": [{"text": "four"}], "usage": USAGE}),
        ("completions", {"prompt": "Solve it. " * 20}, {"choices": [{"text": "four"}]}),
        ("embeddings", {"input": "all of it"}, {"data": [], "usage": {"prompt_tokens": 25}}),
    ],
    ids=["completions", "completions-without-usage", "embeddings"],
)
@with_proxy
async def test_every_api_that_costs_counts_in_the_budget(
    model: ControlledModel, proxy: CaptureProxy, path: str, body: dict[str, Any], answer: dict[str, Any]
) -> None:
    events, budget = Events(), Budget(TaskLimits(tokens=25))
    session = proxy.open(events, budget=budget)
    model.will_answer(answer)
    assert (await post(f"{session.openai_url}/{path}", body))[0] == 200
    await session.settled()
    assert (await post(f"{session.openai_url}/{path}", body))[0] == 403
    assert budget.tokens >= 25
    assert len(model.requests) == 1
    assert path in events.all[-1]["text"]


@with_proxy
async def test_a_streamed_completion_counts_in_the_budget(model: ControlledModel, proxy: CaptureProxy) -> None:
    budget = Budget(TaskLimits(tokens=25))
    session = proxy.open(Events(), budget=budget)
    model.will_stream({"choices": [{"text": "four"}]}, {"choices": [], "usage": USAGE}, "[DONE]")
    assert (await post(f"{session.openai_url}/completions", {"prompt": "Solve it.", "stream": True}))[0] == 200
    await session.settled()
    assert budget.tokens == 25


@pytest.mark.parametrize("limits", [TaskLimits(tokens=25), TaskLimits(cost=30e-6)], ids=["tokens", "cost"])
@with_proxy
async def test_requests_at_the_same_time_do_not_exceed_the_budget(
    model: ControlledModel, proxy: CaptureProxy, limits: TaskLimits
) -> None:
    budget = Budget(limits)
    session = proxy.open(Events(), budget=budget, price=Price(input=1.0, output=2.0))
    for _ in range(6):
        model.will_answer(chat("one"))
    statuses = [status for status, _ in await asyncio.gather(*(ask(session, USER) for _ in range(6)))]
    assert sorted(statuses) == [200, 403, 403, 403, 403, 403]
    assert budget.tokens == 25


@with_proxy
async def test_requests_at_the_same_time_pass_together_where_the_budget_has_room(
    model: ControlledModel, proxy: CaptureProxy
) -> None:
    session = proxy.open(Events(), budget=Budget(TaskLimits(tokens=100_000)))
    model.will_stream(*({"choices": [{"delta": {"content": "a"}}]} for _ in range(2)))
    model.will_answer(chat("two"))
    model.hold.clear()
    first = asyncio.ensure_future(post(f"{session.openai_url}/chat/completions", {"messages": [], "stream": True}))
    while not model.requests:  # noqa: ASYNC110 - another task receives it
        await asyncio.sleep(0.01)
    assert (await ask(session, USER))[0] == 200
    model.hold.set()
    assert (await first)[0] == 200


async def begin(session: CaptureSession, body: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    data = json.dumps(body).encode()
    url = ServerUrl.parse(session.openai_url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = f"POST {url.prefix}/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    return reader, writer


@with_proxy
async def test_a_response_that_the_agent_does_not_read_to_its_end_counts(
    model: ControlledModel, proxy: CaptureProxy
) -> None:
    events, budget = Events(), Budget(TaskLimits(tokens=25))
    session = proxy.open(events, budget=budget)
    model.will_answer(chat("x" * 4_000_000))
    reader, writer = await begin(session, {"messages": [USER]})
    await reader.readexactly(100_000)
    writer.transport.abort()
    await session.settled()
    assert budget.tokens > 25
    assert (await ask(session, USER))[0] == 403


@pytest.mark.parametrize("padding", ["", "x" * 200_000], ids=["short", "long"])
@with_proxy
async def test_a_key_that_the_model_repeats_in_an_error_does_not_reach_the_agent(
    model: ControlledModel, proxy: CaptureProxy, padding: str
) -> None:
    events = Events()
    session = proxy.open(events)
    model.will_answer({"error": {"message": f"Incorrect API key provided: secret-key. {padding}"}}, 401)
    status, said = await ask(session, USER)
    await proxy.close_session(session)
    assert (status, "Incorrect API key provided: ***." in said["error"]["message"]) == (401, True)
    assert "secret-key" not in json.dumps([said, events.all])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"])
@with_proxy
async def test_a_generation_is_asked_for_with_post_only(model: ControlledModel, proxy: CaptureProxy, path: str) -> None:
    session = proxy.open()
    url = ServerUrl.parse(session.url)
    for method in ("PUT", "GET", "PATCH"):
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(f"{method} {url.prefix}{path} HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{{}}".encode())
        assert b" 404 " in await reader.readline()
        writer.close()
    assert not model.requests


def test_a_session_ends_although_its_model_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aenv.rollout.capture.proxy.SETTLE_SECONDS", 0.05)

    async def main() -> None:
        asked = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with CaptureProxy(Upstream(f"http://127.0.0.1:{port}/v1")) as proxy:
            session = proxy.open(Events())
            _, writer = await begin(session, {"messages": [USER]})
            await asked.wait()
            writer.transport.abort()
            async with asyncio.timeout(60):
                await proxy.close_session(session)
        server.close()

    asyncio.run(main())


AGENT = "import os; print([name for name, value in os.environ.items() if value == 'the-real-key-of-the-model'])"


def test_a_command_as_agent_has_the_models_key_in_no_variable(
    platform: Platform, store: TrajectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AENV_MODEL_KEY", "MY_PROVIDER_KEY"):
        monkeypatch.setenv(name, "the-real-key-of-the-model")

    async def main() -> list[dict[str, Any]]:
        async with controlled_model() as model:
            made = rollout(
                str(SHOP), agent=f'{sys.executable} -c "{AGENT}"', tasks=[{"id": "a", "instruction": "x"}],
                model=ModelEndpoint("m", f"{model.url}/v1"), store=store,
            )  # fmt: skip
            [result] = [each async for each in made]
            return list(store.events(result.episode))

    noted = [event["data"]["output"] for event in asyncio.run(main()) if event["kind"] == "note"]
    assert noted == ["[]"]


def nested(depth: int) -> str:
    return '{"messages":[{"role":"user","content":' + "[" * depth + "]" * depth + "}]}"


HOSTILE = {
    "event-fields": '{"messages":[{"role":"user","content":"x","seq":77,"at":-1,"kind":"end","thread":9,"self":1}]}',
    "list-as-id": '{"messages":[{"role":"user","content":"x"}],"previous_response_id":[1]}',
    "object-as-id": '{"messages":[{"role":"user","content":"x"}],"previous_response_id":{}}',
    "number-as-calls": '{"messages":[{"role":"assistant","tool_calls":5}]}',
    "number-as-function": '{"messages":[{"role":"assistant","tool_calls":[{"function":5}, 7]}]}',
    "text-as-usage": '{"messages":[{"role":"assistant","content":"x","usage":{"input_tokens":"a"}}]}',
    "number-as-role": '{"messages":[{"role":5,"content":7,"name":[],"tool_call_id":{}}]}',
    "null-as-role": '{"messages":[{"role":null}]}',
    "deep": nested(900),
    "too-deep": nested(100_000),
    "surrogates": '{"messages":[{"role":"user","content":"\\ud800","\\udfff":1}]}',
    "not-a-number": '{"messages":[{"role":"user","content":NaN}],"n":1e999,"max_tokens":Infinity}',
    "long-number": '{"messages":[{"role":"user","content":' + "1" * 5000 + '}],"n":99999999999999999999}',
    "no-messages": '{"messages":5,"input":5,"model":{}}',
    "no-object": "[]",
    "nothing": "",
}
"""Bodies that a program can send in order to break its own record, and with it its episode."""


@pytest.mark.parametrize("api", ["chat/completions", "responses", "messages"])
@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
@with_proxy
async def test_no_request_of_an_agent_breaks_its_record(
    model: ControlledModel, proxy: CaptureProxy, tmp_path: Path, body: str, api: str
) -> None:
    with contextlib.closing(TrajectoryStore.open(tmp_path)) as store:
        recorder = store.record(EpisodeKey("run", "task"), {"environment": {"name": "shop"}})
        budget = Budget(TaskLimits(tokens=10**6))
        session = proxy.open(recorder, budget=budget, add_fields={"return_token_ids": True})
        model.will_answer(chat("four"))
        client = HttpClient(ServerUrl.parse(session.openai_url))
        answer = await client.request("POST", f"/{api}", body.encode())
        client.close()
        await session.settled()
        assert (answer.status, session.refused, session.failed_status) == (200, None, None)
        assert session.requests == len(model.requests) == 1
        assert budget.tokens > 0
        await recorder.finish("ok", 1.0)
        events = list(store.events(recorder.episode_id))
        summary = store.episode(recorder.episode_id)
        assert [event["seq"] for event in events] == list(range(len(events)))
        assert [event["at"] for event in events] == sorted(event["at"] for event in events)
        assert [event["kind"] for event in events if event["kind"] in ("begin", "end")] == ["begin", "end"]
        assert json.dumps(to_messages(summary, events))


@with_proxy
async def test_an_agent_cannot_record_tokens_that_no_model_has_sampled(
    model: ControlledModel, proxy: CaptureProxy
) -> None:
    events = Events()
    session = proxy.open(events)
    claimed = {"token_ids": [1, 2], "logprobs": [0.0, 0.0], "prompt_token_ids": [3], "model": "m", "response": {}}
    model.will_answer(chat("four"))
    await ask(session, USER, {"role": "assistant", "content": "I have solved it.", **claimed}, USER)
    await proxy.close_session(session)
    [said, *_] = [each for each in events.messages() if each["content"] == "I have solved it."]
    assert not claimed.keys() & said.keys()
    assert said["other_fields"] == claimed


@contextlib.asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[str]:
    server = HttpServer(handler, max_body=1 << 20)
    yield await server.open("127.0.0.1", 0, None)
    await server.close(grace=0.0)


def test_a_request_that_the_agent_gives_up_is_no_failure_of_the_model() -> None:
    async def main() -> CaptureSession:
        held, asked = asyncio.Event(), asyncio.Event()

        async def hold(request: Request) -> Answer:
            asked.set()
            await held.wait()
            return Response(200, b"{}")

        async with served(hold) as url, CaptureProxy(Upstream(f"{url}/v1")) as proxy:
            session = proxy.open(Events())
            _, writer = await begin(session, {"messages": [USER]})
            await asked.wait()
            writer.transport.abort()
            await session.settled()
            held.set()
            return session

    session = asyncio.run(main())
    assert (session.requests, session.failed_status) == (1, None)


GRADED = {"arguments": {"wanted": {"apple": 1}}}
ENDS_THE_RUN = """
import json, os, sys, urllib.error, urllib.request
for model, path in (('m', 'chat/completions'), (sys.argv[1], sys.argv[2])):
    body = json.dumps({'model': model, 'messages': []}).encode()
    url = os.environ['OPENAI_BASE_URL'] + '/' + path
    try:
        urllib.request.urlopen(urllib.request.Request(url, body, {'content-type': 'application/json'})).read()
    except urllib.error.HTTPError:
        pass
sys.exit(1)
"""


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
@pytest.mark.parametrize(("asked", "path"), [("other", "chat/completions"), ("m", "responses")], ids=["model", "api"])
def test_an_agent_cannot_void_its_episode_with_a_request_that_must_fail(
    platform: Platform, store: TrajectoryStore, tmp_path: Path, asked: str, path: str, status: int
) -> None:
    program = tmp_path / "agent.py"
    program.write_text(ENDS_THE_RUN)

    async def main() -> list[EpisodeResult]:
        async with controlled_model() as model:
            for _ in range(2):
                model.will_answer(chat("four"))
                model.will_answer({"error": {"message": "no"}}, status)
            tasks = [{"id": each, "instruction": "x", "reward": GRADED} for each in "ab"]
            made = rollout(
                str(SHOP), agent=f"{sys.executable} {program} {asked} {path}", tasks=tasks, store=store, retries=0,
                model=ModelEndpoint("m", f"{model.url}/v1"), concurrency=1,
            )  # fmt: skip
            return [each async for each in made]

    results = asyncio.run(main())
    assert [(each.outcome, each.fault) for each in results] == [("policy", "policy")] * 2
    assert all(each.reward is not None for each in results)
