"""Commands in an instance: streamed, interactive, in the background; in the SDK, the CLI and over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import websockets

from aenv.cli.inside.text import printable
from aenv.errors import InvalidArguments, InvalidUse, NotFound
from aenv.sdk.blocking import SyncEnvironment
from aenv.sdk.environment import Environment
from aenv.sdk.inside.remote_process import Process
from tests.conftest import run
from tests.inside.conftest import Place
from tests.platform.parts import Served
from tests.waiting import wait_while

STATUS = "grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp:)' /proc/self/status"


async def gone(env: Environment, word: str) -> None:
    """Wait until no process has this word in its command line; write it so that it does not match itself."""
    assert (await env.exec(f"while pgrep -f '{word}' >/dev/null; do sleep 0.05; done")).exit_code == 0


def test_a_runtime_loads_nothing_of_commands_and_files_at_its_start() -> None:
    code = "import sys, aenv.runtime.sandboxed; print([m for m in sys.modules if 'inside' in m or 'websocket' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_output_arrives_while_the_command_runs(place: Place) -> None:
    async def main() -> None:
        async with place.environment() as env:
            command = 'echo "$GREETING from $PWD"; echo oops >&2; until [ -e /tmp/go ]; do sleep 0.02; done; exit 3'
            process = await env.exec(command, stream=True, cwd="/tmp", env={"GREETING": "hello"})
            texts = {"stdout": "", "stderr": ""}
            while not all(texts.values()):
                chunk = await process.read()
                assert chunk is not None
                texts[chunk.stream] += chunk.text
            assert texts == {"stdout": "hello from /tmp\n", "stderr": "oops\n"}
            await env.exec("touch /tmp/go")
            result = await process.wait()
            assert (result.exit_code, result.stdout, result.timed_out) == (3, "", False)
            found = [chunk.text async for chunk in env.exec(["printf", "%s", "a b"], stream=True)]
            assert "".join(found) == "a b"

    run(main())


def test_input_is_given_whole_or_piece_by_piece(place: Place) -> None:
    async def main() -> None:
        async with place.environment() as env:
            data = bytes(range(256)) * 4096
            assert (await env.exec("wc -c; exit 4", stdin=data)).stdout.strip() == str(len(data))
            process = env.exec("cat", stream=True, stdin=data)
            assert b"".join([chunk.data async for chunk in process]) == data
            async with env.exec("cat; echo end", stream=True, interactive=True) as cat:
                await cat.write("one\n")
                first = await cat.read()
                assert first is not None
                assert first.text == "one\n"
                await cat.close_stdin()
                assert (await cat.wait()).stdout == "end\n"
            with pytest.raises(InvalidUse, match="either stdin or interactive"):
                env.exec("cat", stream=True, interactive=True, stdin="x")

    run(main())


def test_a_background_process_outlives_its_caller_and_takes_input_and_signals(place: Place) -> None:
    async def main() -> None:
        async with place.environment(keep_alive=True) as first:
            line = "trap 'echo bye; exit 5' TERM; read line; echo $line; while :; do sleep 0.05; done"
            started = await first.exec(line, background=True, interactive=True)
            instance_id = (await first.get_env_info())["instance_id"]
        async with place.environment(instance_id=instance_id) as env:
            listed = await env.processes()
            assert [(each["id"], each["exit_code"], each["detached"]) for each in listed] == [(started.id, None, True)]
            process = env.process(listed[0]["id"])
            await process.write("hello\n")
            chunk = await process.read()
            assert chunk is not None
            assert chunk.text == "hello\n"
            await process.kill("TERM")
            result = await env.process(listed[0]["id"]).wait()  # what is kept of its output, from the start
            assert (result.exit_code, result.stdout) == (5, "hello\nbye\n")
            await process.close()
            with pytest.raises(NotFound, match="no process 99"):
                await env.process(99).wait()
            with pytest.raises(InvalidArguments, match="no signal"):
                await (await env.exec("sleep 9", background=True)).kill("NOSUCH")
            await env.exec("true")
        await asyncio.to_thread(place.aenv, "instance", "delete", "--yes", instance_id)

    run(main())


def test_a_stream_that_is_closed_or_cancelled_leaves_no_process(place: Place) -> None:
    async def main() -> None:
        async with place.environment() as env:
            process = await env.exec("sleep 701 & sleep 702", stream=True)
            await process.close()
            await gone(env, "sleep 70[12]")
            cancelled = await env.exec("echo; sleep 703", stream=True)
            task = asyncio.ensure_future(cancelled.wait())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            left = env.exec("echo x; trap '' HUP; sleep 704", stream=True)
            async for _ in left:
                break
            await env.exec("true")
            for each in (cancelled, left):
                await each.close()
            await gone(env, "sleep 70[34]")
            assert await env.processes() == []

    run(main())


def test_a_process_waits_for_a_reader_that_is_slow(place: Place) -> None:
    async def main() -> None:
        async with place.environment() as env:
            process = await env.exec("head -c 100000000 /dev/zero; touch /tmp/done", stream=True)
            size = len((await process.read()).data)  # type: ignore[union-attr]
            assert (await env.exec("sleep 0.3; ls /tmp/done")).exit_code == 2
            async for chunk in process:
                size += len(chunk.data)
            assert size == 100_000_000
            assert await env.files.exists("/tmp/done")

    run(main())


def test_a_time_limit_kills_the_command_and_its_children(place: Place) -> None:
    async def main() -> None:
        async with place.environment() as env:
            result = await (await env.exec("echo begun; sleep 801 & sleep 802", 0.3, stream=True)).wait()
            assert (result.exit_code, result.timed_out, result.stdout) == (-9, True, "begun\n")
            await gone(env, "sleep 80[12]")
            with pytest.raises(TimeoutError):
                await (await env.exec("sleep 803", stream=True)).wait(timeout=0.05)

    run(main())


def test_a_program_that_does_not_exist_is_a_result(place: Place) -> None:
    async def main() -> None:
        async with place.environment() as env:
            result = await (await env.exec(["no-such-program"], stream=True)).wait()
            assert result.exit_code == 127
            assert "No such file" in result.stderr
            with pytest.raises(InvalidArguments, match="No such file"):
                await env.exec(["no-such-program"], background=True)
            with pytest.raises(InvalidArguments, match="null byte"):
                await Process(env, {"command": ["echo", "a\0b"]})

    run(main())


def test_a_command_has_the_rights_of_a_tool_program_and_no_others(local: Place) -> None:
    source = Path(local.env_name) / "src" / "env.py"
    source.write_text(
        "import subprocess\nfrom aenv import register_tool\n\n\n@register_tool\ndef status() -> str:\n"
        f'    return subprocess.run(["sh", "-c", "{STATUS}"], capture_output=True, text=True).stdout\n'
    )
    private = Path(local.env_name) / "private"
    private.mkdir()
    (private / "answer.txt").write_text("42")

    async def main() -> None:
        async with local.environment() as env:
            tool = (await env.call_tool("status")).data
            assert "Seccomp:\t2" in tool
            assert (await env.exec(STATUS)).stdout == tool
            assert (await (await env.exec(STATUS, stream=True)).wait()).stdout == tool
            assert (await (await env.exec(STATUS, background=True)).wait()).stdout == tool
            on_terminal = (await (await env.exec(STATUS, stream=True, tty=True)).wait()).stdout
            assert on_terminal.replace("\r\n", "\n") == tool
            spied = await (await env.exec("cat /app/private/* /proc/1/environ; echo; grep . /proc/1/mem /proc/1/maps",
                                          stream=True, tty=True)).wait()  # fmt: skip
            assert "42" not in spied.stdout
            assert spied.stdout.count("Permission denied") == 3
            opened = (await (await env.exec("ls -l /proc/self/fd", stream=True)).wait()).stdout
            assert len(re.findall(r" -> ", opened)) == 4, opened  # 0, 1, 2, and the folder itself

    run(main())


def test_the_blocking_environment_has_processes_files_and_ports(local: Place) -> None:
    with SyncEnvironment(local.env_name) as env:
        assert env.exec("echo $A", env={"A": "b"}).stdout == "b\n"
        with env.exec("cat", stream=True, interactive=True) as process:
            process.write("x\n")
            process.close_stdin()
            assert "".join(chunk.text for chunk in process) == "x\n"
            assert process.exit_code == 0
        background = env.exec("sleep 600", background=True)
        assert background.id is not None
        env.process(background.id).kill()
        assert background.wait().exit_code == -9
        assert env.processes()[0]["exit_code"] == -9
        env.files.write("/tmp/folder/file", "text")
        with env.files.watch("/tmp/folder") as changes:
            env.files.remove("/tmp/folder/file")
            assert next(iter(changes)).type == "removed"
        assert env.files.list("/tmp/folder") == []
        with env.forward(9) as forwarded:
            assert forwarded.url == f"http://127.0.0.1:{forwarded.port}"


# --- the command line


def test_the_cli_streams_output_and_passes_input_and_exit_codes(place: Place) -> None:
    async def main() -> None:
        async with place.environment() as env:
            name = (await env.get_env_info())["instance_id"]

            def check() -> None:
                line = "echo $A $PWD; echo e >&2; exit 9"
                done = place.aenv("instance", "exec", "-e", "A=b", "-w", "/tmp", name, line, code=9)
                assert (done.stdout, done.stderr) == (b"b /tmp\n", b"e\n")
                assert place.aenv("instance", "exec", "-i", name, "cat", stdin=b"\x1b\xff").stdout == b"\x1b\xff"
                assert place.aenv("instance", "exec", name, "cat", stdin=b"not sent").stdout == b""
                assert place.aenv("instance", "exec", name, "kill -9 $$", code=137).stdout == b""
                done = place.aenv("instance", "exec", "--timeout", "0.2", name, "sleep", "60", code=1)
                assert b"timed out" in done.stderr

            await asyncio.to_thread(check)

    run(main())


@pytest.mark.long
def test_the_cli_runs_commands_in_the_background(place: Place) -> None:
    async def main() -> None:
        async with place.environment() as env:
            name = (await env.get_env_info())["instance_id"]

            def check() -> None:
                command = "trap 'echo stop; exit 6' TERM; echo up; while :; do sleep 0.05; done"
                number = place.aenv("instance", "exec", "-d", name, command).stdout.decode().strip()
                listed = json.loads(place.aenv("instance", "processes", name, "-o", "json").stdout)
                assert [(each["id"], each["command"]) for each in listed] == [(int(number), command)]
                place.aenv("instance", "kill", name, number)
                assert place.aenv("instance", "attach", name, number, code=6).stdout == b"up\nstop\n"
                assert b"exit code 6" in place.aenv("instance", "processes", name).stdout

            await asyncio.to_thread(check)

    run(main())


def test_ctrl_c_of_the_cli_interrupts_the_command(place: Place) -> None:
    async def main() -> None:
        async with place.environment() as env:
            name = (await env.get_env_info())["instance_id"]
            line = "trap 'echo got it; exit 8' INT; echo ready; while :; do sleep 0.05; done"
            words = place.command("instance", "exec", name, line)
            with subprocess.Popen(
                words, env={**os.environ, **place.variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as process:
                assert process.stdout is not None
                assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"
                process.send_signal(signal.SIGINT)
                rest, _ = await asyncio.to_thread(process.communicate)
                assert (rest, process.returncode) == (b"got it\n", 8)

    run(main())


def test_escape_sequences_reach_a_terminal_as_visible_text(local: Place) -> None:
    async def main() -> None:
        async with local.environment() as env:
            name = (await env.get_env_info())["instance_id"]
            master, slave = os.openpty()
            words = local.command("instance", "exec", name, r"printf '\033]0;evil\007\n\302\233'")
            try:
                process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave)
                assert await asyncio.to_thread(process.wait) == 0
                assert os.read(master, 4096) == b"^[]0;evil^G\r\n\\x9b"
            finally:
                os.close(master)
                os.close(slave)

    run(main())
    assert printable("a\tb\r\n\x1b[31m\x7f") == "a\tb\r\n^[[31m^?"


# --- plain HTTP


def test_commands_over_plain_http(remote: Place, served: tuple[Served, str]) -> None:
    platform, token = served

    def post(path: str, body: object, method: str = "POST") -> bytes:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(platform.url + path, data, {"authorization": f"Bearer {token}"}, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: bytes = answer.read()
            return found

    async def main() -> None:
        async with remote.environment() as env:
            base = f"/env-instance/{(await env.get_env_info())['instance_id']}/exec"

            def check() -> None:
                lines = post(base, {"command": "echo é; echo b >&2; exit 2", "stream": True}).splitlines()
                found = [json.loads(line) for line in lines]
                assert {"stdout": "é\n"} in found
                assert {"stderr": "b\n"} in found
                assert found[-1] == {"exit_code": 2, "timed_out": False}
                made = json.loads(post(base, {"command": "cat", "detach": True, "interactive": True}))["data"]
                one = f"{base}/{made['id']}"
                post(f"{one}/stdin", b"given")
                post(f"{one}/stdin?eof=true", b"")
                assert json.loads(post(f"{one}?wait=20", None, "GET"))["data"]["exit_code"] == 0
                lines = post(f"{one}/output", None, "GET").splitlines()
                assert next(json.loads(line) for line in lines) == {"stdout": "given"}
                second = json.loads(post(base, {"command": ["sleep", "600"], "detach": True}))["data"]
                post(f"{base}/{second['id']}/signal", {"signal": 9})
                assert json.loads(post(f"{base}/{second['id']}?wait=20", None, "GET"))["data"]["exit_code"] == -9
                assert len(json.loads(post(base, None, "GET"))["data"]) == 2
                wrong: tuple[object, ...] = (
                    {"command": "ls", "tty": True},
                    {"command": []},
                    {"command": "x", "rows": 0},
                )
                for body in wrong:
                    with pytest.raises(urllib.error.HTTPError, match="422"):
                        post(base, body)

            await asyncio.to_thread(check)

    run(main())


def test_any_websocket_client_can_run_a_command(remote: Place, served: tuple[Served, str]) -> None:
    platform, token = served

    async def main() -> None:
        async with remote.environment() as env:
            name = (await env.get_env_info())["instance_id"]
            for base in (f"/instance/{name}", f"/env-instance/{name}"):
                url = platform.url.replace("http", "ws") + base + "/exec"
                headers = {"authorization": f"Bearer {token}"}
                async with websockets.connect(url, additional_headers=headers) as socket:
                    await socket.send(json.dumps({"command": ["cat"], "interactive": True}))
                    assert json.loads(await socket.recv())["type"] == "started"
                    await socket.send(b"x" * 300_000)
                    data = b""
                    while len(data) < 300_000:
                        message = await socket.recv()
                        assert isinstance(message, bytes)
                        assert message[0] == 1
                        data += message[1:]
                    await (await socket.ping())
                    await socket.send('{"type": "eof"}')
                    assert json.loads(await socket.recv()) == {"type": "exit", "exit_code": 0, "timed_out": False}
                async with websockets.connect(url, additional_headers=headers) as socket:
                    await socket.send("nonsense")
                    assert json.loads(await socket.recv())["code"] == "invalid_arguments"
                with pytest.raises(websockets.InvalidStatus, match="401"):
                    await websockets.connect(url)

    run(main())


def test_a_client_that_is_killed_leaves_no_process(remote: Place) -> None:
    async def main() -> None:
        async with remote.environment() as env:
            name = (await env.get_env_info())["instance_id"]
            words = remote.command("instance", "exec", name, "echo up; sleep 901")
            with subprocess.Popen(words, env={**os.environ, **remote.variables}, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                assert await asyncio.to_thread(process.stdout.readline) == b"up\n"
                process.kill()
            await gone(env, "sleep 90[1]")
            await asyncio.to_thread(wait_while, lambda: asyncio.run(_processes(remote, name)), "a process is left")

    async def _processes(place: Place, name: str) -> list[object]:
        async with place.environment(instance_id=name) as env:
            return list(await env.processes())

    run(main())
