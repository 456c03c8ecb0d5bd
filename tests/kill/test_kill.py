"""Any process is killed at any moment: nothing is left behind, and the next `Environment` works."""

from __future__ import annotations

import contextlib
import os
import random
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from aenv.client import local_lease, platform_identity
from aenv.errors import AEnvError
from aenv.sdk.blocking import SyncEnvironment
from tests.isolation.host import Platform, Process, forget_lease
from tests.waiting import wait_while

HERE = Path(__file__).parent
NAP = str(HERE / "nap")
ROUNDS = int(os.environ.get("AENV_KILL_ROUNDS", "12"))
SEED = int(os.environ.get("AENV_KILL_SEED", "0")) or random.randrange(1, 1 << 32)
WAIT = 30.0

Client = subprocess.Popen[bytes]


@contextlib.contextmanager
def client(count: int = 2, **variables: str) -> Iterator[Client]:
    """A program with some instances."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "client.py"), NAP, str(count)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **variables},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def line_of(process: Client, seconds: float = WAIT) -> str:
    """The next line that it prints; empty when it ended, or has nothing to say for so long."""
    stream: IO[bytes] | None = process.stdout
    assert stream is not None
    if not select.select([stream], [], [], seconds)[0]:
        return ""
    return stream.readline().decode().strip()


def tell(process: Client, word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n".encode())
    process.stdin.flush()


def works() -> None:
    """The next one works."""
    with SyncEnvironment(NAP) as env:
        assert env.call_tool("nap", {"seconds": 0}).data == "slept"


def victim(platform: Platform, who: str, dice: random.Random) -> Process | None:
    """One of those that are there; None when there is none yet."""
    found = {"server": platform.servers, "parent": platform.zygotes, "instance": platform.instances}[who]()
    return dice.choice(found) if found else None


def in_use(platform: Platform) -> list[str]:
    """Instances that somebody has, by the platform's own account."""
    from aenv.client.platform_client import ApiClient
    from tests.conftest import run

    async def ask() -> list[str]:
        async with ApiClient(platform.paths.url, timeout=WAIT, max_retries=0) as api:
            return [instance.id for instance in await api.list_env_instances()]

    return list(run(ask()))


@pytest.mark.timeout(60 + 20 * ROUNDS)
def test_killing_any_process_at_any_moment_leaves_nothing(platform: Platform) -> None:
    print(f"AENV_KILL_SEED={SEED} repeats this")
    dice = random.Random(SEED)
    for number in range(ROUNDS):
        who = ("client", "server", "parent", "instance")[number % 4]
        early = dice.random() < 0.4
        with client(dice.randint(1, 4)) as process:
            if early:
                line_of(process, dice.uniform(0.1, 3.0))  # wherever it is by then
            else:
                assert line_of(process).startswith("ready"), platform.log()
                for _ in range(dice.randint(0, 5)):
                    line_of(process)
            platform.processes()
            target = None if who == "client" else victim(platform, who, dice)
            print(f"round {number}: {who} {target or process.pid}{' early' if early else ''}")
            if target is not None:
                target.kill()
                wait_while(lambda target=target: target.alive, f"{who} survives SIGKILL")  # type: ignore[misc]
                if dice.random() < 0.5:
                    line_of(process, 5.0)  # see that it is told, and goes on or ends
            process.kill()
            process.wait()
        if platform.server() is None or dice.random() < 0.3:
            platform.stop()
        else:
            wait_while(lambda: in_use(platform), "instances outlive their client")
    works()


@pytest.mark.long
@pytest.mark.parametrize("who", ["server", "parent", "instance"])
def test_a_client_gets_an_error_after_a_kill_and_the_next_environment_works(platform: Platform, who: str) -> None:
    with SyncEnvironment(NAP, timeout=20, max_retries=0) as env:  # else it knocks at a closed door for ten seconds
        assert env.call_tool("nap", {"seconds": 0}).data == "slept"
        targets = {"server": platform.servers, "parent": platform.zygotes, "instance": platform.instances}[who]()
        assert targets
        for target in targets:
            target.kill()
        wait_while(lambda: [p for p in targets if p.alive], f"{who} survives SIGKILL")
        wait_while(platform.instances if who != "instance" else list, "instances survive")
        with pytest.raises(AEnvError) as caught:
            env.call_tool("nap", {"seconds": 0}, timeout=20)
        assert caught.value.fault == "infra"
        if who == "server":
            forget_lease()
    works()


def test_a_client_that_ends_without_release_takes_its_instances_with_it(platform: Platform) -> None:
    with client(3) as process:
        names = line_of(process).split()[1:]
        assert len(names) == 3
        assert set(in_use(platform)) == set(names)
        tell(process, "leave")
        assert process.wait(WAIT) == 0
    wait_while(lambda: in_use(platform), "instances outlive their client")
    wait_while(
        lambda: [p for p in platform.runtime.rglob("*.sock") if p.stem in {n.rpartition("-")[2] for n in names}],
        "sockets outlive their client",
    )
    works()


def test_two_programs_share_one_platform_and_not_their_instances(platform: Platform) -> None:
    with client(1) as one, client(1) as other:
        mine, theirs = line_of(one).split()[1], line_of(other).split()[1]
        assert len(platform.servers()) == 1
        assert set(in_use(platform)) == {mine, theirs}
        tell(one, "release")
        assert one.wait(WAIT) == 0
        wait_while(lambda: set(in_use(platform)) - {theirs}, "a released instance is still there")
        assert [line_of(other) for _ in range(3)] == ["called"] * 3
        assert in_use(platform) == [theirs]


@pytest.mark.long
def test_eight_programs_that_begin_at_once_start_one_platform(platform: Platform) -> None:
    with contextlib.ExitStack() as stack:
        everybody = [stack.enter_context(client(1)) for _ in range(8)]
        seen: set[Process | None] = set()
        for process in everybody:
            while not (said := line_of(process, 0.2)).startswith("ready"):
                seen.add(platform.server())
                assert process.poll() is None, said
        assert len({server.pid for server in [*seen, platform.server()] if server is not None}) == 1
        assert len(in_use(platform)) == 8


@pytest.mark.long
@pytest.mark.parametrize("linger", ["0", "0.5"])
def test_an_unused_platform_ends_by_itself(platform: Platform, linger: str) -> None:
    with client(2, AENV_LOCAL_LINGER=linger) as process:
        assert line_of(process).startswith("ready"), platform.log()
        assert platform.servers()
        tell(process, "release")
        assert process.wait(WAIT) == 0
    wait_while(platform.left_behind, "left behind by a platform that ended by itself")


@pytest.mark.long
def test_a_platform_of_another_version_is_not_ended_while_it_is_used(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client(1) as process:
        assert line_of(process).startswith("ready")
        old = platform.server()
        assert old is not None
        monkeypatch.setattr(platform_identity, "__version__", "0.0.0+another")  # what this program was upgraded to
        monkeypatch.setattr(local_lease, "_lease", None)
        works()
        new = platform.server()
        assert new is not None
        assert new.pid != old.pid
        assert old.alive


def kill_the_server(platform: Platform) -> None:
    works()
    for process in platform.servers():
        process.kill()
    wait_while(platform.servers, "the server survives SIGKILL")


@pytest.mark.long
def test_the_socket_of_a_killed_platform_does_not_keep_others_from_starting(platform: Platform) -> None:
    kill_the_server(platform)
    forget_lease()
    works()


def test_the_socket_of_a_killed_platform_is_removed(platform: Platform) -> None:
    kill_the_server(platform)
    wait_while(lambda: platform.paths.socket.exists(), "the socket is still there", seconds=2)


def open_sockets() -> set[str]:
    """The sockets of this process, by their numbers in the kernel."""
    links = (os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    return {link for link in links if link.startswith("socket:")}


@pytest.mark.long
def test_a_program_that_outlives_its_platform_leaves_no_socket_open(platform: Platform) -> None:
    forget_lease()
    before = open_sockets()
    local_lease.open_lease()
    leased = open_sockets() - before
    kill_the_server(platform)
    works()
    assert leased
    assert not leased & open_sockets()


def test_stopping_a_platform_ends_everything(platform: Platform) -> None:
    with client(3) as process:
        assert line_of(process).startswith("ready")
        assert len(platform.instances()) >= 3
        platform.stop()
        assert local_lease.stop(platform.paths) is False


def test_a_platform_whose_crash_cleanup_was_killed_leaves_nothing_when_it_is_stopped(platform: Platform) -> None:
    works()
    cleanups = [process for process in platform.processes() if "crash_cleanup" in process.command]
    assert cleanups
    for cleanup in cleanups:
        cleanup.kill()
    platform.stop()
