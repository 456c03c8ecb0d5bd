"""Attacks of an agent on the capture proxy: on its budget, on the key and on the end of its session."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from aenv.http.url import ServerUrl
from aenv.rollout import Budget, ModelEndpoint, Price, TaskLimits, rollout
from aenv.rollout.capture import CaptureProxy, CaptureSession, Upstream
from aenv.trajectory import TrajectoryStore
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
