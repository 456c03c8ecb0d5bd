"""Instances with an egress allow list, and the other network modes."""

from __future__ import annotations

import contextlib
import ensurepip
import http.server
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aenv.errors import AEnvError
from aenv.sdk.blocking import SyncEnvironment
from aenv.sdk.environment import Environment
from tests.conftest import run
from tests.isolation.conftest import PROBE, Box, make_project
from tests.isolation.host import Platform
from tests.waiting import wait_while

HOST = socket.gethostname()


class _Server(http.server.BaseHTTPRequestHandler):
    """Echo the request as JSON."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = json.dumps(
            {"path": self.path, "host": self.headers["host"], "body": self.rfile.read(length).decode()}
        ).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        return


class _Web(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # clients that find the queue full retry only after 1, 2, then 4 seconds


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """Port of a web server on the host's loopback."""
    try:
        if not socket.gethostbyname(HOST).startswith("127."):
            pytest.skip(f"this host's own name, {HOST}, does not resolve to its loopback")
    except OSError:
        pytest.skip(f"this host cannot resolve its own name, {HOST}")
    made = _Web(("127.0.0.1", 0), _Server)
    thread = threading.Thread(target=made.serve_forever, name="asyncio_web")
    thread.start()
    yield made.server_address[1]
    made.shutdown()
    thread.join()
    made.server_close()


@contextlib.contextmanager
def boxed(network: str | list[str], **options: Any) -> Iterator[Box]:
    with SyncEnvironment(str(PROBE), network=network, **options) as env:
        yield Box(env)


@pytest.fixture(scope="module")
def egress_box(platform: Platform) -> Iterator[Box]:
    """An instance that may reach this host by its own name."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in platform.variables.items():
            patch.setenv(name, value)
        with boxed([HOST, "127.0.0.0/8"]) as box:
            yield box


URLLIB = """
    import json, urllib.request
    with urllib.request.urlopen({url!r}, {body!r}, timeout=20) as answer:
        result = json.load(answer)
"""


def ask(box: Box, url: str, body: bytes | None = None) -> Any:
    return box.python(URLLIB.format(url=url, body=body))


def test_a_host_on_the_list_can_be_reached(egress_box: Box, server: int) -> None:
    seen = ask(egress_box, f"http://{HOST}:{server}/path?q=1", b"hello")
    assert seen == {"path": "/path?q=1", "host": f"{HOST}:{server}", "body": "hello"}


THROUGH_THE_PROXY = """
    import http.client
    proxy = http.client.HTTPConnection("127.0.0.1", 3128, timeout=20)  # explicitly: NO_PROXY excludes 127.0.0.1
    proxy.request("GET", {url!r})
    result = proxy.getresponse().status
"""


def test_only_the_host_of_a_variables_url_can_be_reached(platform: Platform, server: int) -> None:
    url = f"http://127.0.0.1:{server}/v1"
    with boxed(["$MODEL"], environment_variables={"MODEL": url}) as box:
        assert box.python(THROUGH_THE_PROXY.format(url=url)) == 200
        assert box.python(THROUGH_THE_PROXY.format(url="http://127.0.0.1:1/v1")) == 403


def test_a_host_that_is_not_on_the_list_is_refused_with_a_reason(egress_box: Box) -> None:
    answer = egress_box.python("""
        import urllib.error, urllib.request
        try:
            urllib.request.urlopen("http://elsewhere.example/", timeout=20)
        except urllib.error.HTTPError as error:
            result = [error.code, error.reason, error.read().decode()]
    """)
    assert answer[0] == 403
    assert "elsewhere.example:80 is not on the list" in answer[1]
    assert HOST in answer[2]  # the list
    answer = egress_box.python("""
        import urllib.error, urllib.request
        try:
            urllib.request.urlopen("https://elsewhere.example/", timeout=20)
        except urllib.error.URLError as error:
            result = str(error)
    """)
    assert "403 elsewhere.example:443 is not on the list" in answer


def test_a_refusal_is_written_to_the_instances_log(egress_box: Box) -> None:
    with contextlib.suppress(AssertionError):
        ask(egress_box, "http://logged.example/")
    wait_while(
        lambda: "network: logged.example:80 is not on the list" not in egress_box.env.logs(),
        "the refusal is not logged",
    )
    assert egress_box.env.logs().count("logged.example") == 1


def test_programs_find_the_proxy_through_their_environment(egress_box: Box, server: int) -> None:
    for command in (
        f"curl -sSf http://{HOST}:{server}/curl",
        f"curl -sSf -p http://{HOST}:{server}/curl",  # through CONNECT
        f"curl -sSf -x socks5h://127.0.0.1:3128 http://{HOST}:{server}/curl",
        f"curl -sSf -x socks5://127.0.0.1:3128 http://127.0.0.1:{server}/curl --noproxy ''",
    ):
        done = egress_box.shell(command)
        if "not found" in done["err"]:
            pytest.skip("curl is not installed")
        assert done["code"] == 0, done
        assert json.loads(done["out"])["path"] == "/curl", command
    refused = egress_box.shell("curl -sS http://elsewhere.example/")
    assert "elsewhere.example:80 is not on the list" in refused["out"]
    refused = egress_box.shell("curl -sS -x socks5h://127.0.0.1:3128 http://elsewhere.example/")
    assert refused["code"] == 97


def test_a_client_with_a_connection_pool_can_use_the_proxy(egress_box: Box, server: int) -> None:
    seen = egress_box.python(f"""
        import asyncio, httpx2 as httpx

        async def main():
            async with httpx.AsyncClient(timeout=20) as client:
                urls = [f"http://{HOST}:{server}/{{n}}" for n in range(20)]
                first = [(await client.get(url)).json()["path"] for url in urls[:5]]
                rest = await asyncio.gather(*(client.get(url) for url in urls[5:]))
                refused = await client.get("http://elsewhere.example/")
                return first + [one.json()["path"] for one in rest], refused.status_code

        result = asyncio.run(main())
    """)
    assert seen == [[f"/{n}" for n in range(20)], 403]


def test_pip_works_through_the_proxy(egress_box: Box, server: int) -> None:
    """pip uses urllib3, which keeps its connection to the proxy for the next request."""
    pip = next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"), None)
    if pip is None:
        pytest.skip("this Python has no bundled pip")
    done = egress_box.shell(
        f"PYTHONPATH={pip} {sys.executable} -m pip download --no-input --disable-pip-version-check --retries 0 "
        f"-d /tmp/got --trusted-host {HOST} -i http://{HOST}:{server}/simple nothing-of-that-name"
    )
    assert "No matching distribution" in done["err"], done  # the server was reached, and has no such package
    assert "ProxyError" not in done["err"]


def test_direct_connections_past_the_proxy_are_refused(egress_box: Box, server: int) -> None:
    direct = "import socket; s = socket.socket(); s.settimeout(3); s.connect({!r})"
    assert egress_box.refused(direct.format(("127.0.0.1", server))) == "ECONNREFUSED"
    assert egress_box.refused(direct.format(("192.0.2.1", 80))) == "ENETUNREACH"
    assert egress_box.refused(f"import socket; socket.getaddrinfo({HOST + '.example'!r}, 80)") is not None
    datagram = "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))"
    assert egress_box.refused(datagram) == "ENETUNREACH"
    assert egress_box.python("import socket; result = [name for _, name in socket.if_nameindex()]") == ["lo"]


def test_a_listed_name_does_not_open_the_hosts_loopback(platform: Platform, server: int) -> None:
    with boxed([HOST, "*"]) as box:
        for target in (HOST, "localhost", "127.0.0.1", "127.1", "0", "2130706433", "[::1]", "[::ffff:127.0.0.1]"):
            reply = raw(box, f"GET http://{target}:{server}/ HTTP/1.1\r\n\r\n")
            assert reply.startswith(("HTTP/1.1 403", "HTTP/1.1 502")), (target, reply)
        assert "is a private address" in raw(box, f"CONNECT {HOST}:{server} HTTP/1.1\r\n\r\n")
        assert " 403 " in raw(box, "CONNECT 169.254.169.254:80 HTTP/1.1\r\n\r\n")


def test_an_entry_with_a_port_opens_only_that_port(platform: Platform, server: int) -> None:
    with boxed([f"{HOST}:{server + 1}", "127.0.0.0/8"]) as box:
        assert "is not on the list" in raw(box, f"GET http://{HOST}:{server}/ HTTP/1.1\r\n\r\n")


RAW = """
    import socket
    with socket.create_connection(("127.0.0.1", 3128), timeout=20) as proxy:
        proxy.sendall({data!r})
        proxy.shutdown(socket.SHUT_WR)
        result = b""
        while part := proxy.recv(65536):
            result += part
    result = result.decode("latin-1")
"""


def raw(box: Box, data: str) -> str:
    return str(box.python(RAW.format(data=data.encode("latin-1"))))


@pytest.mark.parametrize(
    "request_text",
    [
        "GET / HTTP/1.1\r\n\r\n",
        "nonsense\r\n\r\n",
        "GET ftp://a/ HTTP/1.1\r\n\r\n",
        "CONNECT nowhere HTTP/1.1\r\n\r\n",
        "CONNECT a:99999 HTTP/1.1\r\n\r\n",
        "GET http:///path HTTP/1.1\r\n\r\n",
        f"GET http://{HOST}/ HTTP/1.1\r\nbad header\r\n\r\n",
        f"GET http://{HOST}/ HTTP/1.1\r\nx: 1\r\n folded: 2\r\n\r\n",
        f"GET http://{HOST}/ HTTP/1.1\r\nx: 1\nhost: 2\r\n\r\n",
        f"GET http://{HOST}/ HTTP/1.1\r\nx: {'1' * 70000}\r\n\r\n",
    ],
)
def test_an_invalid_request_gets_a_client_error(egress_box: Box, request_text: str) -> None:
    assert raw(egress_box, request_text).startswith(("HTTP/1.1 400", "HTTP/1.1 431"))


def test_the_host_header_is_replaced_by_the_checked_host(egress_box: Box, server: int) -> None:
    reply = raw(egress_box, f"GET http://{HOST}:{server}/ HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n\r\n")
    assert json.loads(reply.partition("\r\n\r\n")[2])["host"] == f"{HOST}:{server}"
    assert "connection: close" in reply.partition("\r\n\r\n")[0].lower()


def test_two_instances_have_separate_egress_endpoints(egress_box: Box, neighbour: Box, server: int) -> None:
    with boxed(["other.example", "127.0.0.0/8"]) as other:
        assert ask(egress_box, f"http://{HOST}:{server}/")["path"] == "/"
        assert " 403 " in raw(other, f"GET http://{HOST}:{server}/ HTTP/1.1\r\n\r\n")
    assert neighbour.refused("import socket; socket.create_connection(('127.0.0.1', 3128))") == "ECONNREFUSED"
    assert "PROXY" not in neighbour.shell("env")["out"].upper()
    assert (
        ask(egress_box, f"http://{HOST}:{server}/")["path"] == "/"
    )  # closing the other endpoint did not affect this one


def test_batches_and_the_pool_have_egress_endpoints(platform: Platform, server: int) -> None:
    async def work() -> list[Any]:
        seen: list[Any] = []
        for _ in range(3):
            async with Environment.batch(str(PROBE), 8, network=[HOST, "127.0.0.0/8"]) as group:
                code = f"import urllib.request as u; result = u.urlopen('http://{HOST}:{server}/').status"
                calls = [env.call_tool("python", {"code": code}) async for env in group]
                seen += [(await call).data["value"] for call in calls]
        return seen

    assert run(work()) == [200] * 24


def test_the_config_json_opens_hosts_and_the_caller_closes_them(tmp_path: Path, server: int) -> None:
    project = make_project(tmp_path, name="open", network=[HOST, "127.0.0.0/8"])
    with SyncEnvironment(str(project)) as env:
        assert ask(Box(env), f"http://{HOST}:{server}/")["path"] == "/"
    with SyncEnvironment(str(project), network="loopback") as env:
        assert Box(env).refused("import socket; socket.create_connection(('127.0.0.1', 3128))") == "ECONNREFUSED"


def test_an_invalid_list_is_refused_before_anything_starts(tmp_path: Path) -> None:
    project = make_project(tmp_path, name="wrong", network=["https://index.example.com"])
    with pytest.raises(AEnvError, match=r"deployConfig\.network: 'https://index\.example\.com'.*without a scheme"):
        SyncEnvironment(str(project), max_retries=0).initialize()
    with pytest.raises(AEnvError, match="network: invalid network 'egress'"):
        SyncEnvironment(str(PROBE), network="egress", max_retries=0).initialize()


def test_a_blackhole_network_drops_packets_silently(platform: Platform) -> None:
    with boxed("blackhole") as box:
        assert box.refused("import socket; socket.create_connection(('127.0.0.1', 9))") == "ECONNREFUSED"
        lost = """
        import errno, socket
        s = socket.socket()
        s.setblocking(False)
        result = errno.errorcode[s.connect_ex(("10.255.255.1", 80))]
        """
        assert box.python(lost) == "EINPROGRESS"
    with boxed("loopback") as box:
        assert box.python(lost) == "ENETUNREACH"


def test_network_none_has_no_loopback(platform: Platform) -> None:
    with boxed("none") as box:
        assert box.refused("import socket; socket.create_connection(('127.0.0.1', 9))") == "ENETUNREACH"
        assert box.call("hello") == "hello"


def test_the_hosts_network_must_be_requested_by_the_caller(tmp_path: Path, platform: Platform, server: int) -> None:
    project = make_project(tmp_path, name="wide", network="host")
    with pytest.raises(AEnvError, match="network='host'"):
        SyncEnvironment(str(project), max_retries=0).initialize()
    with SyncEnvironment(str(project), network="host") as env:
        box = Box(env)
        assert ask(box, f"http://{HOST}:{server}/")["path"] == "/"
        assert ask(box, f"http://127.0.0.1:{server}/")["path"] == "/"
        assert box.refused("import socket; socket.socket(40, socket.SOCK_STREAM)") == "EAFNOSUPPORT"  # still no vsock
        assert box.refused("import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)") == "EPERM"
    assert "in the host's network" in platform.log()


def test_an_idle_endpoint_uses_no_cpu_and_a_closed_one_leaks_no_descriptors(platform: Platform, server: int) -> None:
    proxy_process = next(p for p in platform.processes() if "egress_proxy" in p.command)
    server_process = platform.server()
    assert server_process is not None

    def open_files() -> tuple[int, int]:
        return tuple(len(os.listdir(f"/proc/{pid}/fd")) for pid in (proxy_process.pid, server_process.pid))  # type: ignore[return-value]

    with boxed([HOST, "127.0.0.0/8"]):
        pass
    settled = open_files()
    for _ in range(5):
        with boxed([HOST, "127.0.0.0/8"]) as box:
            assert ask(box, f"http://{HOST}:{server}/")["path"] == "/"
            held = box.python(f"""
                import builtins, socket
                builtins.held = [socket.create_connection(("127.0.0.1", 3128)) for _ in range(20)]
                for one in builtins.held:
                    one.sendall(b"CONNECT {HOST}:{server} HTTP/1.1\\r\\n\\r\\n")
                result = [one.recv(100).decode()[:12] for one in builtins.held]
            """)
            assert held == ["HTTP/1.1 200"] * 20
    # pooled instances have endpoints as well, and end after a while
    wait_while(lambda: [f"{now} of {was}" for now, was in zip(open_files(), settled, strict=True) if now > was],
               "leaked descriptors", 60)  # fmt: skip

    def ticks() -> int:
        return sum(
            int(n) for n in Path(f"/proc/{proxy_process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        )

    before = ticks()
    with boxed([HOST]), contextlib.suppress(TimeoutError):
        threading.Event().wait(1.0)
    assert ticks() - before <= 5  # hundredths of a second, for opening and closing an endpoint


def test_a_killed_proxy_process_is_replaced(egress_box: Box, platform: Platform, server: int) -> None:
    proxy_process = next(p for p in platform.processes() if "egress_proxy" in p.command)
    proxy_process.kill()

    def not_yet() -> bool:
        done = egress_box.call(
            "python", code=f"import urllib.request as u\nresult = u.urlopen('http://{HOST}:{server}/').status"
        )
        return bool(done.get("value") != 200)

    wait_while(lambda: proxy_process.alive, "it was not killed")
    wait_while(not_yet, "no process took over")


def test_the_proxy_process_has_no_privileges(egress_box: Box, platform: Platform) -> None:
    proxy_process = next(p for p in platform.processes() if "egress_proxy" in p.command)
    status = Path(f"/proc/{proxy_process.pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(fields["CapEff"], 16) == 0
    assert fields["NoNewPrivs"] == "1"
    assert fields["Uid"].split()[0] != "0"


def test_connections_over_the_limit_wait(egress_box: Box, server: int) -> None:
    seen = egress_box.python(f"""
        import os, socket, urllib.parse
        proxy = urllib.parse.urlsplit(os.environ["http_proxy"])
        many = [socket.create_connection((proxy.hostname, proxy.port), 60) for _ in range(300)]
        for one in many:
            one.sendall(b"GET http://{HOST}:{server}/x HTTP/1.1\\r\\nhost: {HOST}\\r\\n\\r\\n")
        def answered(one):
            with one, one.makefile("rb") as answer:
                return answer.readline().split()[1].decode()
        result = [answered(one) for one in many]
    """)
    assert seen == ["200"] * 300
