"""Who is measured, and the virtual environment each one gets."""

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".bench"


@dataclass(frozen=True)
class Peer:
    name: str
    requirement: tuple[str, ...]
    """What `uv pip install` is asked for."""
    package: str
    server: tuple[str, ...]
    """Arguments for the peer's Python; `{port}` is filled in."""
    client: str
    imports: tuple[str, str]
    """The package itself, and the name that a user of its client starts with."""
    port: int | None = None
    """For a client that cannot be told a port."""

    @property
    def python(self) -> Path:
        return CACHE / self.name / "bin" / "python"

    @cached_property
    def version(self) -> str:
        ask = f"from importlib.metadata import version; print(version({self.package!r}))"
        return subprocess.check_output([self.python, "-c", ask], text=True, cwd=CACHE).strip()

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"


def _aenv(name: str, *requirement: str, port: int | None = None) -> Peer:
    """We and the reference share a package name, an API and therefore these files."""
    return Peer(
        name,
        requirement,
        package="aenvironment",
        server=("-m", "aenv.main", "peers/aenv/env.py", "--host", "127.0.0.1", "--port", "{port}"),
        client="peers/aenv/client.py",
        imports=("import aenv", "from aenv import Environment"),
        port=port,
    )


OURS = _aenv("aenv", "--editable", str(ROOT))
PEERS = (
    OURS,
    _aenv("aenvironment", "aenvironment==0.1.7", port=8081),
    Peer(
        "openenv",
        ("openenv==0.10.0",),
        package="openenv",
        server=("peers/openenv/server.py", "{port}"),
        client="peers/openenv/client.py",
        imports=("import openenv", "from openenv import GenericEnvClient"),
    ),
    Peer(
        "fastmcp",
        ("fastmcp>=4.1.2,<4.2",),
        package="fastmcp",
        server=("peers/fastmcp/server.py", "{port}"),
        client="peers/fastmcp/client.py",
        imports=("import fastmcp", "from fastmcp import Client"),
    ),
)


def prepare(peer: Peer) -> None:
    """Make the peer's virtual environment, unless one with the same contents is there."""
    stamp, wanted = CACHE / peer.name / "made-from", _contents(peer)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        sys.exit("uv is needed to make the peers' virtual environments: pip install uv")
    CACHE.mkdir(exist_ok=True)
    home = CACHE / peer.name
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, home], check=True)
    install = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", peer.python]
    subprocess.run([*install, *peer.requirement], check=True)
    stamp.write_text(wanted)


def source() -> str:
    """A fingerprint of our code: with an editable install, an edit during a run changes what is measured."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _contents(peer: Peer) -> str:
    """For the editable install, a new pyproject.toml may mean new dependencies."""
    project = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest() if peer is OURS else ""
    return f"{sys.version}\n{' '.join(peer.requirement)}\n{project}\n"
