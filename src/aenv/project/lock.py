"""Lock a project's requirements: packages, versions and digests.

``uv`` resolves them for all platforms at once. The lock is stored next to requirements.txt and is updated only when
that file changes, so a later build needs no network and gives the same bundle.

The project may be untrusted, and locking runs outside of a sandbox. So no code of the project is executed: only wheels
are considered, since building a package would run its setup.py or build backend; paths, URLs and repositories are
rejected; and uv reads neither the project's settings (uv.toml, pyproject.toml) nor its .venv.
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
HINT = (
    "Publish the package as a wheel and name its version, or put its modules into the project's src/. "
    "Where only the image needs it, use --no-lock."
)
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[[^\]/@:]*\])?\s*[^/@:;]*(;[^/@]*)?")
_ARCHIVE = re.compile(r"\.(whl|egg|zip|tgz|tar|tar\.\w+)$", re.IGNORECASE)
_HASHES = re.compile(r"(\s+--hash[= ]\S+)+$")
_OPTION = re.compile(
    r"-i|--index-url|--extra-index-url|-f|--find-links|--no-index|--pre|--only-binary|--prefer-binary|--trusted-host"
    r"|--require-hashes"
)
_INCLUDE = re.compile(r"(?:-r|-c|--requirements?|--constraints?)(?:\s*[= ]\s*|(?<=-[rc]))(?P<path>\S.*)")


def lock(root: Path, *, upgrade: bool = False) -> bool:
    """Write the project's lock if it is missing or outdated; return whether it was written.

    Raises:
        UsageError: uv is not installed.
        ConfigError: a line names more than a package of an index, or uv found no set of versions.
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
    _check(root, wanted, lines, set())
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
    """Return the path of uv, from this interpreter's environment or else from PATH.

    Raises:
        UsageError: uv is not installed.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    found = shutil.which("uv", path=path)
    if found is None:
        raise UsageError(
            f"{REQUIREMENTS} lists packages, and locking them needs uv",
            {"hint": "Install it: pip install uv"},
        )
    return found


def settings_of_uv() -> list[str]:
    """Return options that make uv ignore the settings of its working directory and read only the user's."""
    if os.environ.get("UV_CONFIG_FILE"):
        return []
    folders = [Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser(), Path("/etc")]
    own = next((path for folder in folders if (path := folder / "uv" / "uv.toml").is_file()), None)
    off = os.environ.get("UV_NO_CONFIG", "").lower() in ("1", "true", "yes")
    return ["--no-config"] if own is None or off else ["--config-file", str(own)]


def _lines(text: str) -> list[str]:
    """Return the requirements and options, without comments and without our own package."""
    text = re.sub(r"\\\r?\n", " ", text)
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines()]
    return [line for line in lines if line and re.split(r"[\s\[<>=!~;@]", line, maxsplit=1)[0].lower() != OWN]


def _check(root: Path, file: Path, lines: list[str], seen: set[Path]) -> None:
    """Reject requirements that would run code of the project, or of a repository or URL that it names."""
    for line in lines:
        included = _INCLUDE.fullmatch(line)
        if included is not None:
            _check_included(root, file, included["path"].strip(), seen)
            continue
        word = re.split(r"[\s=]", line, maxsplit=1)[0]
        plain = _HASHES.sub("", line)
        if _OPTION.fullmatch(word) or (_PLAIN.fullmatch(plain) and " -" not in plain and not _ARCHIVE.search(plain)):
            continue
        raise ConfigError(
            f"{os.path.relpath(file, root)}: '{line[:200]}' cannot be locked: only names and versions of packages can, "
            "since building a package from a path or a URL would run its code outside of a sandbox",
            {"hint": HINT},
        )


def _check_included(root: Path, file: Path, name: str, seen: set[Path]) -> None:
    path = file.parent / name
    if not path.resolve().is_relative_to(root.resolve()):
        raise ConfigError(f"{os.path.relpath(file, root)}: {name} is outside of the project")
    if path.resolve() in seen:
        return
    seen.add(path.resolve())
    try:
        lines = _lines(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{os.path.relpath(file, root)}: {name} cannot be read: {error}") from None
    _check(root, path, lines, seen)


def _remove(target: Path) -> bool:
    if not target.is_file():
        return False
    target.unlink()
    return True


def _compile(root: Path, lines: list[str], before: str) -> str:
    """Run uv and return the lock. uv writes to a temporary folder, so that the project never has a partial lock."""
    with tempfile.TemporaryDirectory(prefix="aenv-lock-") as folder:
        output = Path(folder) / LOCK
        output.write_text(before)  # locked versions are kept where possible
        done = subprocess.run(
            [
                find_uv(), *settings_of_uv(), "pip", "compile", "-", "--universal", "--python-version", PYTHON,
                "--python", sys.executable, "--no-build", "--generate-hashes",
                "--no-header", "--no-annotate", "--no-emit-index-url", "--no-progress", "--color", "never",
                "--output-file", str(output),
            ],
            input="\n".join(lines), cwd=root, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            details = {"hint": HINT} if "building source distributions is disabled" in done.stderr.lower() else {}
            raise ConfigError(f"{REQUIREMENTS} cannot be locked:\n{done.stderr.strip()[-3000:]}", details)
        return output.read_text()
