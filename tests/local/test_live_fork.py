"""Fork, checkpoint and rewind running instances, through the SDK and the local platform."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from aenv import Environment
from aenv.errors import AEnvError, ForkRefused, InvalidUse
from tests.local_instances import local_api

CODE = """
import os, random, sqlite3, threading, time, uuid
from aenv import on_fork, register_function, register_reward, register_tool

numbers = []
memory = sqlite3.connect(":memory:", check_same_thread=False)
memory.execute("create table seen (n int)")
opened = {}

@register_tool
def add(number: int) -> list:
    numbers.append(number)
    memory.execute("insert into seen values (?)", (number,))
    for path in ("/tmp/numbers", "numbers.txt", os.path.expanduser("~/numbers")):
        with open(path, "a") as file:
            file.write(f"{number} ")
    return numbers

@register_function
def state() -> dict:
    paths = ("/tmp/numbers", "numbers.txt", os.path.expanduser("~/numbers"))
    texts = [open(path).read() if os.path.exists(path) else "" for path in paths]
    rows = [n for n, in memory.execute("select n from seen")]
    return {"numbers": numbers, "texts": texts, "rows": rows, "mine": os.environ.get("MINE")}

@register_function
def draw() -> list:
    return [random.random(), uuid.uuid4().hex, os.urandom(8).hex()]

@register_function
def edit(path: str, text: str = "") -> str:
    if text:
        with open(path, "w") as file:
            file.write(text)
    elif os.path.exists(path):
        os.remove(path)
    return ""

@register_function
def listing(path: str) -> list:
    return sorted(os.listdir(path))

@register_function
def open_file(path: str) -> str:
    opened["file"] = open(path, "w+")
    return ""

@register_function
def write(text: str) -> str:
    opened["file"].write(text)
    opened["file"].flush()
    opened["file"].seek(0)
    return opened["file"].read()

@register_function
def forget(path: str) -> str:
    os.remove(path)
    return ""

@register_function
def start_thread() -> str:
    threading.Thread(target=time.sleep, args=(600,), name="mine", daemon=True).start()
    return ""

@register_function
def exists(path: str) -> bool:
    return os.path.exists(path)

@register_tool
def slow(gate: str) -> str:
    open(gate + ".waits", "w").close()
    while not os.path.exists(gate):
        time.sleep(0.005)
    numbers.append("slow")
    return "slept"

@register_function
def forget_slow() -> str:
    numbers.remove("slow")
    return ""

@register_function
def about() -> dict:
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file.read().splitlines())
    names = ("CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp", "Seccomp_filters", "Uid")
    fds = [name for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")]
    def refused(act) -> bool:
        try:
            act()
        except OSError:
            return True
        return False
    return {
        "status": {name: status[name].strip() for name in names},
        "pid": os.getpid(),
        "processes": sorted(name for name in os.listdir("/proc") if name.isdigit()),
        "links": fds,
        "memory_closed": refused(lambda: open("/proc/self/mem", "rb")),
        "unshare_refused": refused(lambda: os.unshare(0x10000000)) if hasattr(os, "unshare") else True,
    }

@register_reward
def total() -> float:
    return float(sum(numbers))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "forked"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "env.py").write_text(CODE)
    (folder / "src" / "shipped.txt").write_text("as shipped")
    (folder / "config.json").write_text('{"name": "forked", "version": "1.0.0", "buildConfig": {}, "deployConfig": {}}')
    return folder


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 120))


async def forks(env: Environment, n: int | None = None, **options: Any) -> list[Environment]:
    return environments(await env.fork(n, **options))


def environments(made: list[Environment | AEnvError]) -> list[Environment]:
    for each in made:
        if isinstance(each, AEnvError):
            raise each
    return [each for each in made if isinstance(each, Environment)]


async def release(*envs: Environment) -> None:
    for env in envs:
        await env.release()


async def state(env: Environment) -> dict[str, Any]:
    found: dict[str, Any] = await env.call_function("state")
    return found


def expected(*numbers: int, mine: str | None = None) -> dict[str, Any]:
    text = "".join(f"{number} " for number in numbers)
    return {"numbers": list(numbers), "texts": [text] * 3, "rows": list(numbers), "mine": mine}


def test_forks_continue_from_where_the_instance_is_and_do_not_see_each_other(project: Path) -> None:
    async def work() -> None:
        async with Environment(str(project), forkable=True) as env:
            await env.call_tool("add", {"number": 1})
            one, two = await forks(env, 2)
            await one.call_tool("add", {"number": 10})
            await two.call_tool("add", {"number": 20})
            await env.call_tool("add", {"number": 2})
            assert [await state(each) for each in (env, one, two)] == [expected(1, 2), expected(1, 10), expected(1, 20)]
            assert [await each.call_reward() for each in (env, one, two)] == [3.0, 11.0, 21.0]
            assert len({each.instance_id for each in (env, one, two)}) == 3
            await release(one, two)
            assert await state(env) == expected(1, 2)

    run(work)


def test_a_fork_outlives_the_instance_and_can_be_forked_again_and_again(project: Path) -> None:
    async def work() -> None:
        env = Environment(str(project), forkable=True)
        await env.initialize()
        for number in range(40):  # deeper than namespaces can be nested
            await env.call_tool("add", {"number": number})
            (child,) = await forks(env)
            await env.release()
            env = child
        assert await state(env) == expected(*range(40))
        await env.release()

    run(work)


def test_variables_labels_and_random_numbers_are_the_forks_own(project: Path) -> None:
    async def work() -> None:
        async with Environment(str(project), forkable=True, environment_variables={"MINE": "parent"}) as env:
            await env.call_tool("add", {"number": 1})
            items = [
                {"environment_variables": {"MINE": "first"}, "labels": {"branch": "1"}},
                {},
                {"seed": 7},
                {"seed": 7},
            ]
            made = await forks(env, items=items)
            assert [(await state(each))["mine"] for each in (env, *made)] == [
                "parent", "first", "parent", "parent", "parent",
            ]  # fmt: skip
            drawn = [await each.call_function("draw") for each in (env, *made)]
            assert len({each[0] for each in drawn}) == 4
            assert drawn[3][0] == drawn[4][0]
            assert len({each[1] for each in drawn}) == len({each[2] for each in drawn}) == 5
            assert made[0].labels == {"branch": "1"}
            await release(*made)

    run(work)


def test_a_rewind_goes_back_and_keeps_the_identity(project: Path) -> None:
    async def work() -> None:
        async with Environment(str(project), forkable=True) as env:
            await env.call_tool("add", {"number": 1})
            before = await env.checkpoint("start")
            name, url = env.instance_id, env.url
            for number in range(2, 5):
                await env.call_tool("add", {"number": number})
                assert await state(env) == expected(1, number)
                await env.rewind(before)
                assert await state(env) == expected(1)
            assert (env.instance_id, env.url) == (name, url)
            assert [(each.id, each.name) for each in await env.checkpoints()] == [(before.id, "start")]

    run(work)


def test_a_checkpoint_survives_its_instance_and_is_forked_by_its_id(project: Path) -> None:
    async def work() -> None:
        async with Environment(str(project), forkable=True) as env:
            await env.call_tool("add", {"number": 1})
            kept = await env.checkpoint()
            await env.call_tool("add", {"number": 2})
        one, two = environments(await Environment.from_checkpoint(kept.id, 2))
        await one.call_tool("add", {"number": 3})
        assert [await state(one), await state(two)] == [expected(1, 3), expected(1)]
        await one.delete_checkpoint(kept)
        await one.delete_checkpoint(kept)
        with pytest.raises(AEnvError):
            await two.rewind(kept)
        assert await state(two) == expected(1)
        await release(one, two)

    run(work)


def test_a_checkpoint_is_not_listed_as_an_instance_and_branches_are(project: Path) -> None:
    async def work() -> None:
        async with Environment(str(project), forkable=True) as env:
            kept = await env.checkpoint()
            (child,) = await forks(env)
            (grandchild,) = await forks(child)
            assert [(each.id, each.forked_from) for each in await env.branches()] == [
                (child.instance_id, env.instance_id),
                (grandchild.instance_id, child.instance_id),
            ]
            assert [each.instance_id for each in await env.checkpoints()] == [env.instance_id]
            async with local_api() as api:
                listed = {each.id for each in await api.list_env_instances()}
            assert kept.id not in listed
            assert child.instance_id in listed
            await release(child, grandchild)

    run(work)


def test_removed_and_changed_files_are_carried(project: Path) -> None:
    async def work() -> None:
        async with Environment(str(project), forkable=True) as env:
            await env.call_function("edit", {"path": "/app/src/shipped.txt"})
            await env.call_function("edit", {"path": "/app/src/new.txt", "text": "new"})
            before = await env.call_function("listing", {"path": "/app/src"})
            (child,) = await forks(env)
            assert await child.call_function("listing", {"path": "/app/src"}) == before
            assert "shipped.txt" not in before
            assert "new.txt" in before
            await release(child)

    run(work)


@pytest.mark.parametrize("deleted", [False, True])
def test_an_open_file_goes_on_at_its_position_in_the_forks_own_copy(project: Path, deleted: bool) -> None:
    async def work() -> None:
        async with Environment(str(project), forkable=True) as env:
            await env.call_function("open_file", {"path": "/tmp/open"})
            await env.call_function("write", {"text": "both "})
            if deleted:
                await env.call_function("forget", {"path": "/tmp/open"})
            (child,) = await forks(env)
            assert await child.call_function("write", {"text": "child"}) == "both child"
            assert await env.call_function("write", {"text": "parent"}) == "both parent"
            assert await child.call_function("write", {"text": "!"}) == "both child!"
            await release(child)

    run(work)


def test_a_thread_of_the_author_is_named_and_the_instance_goes_on(project: Path) -> None:
    async def work() -> None:
        async with Environment(str(project), forkable=True) as env:
            await env.call_function("start_thread")
            with pytest.raises(ForkRefused, match=r"thread: mine.*on_fork") as refused:
                await env.fork(1)
            assert refused.value.details["obstacles"] == [{"kind": "thread", "name": "mine"}]
            assert (await env.call_tool("add", {"number": 1})).is_error is False

    run(work)


def test_a_running_call_is_waited_for_or_refused(project: Path) -> None:
    async def work() -> None:
        async with Environment(str(project), forkable=True) as env:
            running = asyncio.create_task(env.call_tool("slow", {"gate": "/tmp/gate"}))
            while not await env.call_function("exists", {"path": "/tmp/gate.waits"}):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            with pytest.raises(ForkRefused, match="call has been running"):
                await env.fork(1, wait=0)
            await env.call_function("edit", {"path": "/tmp/gate", "text": "open"})
            (child,) = await forks(env, wait=60)
            assert not (await running).is_error
            assert "slow" in (await child.call_function("state"))["numbers"]
            await child.call_function("forget_slow")
            assert (await child.call_tool("add", {"number": 1})).is_error is False
            await release(child)

    run(work)


def test_forks_and_rewound_instances_have_no_more_rights_than_an_instance(project: Path) -> None:
    async def work() -> None:
        async with Environment(str(project)) as plain, Environment(str(project), forkable=True) as env:
            (child,) = await forks(env)
            (grandchild,) = await forks(child)
            await child.rewind(await grandchild.checkpoint())
            expected = await plain.call_function("about")
            for each in (env, child, grandchild):
                about = await each.call_function("about")
                assert about["status"] == expected["status"]
                assert set(about["status"]["CapEff"]) == {"0"}
                assert (about["pid"], about["processes"]) == (1, ["1"])
                assert about["memory_closed"]
                assert about["unshare_refused"]
            await release(child, grandchild)

    run(work)


def test_descriptors_do_not_pile_up_over_generations(project: Path) -> None:
    async def work() -> None:
        env = Environment(str(project), forkable=True)
        await env.initialize()
        counts = []
        for _ in range(8):
            counts.append(len((await env.call_function("about"))["links"]))
            (child,) = await forks(env)
            await env.release()
            env = child
        assert max(counts[4:]) <= max(counts[:4])
        await env.release()

    run(work)


HOOKED = """
import subprocess
from aenv import on_fork, register_function

helper = None
events = []

@register_function
def start() -> int:
    global helper
    helper = subprocess.Popen(["sleep", "600"])
    return helper.pid

@register_function
def running() -> list:
    return [helper is not None and helper.poll() is None, events]

if {hooked}:
    @on_fork
    def carry():
        global helper
        before, helper = helper, None
        if before is not None:
            before.kill()
            before.wait()
        events.append("before")
        is_child = yield
        events.append("child" if is_child else "instance")
        if before is not None:
            helper = subprocess.Popen(["sleep", "600"])
"""


@pytest.mark.parametrize("hooked", [False, True])
def test_a_program_is_refused_by_name_unless_a_hook_carries_it(project: Path, hooked: bool) -> None:
    (project / "src" / "env.py").write_text(HOOKED.replace("{hooked}", str(hooked)))

    async def work() -> None:
        async with Environment(str(project), forkable=True) as env:
            await env.call_function("start")
            if not hooked:
                with pytest.raises(ForkRefused, match=r"process: sleep \(\d+\).*on_fork"):
                    await env.fork()
                assert (await env.call_function("running"))[0] is True
                return
            (child,) = await forks(env)
            assert await env.call_function("running") == [True, ["before", "instance"]]
            assert await child.call_function("running") == [True, ["before", "child"]]
            await release(child)

    run(work)


def test_an_instance_that_was_not_made_forkable_says_what_to_do(project: Path) -> None:
    async def work() -> None:
        async with Environment(str(project)) as env:
            with pytest.raises(ForkRefused, match="forkable=True"):
                await env.fork()

    run(work)


def test_wrong_arguments_are_refused_before_anything_is_asked(project: Path) -> None:
    async def work() -> None:
        env = Environment(str(project), forkable=True)
        with pytest.raises(InvalidUse, match="its own 'memory'"):
            await env.fork(2, memory="1Gi")
        with pytest.raises(InvalidUse, match="wait"):
            await env.fork(2, wait=-1)
        assert env.instance_id is None

    run(work)
