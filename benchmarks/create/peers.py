"""The same runtime, cold, in other people's sandboxes; and the reference's own way."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import process
from peer import CACHE, PEERS, ROOT, Peer, prepare, source

REFERENCE = next(peer for peer in PEERS if peer.name == "aenvironment")
INSIDE = "/run/bench"  # where a sandbox sees the project and the folder of the socket


class Missing(Exception):
    """A peer that cannot run here; the message says why."""


@dataclass(frozen=True)
class Cold:
    """A way to start a server. In its commands `{number}` becomes the number of the run."""

    name: str
    title: str
    python: Path
    address: str
    command: list[str]
    end: tuple[str, ...] = ()


def ours() -> Peer:
    """This checkout as a wheel, so that nobody's edits get into the middle of a run."""
    wheels = CACHE / "wheels" / source()
    if not list(wheels.glob("*.whl")):
        uv = shutil.which("uv")
        if uv is None:
            raise SystemExit("uv is needed to make virtual environments: pip install uv")
        subprocess.run([uv, "build", "--quiet", "--wheel", "--out-dir", wheels, ROOT], check=True)
    wheel = next(wheels.glob("*.whl"))
    peer = Peer("aenv-wheel", (str(wheel),), "aenvironment", (), "", ("", ""))
    prepare(peer)
    return peer


class Kit:
    """Makes the peers' commands. ``folder`` is a short-lived one of ours."""

    def __init__(self, mine: Peer, project: Path, folder: Path) -> None:
        self._mine, self._project, self._folder = mine, project, folder
        self._sockets = folder / "sockets"
        self._sockets.mkdir()
        base = subprocess.check_output([mine.python, "-c", "import sys; print(sys.base_prefix)"], text=True).strip()
        self._shown = [str(CACHE), base]  # what Python needs, wherever that is

    def make(self, name: str) -> Cold:
        """Raises Missing where it cannot run."""
        return {
            "plain": self._plain,
            "bubblewrap": self._bubblewrap,
            "runc": self._runc,
            "runsc": self._runsc,
            "aenvironment": self._aenvironment,
        }[name]()

    def _serve(self, project: str, *where: str) -> list[str]:
        return [str(self._mine.python), "-m", "aenv.main", project, "--log-level", "WARNING", *where]

    def _cold(self, name: str, title: str, command: list[str]) -> Cold:
        return Cold(name, title, self._mine.python, f"unix:{self._sockets}/{name}.sock", command)

    def _plain(self) -> Cold:
        command = self._serve(str(self._project), "--uds", f"{self._sockets}/plain.sock")
        return self._cold("plain", "no sandbox, cold", command)

    def _bubblewrap(self) -> Cold:
        bwrap = _tool("bwrap", "bubblewrap")
        shown = [word for path in self._shown for word in ("--ro-bind", path, path)]
        command = [
            bwrap, "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc",
            "--tmpfs", "/tmp", "--tmpfs", "/run", *shown, "--ro-bind", str(self._project), f"{INSIDE}/project",
            "--bind", str(self._sockets), f"{INSIDE}/sockets", "--",
            *self._serve(f"{INSIDE}/project", "--uds", f"{INSIDE}/sockets/bubblewrap.sock"),
        ]  # fmt: skip
        return self._cold("bubblewrap", f"bubblewrap {_version(bwrap)}", command)

    def _runc(self) -> Cold:
        runc = _tool("runc", "runc")
        bundle = self._bundle(runc, "runc", self._serve(f"{INSIDE}/project", "--uds", f"{INSIDE}/sockets/runc.sock"))
        state = ["--root", f"{self._folder}/runc-state"]
        cold = self._cold("runc", f"runc {_version(runc)}", [runc, *state, "run", "--bundle", bundle, "bench-{number}"])
        return replace(cold, end=(runc, *state, "kill", "bench-{number}", "KILL"))

    def _runsc(self) -> Cold:
        """Over TCP on the host's loopback: what apt has cannot show a unix socket to the host."""
        runsc, runc = _tool("runsc", "runsc"), _tool("runc", "runc")
        port = process._free_port()
        serve = self._serve(f"{INSIDE}/project", "--port", str(port))
        bundle = self._bundle(runc, "runsc", serve, host_network=True)
        options = [
            "--root", f"{self._folder}/runsc-state", "--platform", "ptrace", "--network", "host", "--ignore-cgroups",
        ]  # fmt: skip
        return Cold(
            "runsc",
            f"runsc {_version(runsc)}",
            self._mine.python,
            f"http://127.0.0.1:{port}",
            [runsc, *options, "run", "--bundle", bundle, "bench-{number}"],
            (runsc, *options, "kill", "bench-{number}", "KILL"),
        )

    def _aenvironment(self) -> Cold:
        """What its `aenv run` does with the project; the port is the only one that it has."""
        prepare(REFERENCE)
        if process._listeners(REFERENCE.port or 0):
            raise Missing(f"port {REFERENCE.port} is taken, and it can use no other")
        command = [str(REFERENCE.python), "-m", "aenv.main", str(self._project / "src")]
        return Cold("aenvironment", REFERENCE.title, REFERENCE.python, f"http://127.0.0.1:{REFERENCE.port}", command)

    def _bundle(self, runc: str, name: str, command: list[str], *, host_network: bool = False) -> str:
        """An OCI bundle: the host's own folders, read-only, in an otherwise empty root."""
        if os.geteuid():
            raise Missing("it needs root here")
        bundle = self._folder / name
        (bundle / "rootfs").mkdir(parents=True)
        subprocess.run([runc, "spec"], cwd=bundle, check=True)
        spec = json.loads((bundle / "config.json").read_text())
        spec["process"] |= {"terminal": False, "args": command, "cwd": "/"}
        spec["root"]["readonly"] = True
        system = [path for path in ("/usr", "/bin", "/lib", "/lib64", "/etc", "/opt") if os.path.isdir(path)]
        shown = [(path, path, "ro") for path in (*system, *self._shown)]
        shown += [(str(self._project), f"{INSIDE}/project", "ro"), (str(self._sockets), f"{INSIDE}/sockets", "rw")]
        spec["mounts"] += [{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev"]}]
        spec["mounts"] += [
            {"destination": inside, "type": "bind", "source": path, "options": ["rbind", mode]}
            for path, inside, mode in shown
        ]
        if host_network:
            spec["linux"]["namespaces"] = [one for one in spec["linux"]["namespaces"] if one["type"] != "network"]
        (bundle / "config.json").write_text(json.dumps(spec))
        return str(bundle)


NAMES = ("plain", "bubblewrap", "runc", "runsc", "aenvironment")


def _tool(program: str, package: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise Missing(f"not installed (apt install {package})")
    return path


def _version(program: str) -> str:
    """`bubblewrap 0.8.0`, `runc version 1.1.5+ds1`: the last word of the first line."""
    return subprocess.check_output([program, "--version"], text=True).splitlines()[0].split()[-1]
