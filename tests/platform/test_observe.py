"""Observability for operators: traces, logs, readiness."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aenv.http.messages import Request, Response
from aenv.platform.operations.readiness import Readiness
from aenv.schema import paths
from aenv.tracing.context import SpanContext
from tests.conftest import fetch, run
from tests.platform.collector import Collector, Seen, collecting
from tests.platform.parts import serving
from tests.platform.test_orphan_sandboxes import Counting
from tests.storage.valkey import started
from tests.waiting import wait_while

TRAINER = """
import asyncio, sys
from aenv import Environment

async def main():
    async with Environment("counter", aenv_url=sys.argv[1], owner="ann") as env:
        await env.call_tool("increment")
        await env.call_function("double", {"n": 2})
        await env.call_reward()
        print((await env.get_env_info())["instance_id"])

asyncio.run(main())
"""
OWN = """
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(sys.argv[2] + "/v1/traces")))

async def steps():
    env = Environment("counter", aenv_url=sys.argv[1])
    with trace.get_tracer("mine").start_as_current_span("rollout"):
        async with env:
            with trace.get_tracer("mine").start_as_current_span("step"):
                await env.call_tool("increment")

asyncio.run(steps())
"""

ROLLOUT = """
import sys
from pathlib import Path
from aenv.rollout import rollout
from aenv.schema.tasks import Task
from aenv.trajectory import TrajectoryStore

if __name__ == "__main__":
    with TrajectoryStore.open(Path(sys.argv[1])) as store:
        list(rollout("counter", tasks=[Task(id="one")], agent="nop", store=store))
        print(next(store.events(next(store.all_episodes()).id))["trace"])
"""


def _run(code: str, *arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **variables}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout.strip()


def _one(collector: Collector, name: str, parent: Seen | None) -> Seen:
    found = [span for span in collector.named(name) if parent is None or span.parent == parent.id]
    assert len(found) == 1, (name, [(s.service, s.name, s.parent) for s in collector.spans])
    return found[0]


def test_one_trace_goes_from_the_call_to_the_tool(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        for name, value in collector.variables().items():
            monkeypatch.setenv(name, value)
        with serving(data, auth=False) as platform:
            instance = _run(TRAINER, platform.url)
        root = _one(collector, "environment counter", None)
        assert (root.service, root.parent, root.facts["aenv.instance"]) == ("aenv-sdk", "", instance)
        assert {span.trace for span in collector.spans} == {root.trace}

        for call, path in (("tool increment", "/tools/increment"), ("function double", "/functions/double")):
            sent = _one(collector, call, root)
            passed = _one(collector, f"POST {path}", sent)
            assert passed.service == "aenv-platform"
            assert passed.facts["aenv.instance"] == instance
            inside = _one(collector, "runtime", passed)
            tool = _one(collector, "tool", inside)
            for outer, inner in ((sent, passed), (passed, inside), (inside, tool)):
                assert outer.began <= inner.began <= inner.ended <= outer.ended
        _one(collector, "reward", root)

        created = _one(collector, "POST /env-instance", root)
        for phase in ("source", "record", "engine"):
            _one(collector, f"create: {phase}", created)
        assert _one(collector, "DELETE /env-instance/{id}", root).facts["aenv.instance"] == instance


@pytest.mark.long
def test_spans_join_the_trace_of_the_calling_program(data: Path) -> None:
    with collecting() as collector, serving(data, auth=False) as platform:
        _run(TRAINER.replace("asyncio.run(main())", OWN), platform.url, collector.url)
        own = _one(collector, "rollout", None)
        ours = _one(collector, "environment counter", own)
        step = _one(collector, "step", own)
        sent = _one(collector, "tool increment", step)
        # The platform records nothing, so the instance's server timing reaches the program.
        _one(collector, "tool", _one(collector, "runtime", sent))
        assert {span.trace for span in collector.spans} == {ours.trace}


def test_a_recorded_episode_names_its_trace(data: Path, tmp_path: Path) -> None:
    with collecting() as collector, serving(data, auth=False) as platform:
        variables = {**collector.variables(), "AENV_SYSTEM_URL": platform.url}
        recorded = _run(ROLLOUT, str(tmp_path / "store"), **variables).splitlines()[-1]
        assert recorded == _one(collector, "environment counter", None).trace


def test_tracing_is_not_imported_without_configuration() -> None:
    code = "import sys; from aenv import Environment; Environment('x', aenv_url='http://h'); print(*sys.modules)"
    assert "opentelemetry" not in _run(code)


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "none"},
        {},
    ],
)
def test_traces_are_turned_off_by_the_standard_variables(variables: dict[str, str]) -> None:
    assert _run("from aenv.tracing import spans; print(spans.begin('x'))", **variables) == "None"


@pytest.mark.parametrize(
    ("header", "place"),
    [
        (b"00-%s-%s-01" % (b"a" * 32, b"b" * 16), SpanContext("a" * 32, "b" * 16, True)),
        (b"00-%s-%s-00" % (b"a" * 32, b"b" * 16), SpanContext("a" * 32, "b" * 16, False)),
        (b"01-%s-%s-03-more" % (b"a" * 32, b"b" * 16), SpanContext("a" * 32, "b" * 16, True)),
        (b"ff-%s-%s-01" % (b"a" * 32, b"b" * 16), None),
        (b"00-%s-%s-01" % (b"0" * 32, b"b" * 16), None),
        (b"00-%s-%s-01" % (b"a" * 32, b"0" * 16), None),
        (b"00-%s-%s-01\r\nx: y" % (b"a" * 32, b"b" * 16), None),
        (b"", None),
    ],
)
def test_a_traceparent_header_is_parsed_as_w3c_specifies(header: bytes, place: SpanContext | None) -> None:
    assert SpanContext.parse(header) == place
    if place is not None:
        assert SpanContext.parse(place.header) == place


def test_every_log_line_has_its_correlation_ids(data: Path) -> None:
    trace = "ab" * 16
    with serving(data, "--log-format", "json", auth=False) as platform:
        given = {"x-request-id": "from-a-proxy-1", "traceparent": f"00-{trace}-{'cd' * 8}-01"}
        made = fetch(platform.url, "/env-instance", {"envName": "counter"}, headers=given)[1]["data"]
        fetch(platform.url, f"/env-instance/{made['id']}", method="DELETE", headers={"x-request-id": "bad id"})
        lines = [json.loads(line) for line in platform.log.read_text().splitlines()]
    ours = [line for line in lines if line.get("request_id") == "from-a-proxy-1"]
    (line,) = [line for line in ours if line["logger"] == "aenv.access"]  # a slow create logs what it waits for as well
    assert line["message"].startswith("POST /env-instance 200 in ")
    assert {name: line[name] for name in ("level", "logger", "method", "path", "status")} == {
        "level": "INFO", "logger": "aenv.access", "method": "POST", "path": "/env-instance", "status": 200,
    }  # fmt: skip
    assert (line["instance_id"], line["trace_id"]) == (made["id"], trace)
    (deleted,) = {line["request_id"] for line in lines if line.get("instance_id") == made["id"]} - {"from-a-proxy-1"}
    assert re.fullmatch("[0-9a-f]{16}", deleted), "what the delete did has the delete's id"


def test_ready_is_not_the_same_as_alive(data: Path) -> None:
    with serving(data, "--store", f"sqlite:{data}/own.db", auth=True) as platform:
        parts = dict.fromkeys(("engine", "store", "creates", "disk"), "ok")
        assert fetch(platform.url, "/ready") == (
            200,
            {"success": True, "code": 0, "message": "", "data": {"ready": True, **parts}},
        )
        assert fetch(platform.url, "/health")[0] == 200


def test_a_server_without_its_store_is_alive_but_not_ready(data: Path) -> None:
    with started(data) as store, serving(data, "--store", store.url(), auth=False) as platform:
        assert fetch(platform.url, "/ready")[0] == 200
        store.kill()
        wait_while(lambda: fetch(platform.url, "/ready")[0] != 503, "it is still ready")
        said = fetch(platform.url, "/ready")[1]["data"]
        assert (said["ready"], said["engine"]) == (False, "ok")
        assert fetch(platform.url, "/health")[0] == 200


def test_a_server_that_drains_is_not_ready() -> None:
    async def main() -> None:
        ready = Readiness(Counting())
        request = Request()
        request.path = paths.READY
        answer = ready.wrap(_unused)
        assert (await answer(request)).status == 200
        ready.draining = True
        drained = await answer(request)
        assert (drained.status, json.loads(drained.body)["message"]) == (503, "server: draining")

    run(main())


async def _unused(request: Request) -> Response:
    raise AssertionError("the path is answered before")
