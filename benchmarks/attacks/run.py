"""The same attacks from inside an instance and from inside other sandboxes with their defaults, in one run.

    python benchmarks/attacks/run.py [--json FILE] [--only NAME ...]

Needs Linux, and root for Docker and gVisor. What is not installed, or cannot be started here, is named below the table.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
PROBES = HERE / "probes.py"
SHOWN = [
    path for path in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives") if Path(path).exists()
]
PYTHON = "/usr/bin/python3"
INSIDE = "/opt/attacks/probes.py"


class Missing(Exception):
    """It cannot be started here; the message says why."""


def ours(arguments: list[str]) -> str:
    """As a program that a tool starts, in an instance with all defaults."""
    from aenv.sdk.blocking import SyncEnvironment

    with tempfile.TemporaryDirectory(prefix="aenv-attacks-") as folder:
        project = Path(folder) / "attacked"
        (project / "src").mkdir(parents=True)
        (project / "config.json").write_text('{"name": "attacked", "version": "1.0.0"}')
        shutil.copy(PROBES, project / "probes.py")
        (project / "src" / "env.py").write_text(
            "import subprocess\nfrom aenv import register_tool\n\n@register_tool\n"
            "def attack(arguments: list[str]) -> str:\n"
            f"    words = [{PYTHON!r}, 'probes.py', *arguments]\n"
            "    done = subprocess.run(words, capture_output=True, text=True)\n"
            "    return done.stdout or done.stderr\n"
        )
        with SyncEnvironment(str(project)) as env:
            answer: str = env.call_tool("attack", {"arguments": arguments}, 600).text
    if not answer.startswith("{"):
        raise Missing(answer[-300:])
    return answer


def confined(arguments: list[str]) -> str:
    """The same at the isolation level for containers without namespaces."""
    before = os.environ.get("AENV_ISOLATION")
    os.environ["AENV_ISOLATION"] = "confined"
    try:
        return ours(arguments)
    finally:
        os.environ.pop("AENV_ISOLATION")
        if before is not None:
            os.environ["AENV_ISOLATION"] = before


def bubblewrap(arguments: list[str]) -> str:
    """With the options of its manual's example, and no network."""
    found = _program("bwrap")
    binds = [word for path in SHOWN for word in ("--ro-bind", path, path)]
    command = [found, *binds, "--ro-bind", str(PROBES), INSIDE, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
               "--unshare-all", "--die-with-parent", "--new-session", PYTHON, INSIDE, *arguments]  # fmt: skip
    return _run(command)


def docker(arguments: list[str]) -> str:
    """``docker run`` with no options but for what to show; a daemon of its own if none runs."""
    found, daemon = _program("docker"), shutil.which("dockerd")
    with tempfile.TemporaryDirectory(prefix="aenv-dockerd-") as folder:
        client, server = [found], None
        if subprocess.run([found, "info"], capture_output=True, check=False).returncode:
            if daemon is None or os.geteuid():
                raise Missing("no Docker daemon runs")
            where = f"unix://{folder}/socket"
            with Path(folder, "log").open("wb") as log:
                server = subprocess.Popen(
                    [daemon, "--host", where, "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec",
                     "--pidfile", f"{folder}/pid", "--iptables=false", "--bridge=none", "--storage-driver=vfs"],
                    stdout=log, stderr=log,
                )  # fmt: skip
            client = [found, "--host", where]
        try:
            for _ in range(100):
                if subprocess.run([*client, "info"], capture_output=True, check=False).returncode == 0:
                    break
                time.sleep(0.2)
            else:
                raise Missing(Path(folder, "log").read_text(errors="replace")[-300:])
            root = Path(folder, "root")
            for path in (
                "proc",
                "sys",
                "dev",
                "tmp",
                "etc",
                *(path.strip("/") for path in SHOWN if not Path(path).is_symlink()),
            ):
                (root / path).mkdir(parents=True, exist_ok=True)
            for path in SHOWN:
                if Path(path).is_symlink():
                    (root / path.strip("/")).symlink_to(os.readlink(path))
            archive = subprocess.run(["tar", "-C", root, "-c", "."], capture_output=True, check=True).stdout
            subprocess.run([*client, "import", "-", "attacked"], input=archive, capture_output=True, check=True)
            volumes = [word for path in SHOWN if not Path(path).is_symlink() for word in ("-v", f"{path}:{path}:ro")]
            shown = [*volumes, "-v", f"{PROBES}:{INSIDE}:ro"]
            command = [PYTHON, INSIDE, *arguments]
            return _run([*client, "run", "--rm", "--network", "none", *shown, "attacked", *command])
        finally:
            if server is not None:
                server.terminate()
                server.wait()


def gvisor(arguments: list[str]) -> str:
    """``runsc do`` without a network."""
    found = _program("runsc")
    if os.geteuid():
        raise Missing("runsc do needs root here")
    with tempfile.TemporaryDirectory(prefix="aenv-runsc-") as folder:
        copied = shutil.copy(PROBES, folder)
        return _run([found, "--root", f"{folder}/state", "--network=none", "do", PYTHON, copied, *arguments])


SANDBOXES = {
    "an instance of ours": ours,
    "confined": confined,
    "Docker, defaults": docker,
    "bubblewrap": bubblewrap,
    "gVisor": gvisor,
}


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Missing(f"{name} is not installed")
    return found


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if not done.stdout.strip().startswith("{"):
        raise Missing((done.stderr or done.stdout).strip()[-300:] or f"exit code {done.returncode}")
    return done.stdout


def main() -> int:
    """Print a table; the exit code is 1 when an attack on ours was not held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=SANDBOXES, default=list(SANDBOXES))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results: dict[str, dict] = {}
    missing: dict[str, str] = {}
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        port = server.getsockname()[1]
        abstract.bind(f"\0aenv-attacks-{port}")
        abstract.listen()
        for name in args.only:
            try:
                results[name] = json.loads(SANDBOXES[name]([str(port), str(os.getpid())]))
            except (Missing, OSError, subprocess.SubprocessError) as why:
                missing[name] = str(why)
    if not results:
        parser.error("; ".join(f"{name} could not be started: {why}" for name, why in missing.items()))
    kinds = list(next(iter(results.values())))
    print(f"| attacks | tried | {' | '.join(results)} |")
    print(f"|---|---|{'---|' * len(results)}")
    for kind in kinds:
        held = [sum(was for was, _ in told[kind].values()) for told in results.values()]
        print(f"| {kind} | {len(results[next(iter(results))][kind])} | {' | '.join(map(str, held))} |")
    whole = [sum(was for which in told.values() for was, _ in which.values()) for told in results.values()]
    print(f"| all | {sum(map(len, next(iter(results.values())).values()))} | {' | '.join(map(str, whole))} |")
    for name, why in missing.items():
        print(f"\n{name} could not be started: {why}")
    lost = [(kind, name, said) for kind, which in results.get("an instance of ours", {}).items()
            for name, (was, said) in which.items() if not was]  # fmt: skip
    for kind, name, said in lost:
        print(f"\nnot held by ours: {kind}: {name}: {said}", file=sys.stderr)
    if args.json:
        args.json.write_text(json.dumps({"results": results, "missing": missing}, indent=1))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
