"""Check that aenv installs and works beside other people's packages and other releases of the MCP SDK.

    python scripts/beside.py [--resolve-only]

Needs a package index. Resolves an environment for each framework; installs aenv beside those that pin the MCP SDK, and
from inside each calls a local instance and serves /mcp; then runs the tests of MCP clients against servers over older
releases of the SDK. `.ci/run` calls it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = Path(sys.executable).parent / "uv"
RESOLVED = (
    "verifiers==0.4.0", "nemo-gym==0.4.0", "openenv==0.10.0", "skyrl-gym==0.4.0", "areal", "verl", "trl", "camel-ai",
)  # fmt: skip
INSTALLED = {"verifiers==0.4.0": "verifiers", "openenv==0.10.0": "openenv", "skyrl-gym==0.4.0": "skyrl_gym"}
"""Requirement to the module to import. nemo-gym joins them where the interpreter is new enough for it."""
if sys.version_info >= (3, 12):
    INSTALLED["nemo-gym==0.4.0"] = "nemo_gym"
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


def resolve() -> None:
    for requirement in RESOLVED:
        command = [UV, "pip", "compile", "--quiet", "--python-version", "3.12", ROOT / "pyproject.toml", "-"]
        done = subprocess.run(command, input=requirement, text=True, capture_output=True, check=False)
        if done.returncode:
            sys.exit(f"aenv cannot be resolved beside {requirement}:\n{done.stderr}")
        chosen = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("mcp==")]
        print(f"beside {requirement}: {chosen[0]}", flush=True)


def venv(folder: Path, *requirements: str) -> Path:
    """Make a virtual environment with aenv and these; return its interpreter."""
    python = folder / "bin" / "python"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    subprocess.run([UV, "pip", "install", "--quiet", "--python", python, *requirements, str(ROOT)], check=True)
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--resolve-only", action="store_true", help="install and run nothing")
    args = parser.parse_args()
    resolve()
    if args.resolve_only:
        return
    with tempfile.TemporaryDirectory(prefix="aenv-beside-") as place:
        folder = Path(place)
        (folder / "env" / "src").mkdir(parents=True)
        (folder / "env" / "config.json").write_text('{"name": "beside", "version": "1.0.0"}')
        (folder / "env" / "src" / "env.py").write_text(PROJECT)
        for number, (requirement, module) in enumerate(INSTALLED.items()):
            python = venv(folder / f"framework{number}", requirement)
            print(f"inside {requirement}: ", end="", flush=True)
            subprocess.run([python, "-c", PROGRAM, folder / "env", module], check=True, cwd=folder)
        clients = ("tests/mcp_clients/test_mcp_sdk.py", "tests/mcp_clients/test_fastmcp.py")
        for release in FIRST_GENERATION + SECOND_GENERATION:
            python = venv(folder / f"mcp-{release}", f"mcp=={release}")
            # Releases of the first generation speak only the older handshake.
            chosen = (*clients, "-k", "legacy") if release in FIRST_GENERATION else ("tests/mcp_clients",)
            print(f"clients of a server over mcp {release}:", flush=True)
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]
            subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "SERVER_PYTHON": str(python)})


if __name__ == "__main__":
    main()
