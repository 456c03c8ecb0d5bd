"""``aenv run --reload``: a new server after each change of the code, at the same address."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, variables

ENV = """
from aenv import register_function

@register_function
def version() -> str:
    return "VERSION"
"""


class Reloading:
    """An ``aenv run --reload``, and the lines that it writes."""

    def __init__(self, project: Path) -> None:
        self.code = project / "src" / "custom_env.py"
        self.write("one")
        self.process = subprocess.Popen(
            [*COMMAND, "run", str(project), "--reload", "--quiet", "--port", "0"],
            env=variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        self._spoke = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(stream,)) for stream in (self.process.stdout, self.process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: object) -> None:
        for line in stream:  # type: ignore[attr-defined]
            with self._spoke:
                self.said.append(line)
                self._spoke.notify_all()
        with self._spoke:
            self._spoke.notify_all()

    def write(self, version: str) -> None:
        """Replace the code in one step, as editors do."""
        new = self.code.with_suffix(".new")
        new.write_text(ENV.replace("VERSION", version) if version.isidentifier() else version)
        os.replace(new, self.code)

    def wait_for(self, text: str, times: int = 1) -> str:
        """Wait until that many lines contain ``text``; return the last of them."""
        with self._spoke:
            found = self._spoke.wait_for(lambda: len(self._with(text)) >= times, timeout=60)
        assert found, "".join(self.said)
        return self._with(text)[times - 1]

    def _with(self, text: str) -> list[str]:
        return [line for line in self.said if text in line]

    def ask(self, url: str) -> str:
        request = urllib.request.Request(f"{url}/functions/version", b"{}", {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(json.load(answer)["data"])

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def reloading(project: Path) -> Iterator[Reloading]:
    started = Reloading(project)
    yield started
    started.end()


def url_in(line: str) -> str:
    return line.rpartition(" at ")[2].strip()


def test_a_change_of_the_code_is_served_at_the_same_address(reloading: Reloading) -> None:
    url = url_in(reloading.wait_for("is ready at"))
    assert reloading.ask(url) == "one"
    reloading.write("two")
    assert "src/custom_env.py" in reloading.wait_for("Reloading:")
    reloading.wait_for("running calls have 1 s")
    assert url_in(reloading.wait_for("is ready at", times=2)) == url
    assert reloading.ask(url) == "two"
    reloading.process.send_signal(signal.SIGINT)
    assert reloading.process.wait(30) == 0


def test_broken_code_is_reported_and_the_next_change_is_tried(reloading: Reloading) -> None:
    reloading.wait_for("is ready at")
    reloading.write("this is no Python")
    reloading.wait_for("exit code 4; waiting for a change of the code")
    reloading.write("three")
    assert reloading.ask(url_in(reloading.wait_for("is ready at", times=2))) == "three"


def test_the_server_ends_with_the_process_that_watches(reloading: Reloading) -> None:
    url = url_in(reloading.wait_for("is ready at"))
    reloading.end()  # SIGKILL; the readers end when nobody has the pipes any more
    with pytest.raises(urllib.error.URLError):
        reloading.ask(url)
