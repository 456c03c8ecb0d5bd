"""`benchmarks/scale`, as it is run on a machine that has only the package: without any network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "benchmarks" / "scale" / "run.py"


NO_NETWORK = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-current-user", "--net"]
OPTIONS = [
    "--cores", "1", "--clients", "1", "--alive", "1,5", "--seconds", "1", "--warm-up", "0.1", "--size", "2",
    "--runs", "4", "--called", "2",
]  # fmt: skip


@pytest.mark.long
def test_it_prints_its_curves_without_a_network(sandboxes: None, tmp_path: Path) -> None:
    done = subprocess.run(
        [*NO_NETWORK, sys.executable, str(RUN), *OPTIONS, "--json", str(tmp_path / "all")],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}, cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for title in ("Create + call + release", "Create one after another", "Calls, 2 instances"):
        assert title in done.stdout
    found = json.loads((tmp_path / "all").read_text())
    assert found["creates"][0]["per_second"] > 0
    assert found["calls"][0]["per_second"] > 0
    first, last = found["alive"]
    assert last["descriptors"] - first["descriptors"] <= 2 * (last["alive"] - first["alive"])
