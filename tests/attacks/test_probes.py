"""The attacks of `benchmarks/attacks`, which compares kinds of sandboxes, run in one of our instances."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from pathlib import Path

import pytest

from aenv.sdk.blocking import SyncEnvironment
from tests.attacks.ledger import Attacks
from tests.isolation.host import forget_lease, own_platform, start_shared_threads

PROBES = Path(__file__).parents[2] / "benchmarks" / "attacks" / "probes.py"
CODE = """
import subprocess, sys
from aenv import register_tool

@register_tool
def attack(arguments: list[str]) -> str:
    return subprocess.run([sys.executable, "/app/probes.py", *arguments], capture_output=True, text=True).stdout
"""


def test_every_attack_of_a_program_in_an_instance_fails(
    sandboxes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attacks: Attacks
) -> None:
    if os.uname().machine != "x86_64" or sys.platform != "linux":
        pytest.skip("the attacks name system calls by the numbers of x86_64")
    project = tmp_path / "attacked"
    (project / "src").mkdir(parents=True)
    (project / "config.json").write_text('{"name": "attacked", "version": "1.0.0"}')
    (project / "src" / "env.py").write_text(CODE)
    shutil.copy(PROBES, project / "probes.py")
    start_shared_threads()
    forget_lease()
    with own_platform() as platform, socket.create_server(("127.0.0.1", 0)) as server:
        for name, value in platform.variables.items():
            monkeypatch.setenv(name, value)
        port = server.getsockname()[1]
        with socket.socket(socket.AF_UNIX) as abstract:
            abstract.bind(f"\0aenv-attacks-{port}")
            abstract.listen()
            with SyncEnvironment(str(project)) as env:
                answer = env.call_tool("attack", {"arguments": [str(port), str(os.getpid())]}, 600)
    results = json.loads(answer.text)
    assert sum(map(len, results.values())) > 100
    limited = os.geteuid() == 0  # for an ordinary user, no kernel limit covers all processes together
    for kind, which in results.items():
        for name, (held, reason) in which.items():
            if limited or name != "4 GiB of memory":
                attacks.record(kind, f"{name}: {reason}", held=held)
    attacks.all_held()
