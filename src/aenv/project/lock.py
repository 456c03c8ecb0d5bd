"""Lock a project's requirements: which packages, in which versions, with which digests.

``uv`` finds them, for every platform at once. The lock stands next to requirements.txt and is made anew only when
that changed, so a build needs no network again and gives the same bundle tomorrow.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from aenv.errors import ConfigError, UsageError
from aenv.schema.requirements import LOCK, OWN, REQUIREMENTS, is_current, stamp

PYTHON = "3.11"
"""The oldest Python that environments run on."""


def lock(root: Path, *, upgrade: bool = False) -> bool:
    """Write the project's lock where there is none that fits; whether it was written.

    Raises:
        UsageError: there is no uv.
        ConfigError: uv found no set of versions; it says why.
    """
    wanted = root / REQUIREMENTS
    try:
        raw = wanted.read_bytes()
        lines = _lines(raw.decode())
    except FileNotFoundError:
        raw, lines = b"", []
    except UnicodeDecodeError as error:
        raise ConfigError(f"{REQUIREMENTS} is not UTF-8 text: {error.reason}") from None
    target = root / LOCK
    if not lines:
        return _remove(target)
    before = target.read_text() if target.is_file() else ""
    if is_current(before, raw) and not upgrade:
        return False
    text = f"{stamp(raw)}\n{_compile(root, lines, '' if upgrade else before)}"
    if text == before:
        return False
    temporary = target.with_name(f".{LOCK}.{secrets.token_hex(4)}")
    try:
        temporary.write_text(text)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def find_uv() -> str:
    """The uv of this interpreter's environment, else the one on PATH.

    Raises:
        UsageError: there is none.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    found = shutil.which("uv", path=path)
    if found is None:
        raise UsageError(
            f"{REQUIREMENTS} lists packages, and without uv they cannot be locked",
            {"hint": "Install it: pip install uv"},
        )
    return found


def _lines(text: str) -> list[str]:
    """What is asked for besides our own package."""
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines()]
    return [line for line in lines if line and re.split(r"[\s\[<>=!~;@]", line, maxsplit=1)[0].lower() != OWN]


def _remove(target: Path) -> bool:
    if not target.is_file():
        return False
    target.unlink()
    return True


def _compile(root: Path, lines: list[str], before: str) -> str:
    """What uv makes of it. It works in a folder of its own, so that nothing half-made is ever in the project."""
    with tempfile.TemporaryDirectory(prefix="aenv-lock-") as folder:
        output = Path(folder) / LOCK
        output.write_text(before)  # what is locked stays where it can
        done = subprocess.run(
            [
                find_uv(), "pip", "compile", "-", "--universal", "--python-version", PYTHON, "--generate-hashes",
                "--no-header", "--no-annotate", "--no-emit-index-url", "--no-progress", "--color", "never",
                "--output-file", str(output),
            ],
            input="\n".join(lines), cwd=root, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ConfigError(f"{REQUIREMENTS} cannot be locked:\n{done.stderr.strip()[-3000:]}")
        return output.read_text()
