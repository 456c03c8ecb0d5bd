"""Mistakes of the program that uses the SDK: reported at once as the caller's fault, before anything is started."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aenv import Environment, SyncEnvironment
from aenv.client import local_lease
from aenv.errors import AEnvError, EnvironmentError, InvalidUse, UsageError
from aenv.http.url import Planes
from aenv.schema.instances import EnvInstance, EnvStatus
from aenv.sdk.batch import Batch
from aenv.sdk.placement import PlatformPlacement
from tests.conftest import run

NOTHING = object()


@pytest.fixture(autouse=True)
def _nothing_can_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(local_lease, "lease", lambda: None)
    monkeypatch.setenv("AENV_RUNTIME_DIR", "/dev/null/nowhere")
    for name in ("AENV_INSTANCE_URL", "DUMMY_INSTANCE_IP", "AENV_SYSTEM_URL", "AENV_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "", " ", "@1.0.0", "@", None, 7, b"env", ["env"], NOTHING, "My_Env", "my env", "-env", "env-", "env@@1",
        "env@one", "env@1.0.0.", "env@v1", "env@1 2", "env@sha256:12", "a" * 300, "a" * 2000, "env\0", "env\n",
        "\ud800",         "./nowhere", "/nowhere/at/all", "~nobody-of-this-name/project", "./nul\0", "./" + "x" * 900,
    ],
)  # fmt: skip
def test_an_invalid_name_or_version_is_the_callers_fault(name: Any) -> None:
    for make in (Environment, SyncEnvironment, lambda name: Environment.batch(name, 2)):
        with pytest.raises(AEnvError) as caught:
            make(name)
        assert caught.value.fault == "caller"
        assert len(caught.value.message) < 1500


def test_with_in_place_of_async_with_is_told_what_to_write() -> None:
    handles: list[Any] = [Environment("env"), Environment.batch("env", 2)]
    for handle, twin in zip(handles, ("SyncEnvironment(...)", "SyncEnvironment.batch(...)"), strict=True):
        with pytest.raises(InvalidUse) as caught, handle:
            pass
        assert caught.value.message.endswith(f"needs 'async with'; without async, use 'with {twin}'")


WRONG: dict[str, list[Any]] = {
    "datasource": [7, b"x", ["x"], NOTHING, "\ud800"],
    "ttl": [60, 60.0, True, None, b"60s", ["60s"], "0", "0s", "1d", "-1s", "soon", "1h 30m", "60 s", "9" * 40 + "h"],
    "environment_variables": [["A=1"], "A=1", 7, {1: "x"}, {"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "\0"},
                              {"A": ["x"]}, {"A": {"b": 1}}, {"A": b"x"}],
    "arguments": ["--x", b"x", 7, {"x": 1}, [1], [None], ["a\0"], NOTHING],
    "aenv_url": [7, ["http://x"], "ftp://x", "http://", "http://x:port", "http://x:99999", "unix:relative", b"http://x"],
    "timeout": ["60", "60s", None, 0, -1, math.nan, math.inf, -math.inf, True, [60], NOTHING, 1 + 2j, 10**400],
    "startup_timeout": ["60", None, 0, -1, math.nan, math.inf, False],
    "max_retries": [-1, 1.5, "3", None, True, math.nan, [3]],
    "api_key": [7, b"key", ["key"], "key\n", "kéy", "key\0", "key\r\nx: y"],
    "skip_for_healthy": ["yes", 2, None, []],
    "owner": [7, b"x", "", ["x"], "two\nlines"],
    "labels": [["a"], "a=b", 7, {1: "x"}, {"a": 1}, {"a": None}],
    "enable_data_plane": ["no", 2, None],
    "mount_points": ["x", 7, {"a": 1}, ["x"], [None]],
    "network": [7, b"x", {"a": 1}, [7], [b"x"], NOTHING, "", "internet", "example.com", [], ["http://x"], ["a b"]],
    "instance_id": [7, b"x", "", ["x"]],
    "keep_alive": ["yes", 2, None],
    "mcp": ["yes", 2, None],
    "seed": ["7", 1.5, -1, True, NOTHING],
    "cpu": [[1], True, "", b"1", NOTHING, -1, 0, "-1", "two", "1 core", math.nan, math.inf, 1e-9],
    "memory": [["1Gi"], False, "", b"1Gi", NOTHING, "2 gigs", "2 GB", -1, "-2Gi", 0, 2, math.inf],
    "storage": [["1Gi"], False, "", b"1Gi", NOTHING, "2 gigs", -1, 5, "many"],
    "gpu": [0, -1, "1", 1.5, True, NOTHING],
    "forkable": ["yes", 2, None],
}  # fmt: skip


@pytest.mark.parametrize(("option", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_an_invalid_option_is_named_and_is_the_callers_fault(option: str, value: Any) -> None:
    with pytest.raises(AEnvError) as caught:
        Environment("env", **{option: value})
    assert caught.value.fault == "caller"
    if option != "aenv_url":
        assert option in caught.value.message
    with pytest.raises(AEnvError):
        Environment.batch("env", 2, **{option: value})
    with pytest.raises(AEnvError):
        SyncEnvironment("env", **{option: value})


def test_every_option_has_invalid_values_in_these_tests() -> None:
    import inspect

    assert set(inspect.signature(Environment.__init__).parameters) - {"self", "env_name"} == set(WRONG)


def test_a_numeric_ttl_is_rejected_with_how_to_write_it() -> None:
    with pytest.raises(InvalidUse, match="'60s'"):
        Environment("env", ttl=60)  # type: ignore[arg-type]


def test_an_invalid_amount_is_rejected_with_how_to_write_it() -> None:
    with pytest.raises(InvalidUse, match="memory: '2 gigs' is not a size; write it like 2Gi"):
        Environment("env", memory="2 gigs")
    with pytest.raises(InvalidUse, match=r"cpu: '-1' is not an amount of CPU; write it like 1, 0.5 or 500m"):
        Environment("env", cpu=-1)
    assert Environment("env", cpu=0.5, memory="2Gi", storage=2**30).resources["cpu"] == "0.5"


def test_a_secret_is_not_shown_in_the_error() -> None:
    with pytest.raises(InvalidUse) as caught:
        Environment("env", api_key="s3cret\n")
    assert "s3cret" not in str(caught.value)


def test_unambiguous_values_are_converted() -> None:
    env = Environment(
        "env@^1.2",
        ttl="1h30m",
        environment_variables={"A": 1, "B": 2.5, "C": None, "D": True, "E": Path("/x")},  # type: ignore[dict-item]
        arguments=("a", "b"),  # type: ignore[arg-type]
        timeout=5,
        max_retries=0,
        network=("example.com",),
        labels={},
        skip_for_healthy=1,  # type: ignore[arg-type]
    )
    assert env.environment_variables == {"A": "1", "B": "2.5", "D": "True", "E": "/x"}
    assert (env.arguments, env.timeout, env.network, env.skip_for_healthy) == (["a", "b"], 5.0, ["example.com"], True)


@pytest.mark.parametrize("n", [-1, 1.5, "2", None, True, [2]])
def test_an_invalid_batch_size_is_the_callers_fault(n: Any) -> None:
    with pytest.raises(InvalidUse, match="n must be"):
        Environment.batch("env", n)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"items": [{"ttl": "1h"}]}, r"items\[0\] has 'ttl'; expected datasource, environment_variables"),
        ({"items": [{}, "x"]}, r"items\[1\] must be a dict, not str"),
        ({"items": 3}, "items must be a list of dicts, not int"),
        ({"items": [{"environment_variables": ["A=1"]}]}, r"items\[0\]: environment_variables must be a dict"),
        ({"n": 2, "items": [{}]}, "n is 2, but there are 1 items"),
        ({"items": [{"seed": -1}]}, "seed must be at least 0"),
        ({"items": [{"labels": {"a": 1}}]}, r"labels\['a'\] must be a str"),
    ],
)
def test_an_invalid_item_of_a_batch_is_the_callers_fault(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidUse, match=words):
        Environment.batch("env", **arguments)


Use = Callable[[Any], Any]
CALLS: list[Use] = [
    lambda env: env.call_tool(""),
    lambda env: env.call_tool(None),
    lambda env: env.call_tool(7, {}),
    lambda env: env.call_tool(["echo"], {}),
    lambda env: env.call_tool(b"echo", {}),
    lambda env: env.call_tool("\ud800", {}),
    lambda env: env.call_tool("echo", ["a"]),
    lambda env: env.call_tool("echo", "a"),
    lambda env: env.call_tool("echo", 7),
    lambda env: env.call_tool("echo", {"a": NOTHING}),
    lambda env: env.call_tool("echo", {}, "5"),
    lambda env: env.call_tool("echo", {}, 0),
    lambda env: env.call_tool("echo", {}, -1),
    lambda env: env.call_tool("echo", {}, math.nan),
    lambda env: env.call_tool("echo", {}, math.inf),
    lambda env: env.call_function("", {}),
    lambda env: env.call_function(7, {}),
    lambda env: env.call_function("f", ["a"]),
    lambda env: env.call_function("f", {}, "5"),
    lambda env: env.call_reward(["a"]),
    lambda env: env.call_reward({}, name=7),
    lambda env: env.call_reward({}, "5"),
    lambda env: env.check_health(["a"]),
    lambda env: env.check_health({}, "5"),
    lambda env: env.exec(""),
    lambda env: env.exec([]),
    lambda env: env.exec(7),
    lambda env: env.exec(b"ls"),
    lambda env: env.exec(["ls", 7]),
    lambda env: env.exec("a\0b"),
    lambda env: env.exec("ls", "5"),
    lambda env: env.exec("ls", 0),
    lambda env: env.exec("ls", cwd=7),
    lambda env: env.exec("ls", stdin=["x"]),
    lambda env: env.exec("ls", interactive=True),
    lambda env: env.exec("ls", tty=True, background=True),
    lambda env: env.exec("ls", env={"A=B": "c"}),
    lambda env: env.exec("ls", stdin=None),
    lambda env: env.upload(7, "/x"),
    lambda env: env.upload(None, "/x"),
    lambda env: env.upload(["x"], "/x"),
    lambda env: env.upload(b"x", ""),
    lambda env: env.upload(b"x", 7),
    lambda env: env.upload(b"x", "/a\0b"),
    lambda env: env.upload(b"x", "/x", "5"),
    lambda env: env.download(""),
    lambda env: env.download(7),
    lambda env: env.download("/x", -1),
    lambda env: env.download_to("", Path("x")),
    lambda env: env.download_to("/x", 7),
    lambda env: env.download_to("/x", None),
    lambda env: env.download_to("/x", Path("x"), "5"),
    lambda env: env.renew(60),
    lambda env: env.renew("60"),
    lambda env: env.renew(None),
    lambda env: env.logs("3"),
    lambda env: env.logs(-1),
    lambda env: env.presign_url("80"),
    lambda env: env.presign_url(0),
    lambda env: env.presign_url(70000),
    lambda env: env.presign_url(80, 0),
    lambda env: env.presign_url(80, 1.5),
    lambda env: env.wait_for_ready("5"),
    lambda env: env.wait_for_ready(0),
]


@pytest.mark.parametrize("call", CALLS)
def test_an_invalid_argument_of_a_method_is_the_callers_fault_and_nothing_is_sent(
    call: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AENV_INSTANCE_URL", "http://127.0.0.1:9")
    env = Environment("env", skip_for_healthy=True)

    async def main() -> None:
        with pytest.raises(AEnvError) as caught:
            await call(env)
        assert caught.value.fault == "caller"

    run(main())
    with pytest.raises(AEnvError) as caught:
        call(SyncEnvironment.of(env))
    assert caught.value.fault == "caller"


USES: list[Use] = [
    lambda env: env.call_tool("echo", {}),
    lambda env: env.call_function("f"),
    lambda env: env.call_reward(),
    lambda env: env.check_health(),
    lambda env: env.list_tools(),
    lambda env: env.list_functions(),
    lambda env: env.get_env_info(),
    lambda env: env.renew(),
    lambda env: env.presign_url(80),
    lambda env: env.wait_for_ready(),
    lambda env: env.exec("ls"),
    lambda env: env.upload(b"", "/x"),
    lambda env: env.download("/x"),
    lambda env: env.download_to("/x", Path("x")),
]


@pytest.mark.parametrize("use", USES)
def test_use_after_release_is_the_callers_fault_and_creates_no_instance(use: Use) -> None:
    env = Environment("env")  # it cannot be started, so the errors are not those of a start

    async def main() -> None:
        await env.release()
        with pytest.raises(InvalidUse, match="released") as caught:
            await use(env)
        assert caught.value.fault == "caller"
        assert isinstance(caught.value, EnvironmentError)
        assert isinstance(caught.value, UsageError)

    run(main())


def test_a_batch_after_its_release_is_the_callers_fault() -> None:
    async def main() -> None:
        batch: Batch = Environment.batch("env", 2)
        await batch.release()
        with pytest.raises(InvalidUse, match="released"):
            await batch.all()
        with pytest.raises(InvalidUse, match="released"):
            async for _ in batch:
                pass

    run(main())


@pytest.mark.attack("platform")
@pytest.mark.parametrize("answer", ["unix:/var/run/docker.sock", "unix:///run/systemd/private"])
def test_a_remote_platform_cannot_name_a_local_socket(answer: str) -> None:
    planes = Planes.parse("http://platform.example:8080")
    placement = PlatformPlacement(planes, timeout=1.0, startup_timeout=1.0, max_retries=0, token=None)
    client = placement.client(EnvInstance(id="i", status=EnvStatus.RUNNING, data_url=answer, token="t"))
    assert (client.url.host, client.url.uds) == ("platform.example", None)
