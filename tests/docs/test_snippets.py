"""Every block of code in the documentation runs.

Each page has a scratch project of its own, and its blocks run there from top to bottom:

- A ``python`` block that starts with ``# file: PATH`` is that file. The same goes for ``toml`` and ``text``.
- Any other ``python`` block is a cell of the page's notebook: names live on, and ``await`` works at the top level.
- A ``bash`` block is a script; ``cd`` lasts. One that calls ``make`` is for the repository, and only its targets are
  looked up.
- ``bash server`` is a command that serves an environment and keeps running, until the next of its kind. A page that
  has none gets ``aenv run`` by itself, before the first block that follows a file in ``src/``. Where a block says
  http://localhost:8081, it gets the real address.
- ``python theirs`` is code for another framework, to compare with: it is parsed and not run.
- A block with ``curl`` is left out where curl is not installed; the page's test is then reported as skipped.
- An ``output`` block is what the block before it prints; ``...`` stands for anything.
- ``json`` and ``yaml`` are parsed, and ``dockerfile`` is only shown.
- ``console`` is a session to look at, which is not run; its ``aenv`` commands must exist.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import stop_all
from tests.docs.pages import PAGES, ROOT, Block, blocks_of, name_of

HERE = Path(__file__).parent
LONG_PAGES = {"authoring", "builtin", "from-fastmcp", "mcp-clients", "platform", "publishing", "rollouts", "worlds"}
LANGUAGES = {"python", "bash", "console", "output", "json", "yaml", "dockerfile", "text", "toml", ""}
ADDRESS = re.compile(r"http://(?:localhost|127\.0\.0\.1)(?::8081)?(?![:\w.])")
SECONDS = 60


def variables(home: Path) -> dict[str, str]:
    """Variables for a page: the commands of this Python first, no settings of aenv, a home of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AENV_", "OPENAI_", "DUMMY_"))}
    caches = {"UV_CACHE_DIR": str(Path.home() / ".cache/uv"), "npm_config_cache": str(Path.home() / ".npm")}
    own = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "AENV_RUNTIME_DIR": str(home / "run")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    return {**caches, **kept, **own, "PATH": path, "NO_COLOR": "1"}


class Page:
    """The scratch project of one page, with its server and its notebook."""

    def __init__(self, folder: Path, home: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._variables = variables(home)
        self.printed: str | None = ""
        self.left_out: list[str] = []
        self.url = ""
        self._port = 0  # a server that is started again comes back where it was
        self._stack = stack
        self._log = stack.enter_context((folder / "server.log").open("ab"))
        self._server: subprocess.Popen[str] | None = None
        self._command = "aenv run --no-inspector"
        self._stale = False
        self._notebook: subprocess.Popen[str] | None = None
        self._first = folder

    def write(self, block: Block) -> None:
        assert block.file is not None
        path = self.folder / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text + "\n", encoding="utf-8")
        self._stale = self._stale or block.file.startswith("src/")

    def serve(self, command: str) -> None:
        self._command, self._stale = command, True
        self._start_if_needed()

    def bash(self, block: Block) -> None:
        if block.text.startswith("make "):
            _check_make(block)
            return
        if "curl " in block.text and shutil.which("curl") is None:
            self.left_out.append(block.where)
            self.printed = None
            return
        self._start_if_needed()
        where = self._first / ".pwd"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"{self._here(block.text)}\npwd > '{where}'"],
            cwd=self.folder,
            env={**self._variables, **self._own()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, f"{block.where} exits with {done.returncode}:\n{done.stdout}{done.stderr}"
        self.folder, self.printed = Path(where.read_text().strip()), done.stdout

    def python(self, block: Block) -> None:
        self._start_if_needed()
        notebook = self._open_notebook()
        cell = {"page": block.page, "line": block.line, "text": self._here(block.text), "variables": self._own()}
        assert notebook.stdin is not None
        assert notebook.stdout is not None
        print(json.dumps(cell), file=notebook.stdin, flush=True)
        line = notebook.stdout.readline()
        assert line, f"{block.where}: the interpreter ended"
        answer = json.loads(line)
        assert answer["error"] is None, f"{block.where}:\n{answer['output']}{answer['error']}"
        self.printed = answer["output"]

    def output(self, block: Block) -> None:
        if self.printed is None:
            return
        wanted = ".*?".join(re.escape(part) for part in block.text.strip().split("..."))
        assert re.fullmatch(wanted, self.printed.strip(), re.DOTALL), (
            f"{block.where} is not what is printed:\n{self.printed}"
        )

    def _own(self) -> dict[str, str]:
        return {"AENV_INSTANCE_URL": self.url} if self.url else {}

    def _here(self, text: str) -> str:
        return ADDRESS.sub(self.url, text) if self.url else text

    def _open_notebook(self) -> subprocess.Popen[str]:
        if self._notebook is None:
            self._notebook = self._stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-W", "error::ResourceWarning", str(HERE / "notebook.py")],
                    cwd=self.folder,
                    env=self._variables,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        return self._notebook

    def _start_if_needed(self) -> None:
        if not self._stale:
            return
        self._stop()
        self._stale = False
        server = self._server = self._stack.enter_context(
            subprocess.Popen(
                ["bash", "-c", f"exec {self._command} --port {self._port} --output json"],
                cwd=self.folder,
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
            )
        )
        assert server.stdout is not None
        lines: list[str] = []
        while not lines or lines[-1] != "}\n":
            line = server.stdout.readline()
            assert line, f"{self._command} ended:\n{(self._first / 'server.log').read_text()}"
            lines.append(line)
        self.url = json.loads("".join(lines))["url"]
        self._port = int(self.url.rpartition(":")[2])

    def _stop(self) -> None:
        if self._server is not None:
            self._server.send_signal(signal.SIGTERM)
            assert self._server.wait(SECONDS) == 0, (self._first / "server.log").read_text()
            self._server = None

    def end(self) -> None:
        """Stop the notebook and the server; both must end without an error."""
        if self._notebook is not None:
            rest, _ = self._notebook.communicate(timeout=SECONDS)
            assert (self._notebook.returncode, rest) == (0, "")
        self._stop()

    def kill(self) -> None:
        for process in (self._notebook, self._server):
            if process is not None:
                process.kill()


def _check_make(block: Block) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in block.text.splitlines():
        target = line.split()[1]
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{block.where}: there is no target {target}"


def _parse(block: Block) -> None:
    compile(block.text, block.where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@contextmanager
def scratch(folder: Path) -> Iterator[Page]:
    # A folder with a short path: there are sockets in it.
    with (
        tempfile.TemporaryDirectory(prefix="aenv-t-", dir="/tmp", ignore_cleanup_errors=True) as home,
        ExitStack() as stack,
    ):
        page = Page(folder, Path(home), stack)
        try:
            yield page
            page.end()
        finally:
            page.kill()
            stop_all(Path(home) / "run")


def _page(path: Path) -> Any:
    """Return a page as a parameter; pages whose blocks take many seconds are for the long tests."""
    return pytest.param(path, marks=pytest.mark.long) if path.stem in LONG_PAGES else path


@pytest.mark.parametrize("path", [_page(path) for path in PAGES], ids=name_of)
def test_every_block_of_the_page_runs(path: Path, tmp_path: Path) -> None:
    with scratch(tmp_path) as page:
        for block in blocks_of(path):
            do = _action(page, block)
            if do is not None:
                do(block)
    if page.left_out:
        pytest.skip(f"all but these ran, as there is no curl: {', '.join(page.left_out)}")


def _action(page: Page, block: Block) -> Callable[[Block], Any] | None:
    if block.flags == ("theirs",):
        return _parse
    if block.file is not None:
        return page.write
    if block.flags == ("server",):
        return lambda block: page.serve(block.text.strip())
    actions: dict[str, Callable[[Block], Any]] = {"python": page.python, "bash": page.bash, "output": page.output}
    return actions.get(block.language)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_block_is_of_a_kind_that_is_checked(path: Path) -> None:
    for block in blocks_of(path):
        assert block.language in LANGUAGES, f"{block.where}: unknown language '{block.language}'"
        assert block.flags in ((), ("server",), ("theirs",)), f"{block.where}: {block.flags}"
        if block.language == "json":
            json.loads(block.text)
        if block.language == "yaml":
            assert list(yaml.safe_load_all(block.text)), f"{block.where}: no document"
