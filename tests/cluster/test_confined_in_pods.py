"""The native engine inside a pod of the standard "restricted": namespaces are refused there, and ``confined`` holds.

The driver below is the pod's command: it uses the SDK as a trainer in that pod would, and prints what it found.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import IMAGE, NAMESPACE
from tests.cluster.test_installation import kubectl

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]
PROBES = Path(__file__).parents[2] / "benchmarks" / "attacks" / "probes.py"
ALLOWED = {"2,000 processes", "4 GiB of memory"}
"""Attacks on limits, which a pod without control groups of its own cannot hold for one instance: the pod's own do."""
DRIVER = """
import json, os, pathlib, shutil, socket, statistics, subprocess, sys, time
from aenv.sdk.blocking import SyncEnvironment

project = pathlib.Path("/tmp/attacked")
(project / "src").mkdir(parents=True)
(project / "config.json").write_text('{"name": "attacked", "version": "1.0.0"}')
shutil.copy("/probes/probes.py", project)
(project / "src" / "env.py").write_text('''
import subprocess, sys
from aenv import register_tool

@register_tool
def attack(arguments: list[str]) -> str:
    done = subprocess.run([sys.executable, "probes.py", *arguments], capture_output=True, text=True)
    return done.stdout or done.stderr

@register_tool
def signal(pid: int) -> str:
    import os
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.strerror
    return "done"
''')
start = f"from aenv.sdk.blocking import SyncEnvironment\\nwith SyncEnvironment({str(project)!r}): print('started')"
tried = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True)  # a process has one platform
found = {"by default": tried.stdout + tried.stderr}
os.environ["AENV_ISOLATION"] = "confined"
with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
    port = server.getsockname()[1]
    abstract.bind(f"\\0aenv-attacks-{port}")
    abstract.listen()
    with SyncEnvironment(str(project)) as env:
        found["attacks"] = env.call_tool("attack", {"arguments": [str(port), str(os.getpid())]}, 200).text
        found["signal"] = env.call_tool("signal", {"pid": os.getpid()}).text
    times = []
    for _ in range(20):
        began = time.perf_counter()
        with SyncEnvironment(str(project)) as env:
            env.call_tool("signal", {"pid": 0})
            times.append((time.perf_counter() - began) * 1000)
    found["milliseconds"] = statistics.median(times)
found["left"] = [str(path) for path in pathlib.Path("/tmp").glob("aenv-confined-*/instances/*")]
print("FOUND " + json.dumps(found), flush=True)
"""


@pytest.fixture
def pod() -> Iterator[str]:
    """A pod that runs the driver, as restricted as the standard wants it."""
    name = f"confined-{secrets.token_hex(4)}"
    script = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
              "data": {"probes.py": PROBES.read_text(), "driver.py": DRIVER}}  # fmt: skip
    body = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [{"name": "probes", "configMap": {"name": name}}],
        "containers": [
            {
                "name": "main",
                "image": IMAGE,
                "command": ["python3", "/probes/driver.py"],
                "env": [{"name": "HOME", "value": "/tmp"}],
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [{"name": "probes", "mountPath": "/probes"}],
                "resources": {"limits": {"memory": "2Gi", "cpu": "2"}, "requests": {"memory": "256Mi", "cpu": "0.1"}},
            }
        ],
    }  # fmt: skip
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}
    for each in (script, manifest):
        kubectl_apply(each)
    yield name
    kubectl("-n", NAMESPACE, "delete", f"pod/{name}", f"configmap/{name}", "--grace-period=0", "--force")


def kubectl_apply(manifest: dict[str, Any]) -> None:
    import subprocess

    done = subprocess.run(
        ["kubectl", "-n", NAMESPACE, "apply", "-f", "-"], input=json.dumps(manifest), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def found_in(pod: str, seconds: float = 200) -> dict[str, Any]:
    """Return what the driver has printed, once it has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        state = json.loads(kubectl("-n", NAMESPACE, "get", "pod", pod, "-o", "json"))["status"]["phase"]
        if state in ("Succeeded", "Failed"):
            break
        time.sleep(1)
    text = kubectl("-n", NAMESPACE, "logs", pod)
    lines = [line for line in text.splitlines() if line.startswith("FOUND ")]
    assert lines, text[-3000:]
    found: dict[str, Any] = json.loads(lines[0].removeprefix("FOUND "))
    return found


def test_instances_in_a_restricted_pod_are_confined_and_only_where_that_is_chosen(pod: str) -> None:
    found = found_in(pod)
    assert "this host forbids user namespaces" in found["by default"]
    results = json.loads(found["attacks"])
    lost = {name: why for which in results.values() for name, (held, why) in which.items() if not held}
    assert set(lost) <= ALLOWED, lost
    assert sum(map(len, results.values())) > 100
    assert found["signal"] == "Operation not permitted"
    assert found["left"] == []
    print(f"create to first answer in the pod: {found['milliseconds']:.1f} ms (median of 20)")
