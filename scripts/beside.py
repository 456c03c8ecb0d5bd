"""Check that aenv installs and works beside other people's packages and other releases of the MCP SDK.

    python scripts/beside.py [--resolve-only]

Needs a package index. Resolves an environment for each framework; installs aenv beside those that pin the MCP SDK, and
from inside each calls a local instance and serves /mcp; then runs the tests of MCP clients against servers over older
releases of the SDK. A framework that needs a newer Python than this one gets it from `PATH`, from the folder that this
one's installation lies in (pyenv, uv), or as root from apt; if there is none, its line says `untested`. `.ci/run` calls
this script.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
UV = Path(sys.executable).parent / "uv"
RESOLVED = (
    "verifiers==0.4.0", "nemo-gym==0.4.0", "openenv==0.10.0", "skyrl-gym==0.4.0", "areal", "verl", "trl", "camel-ai",
)  # fmt: skip
PARALLEL = 4
"""Resolutions and installations at a time: they wait for the package index most of the time."""


class Framework(NamedTuple):
    requirement: str
    module: str
    """The module to import."""
    python: tuple[int, int] = (3, 11)
    """The oldest Python that it installs on."""


INSTALLED = (
    Framework("verifiers==0.4.0", "verifiers"),
    Framework("openenv==0.10.0", "openenv"),
    Framework("skyrl-gym==0.4.0", "skyrl_gym"),
    Framework("nemo-gym==0.4.0", "nemo_gym", (3, 12)),
)
TESTED_PYTHONS = ((3, 13), (3, 12))
"""The newer Pythons to look for, in order of preference."""
FIRST_GENERATION, SECOND_GENERATION = ("1.24.0", "1.30.0"), ("2.0.0",)

PROJECT = """
from aenv import register_reward, register_tool

@register_tool
def add(a: int, b: int) -> int:
    return a + b

@register_reward
def reward() -> dict:
    return {"reward": 1.0}
"""
PROGRAM = """
import importlib, json, subprocess, sys, urllib.request
from importlib.metadata import version

importlib.import_module(sys.argv[2])
from aenv import SyncEnvironment

with SyncEnvironment(sys.argv[1]) as env:
    assert env.call_tool("add", {"a": 2, "b": 3}).data == 5
    assert env.call_reward({})["reward"] == 1.0

server = subprocess.Popen(
    [sys.executable, "-m", "aenv.main", sys.argv[1], "--port", "0"], stdout=subprocess.PIPE, text=True
)
try:
    url = server.stdout.readline().rpartition(" ")[2].strip() + "/mcp"
    session = {}

    def ask(method, params, number=1):
        body = {"jsonrpc": "2.0", "method": method, "params": params} | ({"id": number} if number else {})
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream", **session}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            if answer.headers.get("mcp-session-id"):
                session["mcp-session-id"] = answer.headers["mcp-session-id"]
            text = answer.read().decode()
        return json.loads(text) if number else None

    client = {"name": "beside", "version": "1"}
    ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
    ask("notifications/initialized", {}, 0)
    assert [tool["name"] for tool in ask("tools/list", {})["result"]["tools"]] == ["add"]
    result = ask("tools/call", {"name": "add", "arguments": {"a": 2, "b": 3}})["result"]
    assert result["content"][0]["text"] == "5" and not result.get("isError"), result
finally:
    server.terminate()
    server.wait()
print("calls an instance and serves /mcp, with mcp", version("mcp"))
"""


def resolve(requirement: str) -> str:
    """Return the release of the MCP SDK that is chosen for aenv and this requirement."""
    command: list[str | Path] = [
        UV,
        "pip",
        "compile",
        "--quiet",
        "--python-version",
        "3.12",
        ROOT / "pyproject.toml",
        "-",
    ]
    done = subprocess.run(command, input=requirement, text=True, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"aenv cannot be resolved beside {requirement}:\n{done.stderr}")
    return next(line.split()[0] for line in done.stdout.splitlines() if line.startswith("mcp=="))


def interpreter(oldest: tuple[int, int]) -> str | None:
    """Return an interpreter of this Python version or a newer tested one, or None if there is none to be had."""
    if sys.version_info[:2] >= oldest:
        return sys.executable
    names = [f"python{major}.{minor}" for major, minor in TESTED_PYTHONS if (major, minor) >= oldest]
    found = next(_working(names), None)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for name in names:
            command = ["apt-get", "install", "-y", "-qq", name, f"{name}-venv"]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                break
        found = next(_working(names), None)
    return found


def _working(names: list[str]) -> Iterator[str]:
    """Yield the interpreters of these names that start: a pyenv shim on `PATH` may stand for a version not chosen."""
    installations = Path(sys.base_prefix).parent
    for name in names:
        for candidate in (shutil.which(name), *installations.glob(f"*/bin/{name}")):
            if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
                yield str(candidate)


def venv(folder: Path, requirement: str, base: str = sys.executable) -> Path:
    """Make a virtual environment with aenv and this requirement; return its interpreter."""
    python = folder / "bin" / "python"
    subprocess.run([UV, "venv", "--quiet", "--python", base, folder], check=True)
    subprocess.run([UV, "pip", "install", "--quiet", "--python", python, requirement, str(ROOT)], check=True)
    return python


def check_framework(framework: Framework, python: Path | None, folder: Path) -> None:
    """Call an instance and serve /mcp from inside this environment."""
    print(f"inside {framework.requirement}: ", end="", flush=True)
    if python is None:
        print(f"untested: no Python >= {'.'.join(map(str, framework.python))}", flush=True)
        return
    subprocess.run([python, "-c", PROGRAM, folder / "env", framework.module], check=True, cwd=folder)


def check_clients(release: str, python: Path) -> None:
    """Run the tests of MCP clients against servers of this environment."""
    # Releases of the first generation speak only the older handshake.
    clients = ("tests/mcp_clients/test_mcp_sdk.py", "tests/mcp_clients/test_fastmcp.py")
    chosen = (*clients, "-k", "legacy") if release in FIRST_GENERATION else ("tests/mcp_clients",)
    print(f"clients of a server over mcp {release}:", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "SERVER_PYTHON": str(python)})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--resolve-only", action="store_true", help="install and run nothing")
    args = parser.parse_args()
    with ThreadPoolExecutor(PARALLEL) as pool, tempfile.TemporaryDirectory(prefix="aenv-beside-") as place:
        for requirement, chosen in zip(RESOLVED, pool.map(resolve, RESOLVED), strict=True):
            print(f"beside {requirement}: {chosen}", flush=True)
        if not args.resolve_only:
            install_and_check(Path(place), pool)


def install_and_check(folder: Path, pool: ThreadPoolExecutor) -> None:
    (folder / "env" / "src").mkdir(parents=True)
    (folder / "env" / "config.json").write_text('{"name": "beside", "version": "1.0.0"}')
    (folder / "env" / "src" / "env.py").write_text(PROJECT)
    frameworks: list[tuple[Framework, Future[Path] | None]] = []
    for framework in INSTALLED:
        base = interpreter(framework.python)
        made = pool.submit(venv, folder / framework.module, framework.requirement, base) if base else None
        frameworks.append((framework, made))
    releases = [
        (release, pool.submit(venv, folder / f"mcp-{release}", f"mcp=={release}"))
        for release in FIRST_GENERATION + SECOND_GENERATION
    ]
    for framework, made in frameworks:
        check_framework(framework, made.result() if made else None, folder)
    for release, python in releases:
        check_clients(release, python.result())


if __name__ == "__main__":
    main()
