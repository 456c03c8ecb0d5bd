"""Reachability of the network from an instance."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.sdk.blocking import SyncEnvironment
from tests.isolation.conftest import Box, make_project
from tests.isolation.host import Platform


@contextlib.contextmanager
def listening(family: socket.AddressFamily, address: object) -> Iterator[socket.socket]:
    """Run a server on the host that must never be reached."""
    with socket.socket(family) as listener:
        listener.bind(address)  # type: ignore[arg-type]
        listener.listen()
        listener.setblocking(False)
        yield listener
        with pytest.raises(BlockingIOError):
            listener.accept()


def connect(family: str, address: object) -> str:
    return f"import socket; s = socket.socket(socket.{family}); s.settimeout(3); s.connect({address!r})"


@pytest.mark.parametrize(("family", "host"), [("AF_INET", "127.0.0.1"), ("AF_INET6", "::1")])
def test_the_hosts_loopback_is_not_the_instances(box: Box, family: str, host: str) -> None:
    try:
        with listening(socket.AddressFamily[family], (host, 0)) as server:
            assert box.refused(connect(family, (host, server.getsockname()[1]))) in ("ECONNREFUSED", "EADDRNOTAVAIL")
    except OSError as error:
        pytest.skip(f"this host has no {family}: {error}")


def test_an_abstract_socket_of_the_host_cannot_be_reached(box: Box) -> None:
    with listening(socket.AF_UNIX, f"\0probe-{os.urandom(6).hex()}") as server:
        name = server.getsockname().decode()
        assert box.refused(connect("AF_UNIX", name)) == "ECONNREFUSED"
        assert name[1:] not in box.python("result = open('/proc/net/unix').read()")


def test_a_socket_in_a_folder_of_the_host_cannot_be_reached(box: Box, platform: Platform) -> None:
    path = platform.runtime / "t.sock"
    with listening(socket.AF_UNIX, str(path)):
        assert box.refused(connect("AF_UNIX", str(path))) == "ENOENT"
    path.unlink()


def test_neither_the_platform_nor_another_instance_can_be_reached(box: Box, platform: Platform) -> None:
    sockets = [platform.paths.socket, *platform.runtime.rglob("*.sock")]
    assert len(sockets) > 2
    for path in sockets:
        assert box.refused(connect("AF_UNIX", str(path))) == "ENOENT"


def test_a_socket_in_the_project_cannot_be_reached_through_app(tmp_path: Path, platform: Platform) -> None:
    project = make_project(tmp_path)
    folder = os.open(project, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with (
            listening(socket.AF_UNIX, f"/proc/self/fd/{folder}/t.sock"),  # short: a socket path has at most 107 bytes
            SyncEnvironment(str(project), max_retries=0) as env,
        ):
            (project / "t.sock").chmod(0o777)
            assert Box(env).refused(connect("AF_UNIX", "/app/t.sock")) == "ECONNREFUSED"
    finally:
        os.close(folder)


def test_two_instances_do_not_reach_each_other(box: Box, neighbour: Box) -> None:
    port = box.python("""
        import builtins, socket
        builtins.kept = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)]
        builtins.kept[1].bind("\\0meeting-point")
        builtins.kept[1].listen()
        result = builtins.kept[0].getsockname()[1]
    """)
    assert box.refused(connect("AF_INET", ("127.0.0.1", port))) is None  # its own
    assert box.refused(connect("AF_UNIX", "\0meeting-point")) is None
    assert neighbour.refused(connect("AF_INET", ("127.0.0.1", port))) == "ECONNREFUSED"
    assert neighbour.refused(connect("AF_UNIX", "\0meeting-point")) == "ECONNREFUSED"
    box.python("import builtins; [one.close() for one in builtins.kept]; del builtins.kept")


def test_the_loopback_is_the_only_device(box: Box) -> None:
    assert box.python("import socket; result = [name for _, name in socket.if_nameindex()]") == ["lo"]
    assert box.refused(connect("AF_INET", ("192.0.2.1", 80))) == "ENETUNREACH"
    assert box.refused(connect("AF_INET", ("169.254.169.254", 80))) == "ENETUNREACH"
    assert box.refused(connect("AF_INET6", ("2001:db8::1", 80))) in ("ENETUNREACH", "EADDRNOTAVAIL")


def test_an_address_of_the_host_cannot_be_reached(box: Box) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            any_socket.connect(("192.0.2.1", 9))
        except OSError as error:
            pytest.skip(f"this host has no address but its loopback: {error}")
        host = any_socket.getsockname()[0]
    with listening(socket.AF_INET, (host, 0)) as server:
        assert box.refused(connect("AF_INET", (host, server.getsockname()[1]))) == "ENETUNREACH"


FAMILIES = {
    "AX25": 3, "IPX": 4, "APPLETALK": 5, "X25": 9, "KEY": 15, "PACKET": 17, "RDS": 21, "LLC": 26, "CAN": 29,
    "TIPC": 30, "BLUETOOTH": 31, "RXRPC": 33, "ALG": 38, "NFC": 39, "VSOCK": 40, "KCM": 41, "QIPCRTR": 42, "SMC": 43,
    "XDP": 44, "MCTP": 45,
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_unneeded_socket_families_are_refused(box: Box, family: int) -> None:
    for kind in ("SOCK_STREAM", "SOCK_DGRAM", "SOCK_RAW", "SOCK_SEQPACKET"):
        assert box.refused(f"import socket; socket.socket({family}, socket.{kind})") == "EAFNOSUPPORT"


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6"])
def test_raw_sockets_are_refused(box: Box, family: str) -> None:
    for protocol in ("IPPROTO_RAW", "IPPROTO_ICMP", "IPPROTO_TCP"):
        attempt = f"import socket; socket.socket(socket.{family}, socket.SOCK_RAW, socket.{protocol})"
        assert box.refused(attempt) in ("EPERM", "EPROTONOSUPPORT", "EAFNOSUPPORT")


def test_the_network_cannot_be_changed(box: Box) -> None:
    attempt = """
        import fcntl, socket, struct
        fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh22x", b"lo", 0))  # switch it off
    """
    assert box.refused(attempt) == "EPERM"
    netlink = """
        import socket, struct
        link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        body = struct.pack("BBHiII", 0, 0, 0, 1, 0, 1)
        link.send(struct.pack("IHHII", 16 + len(body), 16, 5, 1, 0) + body)  # RTM_NEWLINK: lo down
        answer = link.recv(4096)
        code = struct.unpack_from("i", answer, 16)[0]
        if code:
            raise OSError(-code, "refused")
    """
    assert box.refused(netlink) == "EPERM"


def test_host_names_are_not_resolved(box: Box) -> None:
    assert box.refused("import socket; socket.getaddrinfo('example.com', 80)") is not None
    assert box.python("import socket; result = socket.gethostbyname('localhost')") == "127.0.0.1"
    assert box.python("import socket; result = socket.gethostname()") == "sandbox"


def test_the_instances_folder_is_accessible_to_its_user_only(platform: Platform) -> None:
    for folder in [platform.runtime, *(p for p in platform.runtime.iterdir() if p.is_dir())]:
        about = folder.stat()
        reachable = (
            about.st_mode & 0o077 and folder.parent == platform.runtime and platform.runtime.stat().st_mode & 0o077
        )
        assert not reachable, folder
    assert Path(platform.paths.socket).exists()
