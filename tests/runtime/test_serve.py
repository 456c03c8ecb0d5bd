"""``python -m aenv.main`` as a process: start, refusal, idling and end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from aenv.errors import Forbidden
from aenv.http.guard import refuse_web_pages
from aenv.http.messages import Request
from aenv.isolation.host_support import unsupported_reason
from aenv.runtime.container_command import has_own_network, is_container_command
from aenv.testing import running
from tests.conftest import ENVS, fetch


def main(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aenv.main", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **variables},
        check=False,
    )


def test_a_broken_environment_ends_with_its_own_exit_code(tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text("from aenv import register_tool\n\n1 / 0\n")
    done = main(str(tmp_path / "env.py"), "--port", "0")
    assert done.returncode == 4
    assert f"{tmp_path / 'env.py'}:3: ZeroDivisionError" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_open_address_needs_a_token_or_a_flag() -> None:
    done = main(str(ENVS / "everything.py"), "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 2
    assert "AENV_TOKEN" in done.stderr
    assert "--no-auth" in done.stderr


def _as_container_command(folder: Path, *options: str, **variables: str) -> subprocess.Popen[str]:
    """Start the server as process 1 in a network of its own, as a container's runtime does."""
    reason = unsupported_reason()
    if reason is not None:
        pytest.skip(f"no namespaces here: {reason}")
    (folder / "env.py").write_text(
        "from aenv import register_tool\n\n@register_tool\ndef one() -> int:\n    return 1\n"
    )
    return subprocess.Popen(
        ["unshare", "-Urpnf", "--kill-child", sys.executable, "-m", "aenv.main", str(folder), "--port", "0", *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "KUBERNETES_SERVICE_HOST": "10.0.0.1", **variables},
    )  # fmt: skip


def _announced(process: subprocess.Popen[str]) -> str:
    """Return its output until it serves, and end it."""
    with process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if "serving" in line:
                break
        process.kill()
        return said


def test_the_command_of_a_container_serves_at_every_address_and_says_so(tmp_path: Path) -> None:
    said = _announced(_as_container_command(tmp_path))
    assert "at http://0.0.0.0:" in said
    assert "without a token" in said
    assert "without a token" not in _announced(_as_container_command(tmp_path, AENV_TOKEN="t"))
    assert "at http://127.0.0.1:" in _announced(_as_container_command(tmp_path, AENV_HOST="127.0.0.1"))


def test_a_program_on_a_machine_serves_on_loopback(tmp_path: Path) -> None:
    with running(ENVS / "everything.py", log=tmp_path / "log") as server:
        assert "127.0.0.1" in server.url


@pytest.mark.parametrize(
    ("pid", "parent", "marker", "expected"),
    [(1, 0, "", True), (7, 1, ".dockerenv", True), (7, 0, "run/.containerenv", True), (7, 3, ".dockerenv", False),
     (7, 1, "", False)],
)  # fmt: skip
def test_a_container_is_recognised_by_its_first_process(
    tmp_path: Path, pid: int, parent: int, marker: str, expected: bool
) -> None:
    if marker:
        (tmp_path / marker).parent.mkdir(exist_ok=True)
        (tmp_path / marker).touch()
    assert is_container_command(tmp_path, pid, parent) is expected


@pytest.mark.parametrize(
    ("paths", "expected"),
    [(["lo", "eth0"], True), (["lo", "eth0/device"], False), (["lo", "docker0/bridge", "eth0"], False), ([], True)],
)
def test_the_network_of_a_host_has_a_card_or_bridges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: list[str], expected: bool
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for path in paths:
        (tmp_path / "sys/class/net" / path).mkdir(parents=True)
    assert has_own_network(tmp_path) is expected


def test_a_web_page_from_elsewhere_cannot_use_an_open_server_without_a_token() -> None:
    request = Request()
    request.headers = [(b"host", b"box:8081"), (b"origin", b"https://evil.example")]
    with pytest.raises(Forbidden):
        refuse_web_pages(request, "", names=(b"origin",))
    request.headers = [(b"host", b"box:8081"), (b"origin", b"http://localhost:6274")]
    refuse_web_pages(request, "", names=(b"origin",))


@pytest.mark.parametrize(("flags", "variables"), [(["--no-auth"], {}), ([], {"AENV_TOKEN": "t"})])
def test_an_open_address_is_served_with_a_token_or_the_flag(
    tmp_path: Path, flags: list[str], variables: dict[str, str]
) -> None:
    with running(ENVS / "everything.py", "--host", "0.0.0.0", *flags, log=tmp_path / "log", variables=variables) as s:
        assert fetch(f"http://127.0.0.1:{s.port}", "/health", headers={"Host": "any.name"})[0] == 200


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = main(str(ENVS / "everything.py"), "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "--port" in done.stderr


def test_a_missing_path_is_a_usage_error() -> None:
    assert main("/no/such/place").returncode == 2
    assert main().returncode == 2


def test_a_unix_socket_is_served(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with running(ENVS / "everything.py", "--uds", str(path), log=tmp_path / "log") as server:
        assert server.url == f"unix:{path}"
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /health HTTP/1.1\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_calls_finish(tmp_path: Path, number: int) -> None:
    with running(ENVS / "everything.py", log=tmp_path / "log") as server:
        answers = []
        caller = threading.Thread(
            target=lambda: answers.append(fetch(server.url, "/tools/nap", {"seconds": 1.0})), name="caller"
        )
        caller.start()
        _wait_for_nap(server.url)
        server.process.send_signal(number)
        caller.join()
        assert answers[0][1]["data"]["content"][0]["text"] == "slept"
        assert server.stop() == 0


def _wait_for_nap(url: str) -> None:
    while "nap" not in fetch(url, "/functions/get_calls", {})[1]["data"]:
        time.sleep(0.01)


def test_a_tool_that_never_returns_does_not_keep_the_server(tmp_path: Path) -> None:
    with running(ENVS / "everything.py", "--grace", "0.2", log=tmp_path / "log") as server:
        client = socket.create_connection(("127.0.0.1", server.port))
        body = b'{"seconds": 600}'
        client.sendall(
            b"POST /tools/nap HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        )
        _wait_for_nap(server.url)
        assert server.stop() == 0
        client.close()
        assert "did not finish in time" in server.log.read_text()


def test_an_idle_server_uses_no_cpu(tmp_path: Path) -> None:
    with running(ENVS / "everything.py", log=tmp_path / "log") as server:
        fetch(server.url, "/tools/echo", {"content": "x"})
        before = _switches(server.process.pid)
        time.sleep(1.5)
        after = _switches(server.process.pid)
    assert after - before <= 2  # a server that polls ten times a second would have woken 15 times


def _switches(pid: int) -> int:
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        for line in Path(f"/proc/{pid}/task/{task}/status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                total += int(line.split()[1])
    return total


def test_the_entry_point_accepts_the_arguments_of_existing_scripts(tmp_path: Path) -> None:
    with running(
        ENVS / "everything.py", "--name", "mine", "--log-level", "DEBUG", "--log-dir", "/nowhere", log=tmp_path / "log"
    ) as server:
        assert fetch(server.url, "/health")[0] == 200


PRIVATE = """
from aenv import private, register_function, register_tool

@register_tool
def nothing() -> None: ...

@register_function
def answer() -> str:
    return private("deep/answer.txt").read_text()
"""


def test_withheld_files_are_read_and_removed_before_the_author_s_code_runs(tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text(
        PRIVATE + f"import os\nassert not os.path.exists({str(tmp_path / 'withheld')!r})\n"
    )
    (tmp_path / "withheld" / "deep").mkdir(parents=True)
    (tmp_path / "withheld" / "deep" / "answer.txt").write_text("42")
    arguments = ("--withheld", str(tmp_path / "withheld"))
    with running(tmp_path / "env.py", *arguments, log=tmp_path / "log") as server:
        assert fetch(server.url, "/functions/answer", {})[1]["data"] == "42"


@pytest.mark.parametrize(("arguments", "code"), [((), 0), (("--snapshot", "/nowhere"), 143)])
def test_a_signal_that_stops_a_server_in_a_sandbox_shows_in_its_exit_code(
    tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    command = [sys.executable, "-m", "aenv.main", str(ENVS / "everything.py"), "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "serving" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == code


DUMPABLE = """
import ctypes, subprocess
from aenv import register_function, register_tool

@register_tool
def nothing() -> None: ...

@register_function
def dumpable() -> int:
    return ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)

@register_function
def look() -> str:
    found = subprocess.run("env; cat /proc/$PPID/environ", shell=True, capture_output=True, text=True)
    return found.stdout + found.stderr
"""


def test_programs_that_a_tool_starts_cannot_read_the_token(tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text(DUMPABLE)
    headers = {"authorization": "Bearer s3cret-token"}
    with running(tmp_path / "env.py", log=tmp_path / "log", variables={"AENV_TOKEN": "s3cret-token"}) as server:
        assert fetch(server.url, "/functions/dumpable", {}, headers=headers)[1]["data"] == 0
        if os.geteuid() != 0:  # who may read everything
            assert "s3cret" not in fetch(server.url, "/functions/look", {}, headers=headers)[1]["data"]


def test_a_server_without_a_token_stays_dumpable(tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text(DUMPABLE)
    with running(tmp_path / "env.py", log=tmp_path / "log") as server:
        assert fetch(server.url, "/functions/dumpable", {})[1]["data"] == 1
