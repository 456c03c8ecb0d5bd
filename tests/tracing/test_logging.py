from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from aenv import setup_logging
from aenv.tracing.logging import getLogger


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger("aenv")
    before = (list(root.handlers), root.propagate, root.level)
    yield
    root.handlers[:], root.propagate, root.level = before


def test_a_log_line_has_the_documented_format() -> None:
    out = io.StringIO()
    setup_logging(logging.StreamHandler(out), logging.INFO)
    getLogger("environment").info("[ENV:x] Executing tool: t in environment e@1")
    date, name, rest = out.getvalue().split(" ", 2)
    assert len(date) == len("20251212-14:47:57.174")
    assert name == "aenv.environment"
    assert rest == "INFO: [ENV:x] Executing tool: t in environment e@1\n"


def test_a_handler_replaces_the_previous_one_and_no_handler_silences_the_log() -> None:
    first, second = io.StringIO(), io.StringIO()
    setup_logging(logging.StreamHandler(first))
    setup_logging(logging.StreamHandler(second))
    getLogger().warning("hello")
    setup_logging()
    getLogger().warning("unheard")
    assert first.getvalue() == ""
    assert second.getvalue().endswith("aenv WARNING: hello\n")


def test_a_configured_root_logger_does_not_repeat_lines(caplog: pytest.LogCaptureFixture) -> None:
    out = io.StringIO()
    setup_logging(logging.StreamHandler(out))
    getLogger("x").error("once")
    assert out.getvalue().count("once") == 1
    assert "once" not in caplog.text


def test_the_library_is_silent_until_it_is_configured() -> None:
    code = "from aenv.tracing.logging import getLogger; getLogger('environment').warning('quiet')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout + done.stderr == b""


def test_a_program_logs_in_the_documented_format_if_a_variable_says_so() -> None:
    code = (
        "import os, asyncio, logging\n"
        "from aenv import Environment\n"
        "env = Environment('x@1', aenv_url='http://127.0.0.1:9')\n"
        "from aenv.tracing.logging import getLogger\n"
        "getLogger('environment').info('[ENV:x] Executing tool: t in environment x@1')\n"
    )

    def said(before: str = "", **variables: str) -> str:
        known = {name: value for name, value in os.environ.items() if name != "AENV_LOG_LEVEL"}
        command = [sys.executable, "-c", before + code]
        done = subprocess.run(command, env={**known, **variables}, capture_output=True, text=True, check=True)
        return done.stderr

    assert said() == ""
    line = said(AENV_LOG_LEVEL="INFO")
    assert re.fullmatch(r"\d{8}-[\d:]{8}\.\d{3} aenv.environment INFO: \[ENV:x\] Executing tool: t in .*\n", line)
    configured = said(
        "import logging; logging.basicConfig(level='INFO', format='mine %(message)s')\n", AENV_LOG_LEVEL="INFO"
    )
    assert configured == "mine [ENV:x] Executing tool: t in environment x@1\n"
