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
import sys
from collections.abc import Callable
from pathlib import Path

from aenv.errors import ConfigError, UsageError
from aenv.images.uv_program import uv_program
from aenv.isolation.files.scratch_folders import scratch_folder
from aenv.schema.requirements import LOCK, OWN, REQUIREMENTS, is_current, lists_others, stamp
from aenv.subprocesses import run
from aenv.tracing.waits import waiting_for

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
    lines, limits = _resolved(root, wanted, lines, set())
    text = f"{stamp(raw)}\n{_compile(root, lines, limits, '' if upgrade else before)}"
    if text == before:
        return False
    temporary = target.with_name(f".{LOCK}.{secrets.token_hex(4)}")
    try:
        temporary.write_text(text)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def lock_if_possible(root: Path, *, upgrade: bool = False, say: Callable[[str], None]) -> None:
    """Lock the project; without uv, say that it is not locked.

    Raises:
        UsageError: the lock should be upgraded, and uv is not installed.
        ConfigError: as for `lock`.
    """
    if upgrade or uv_program() is not None:
        if lock(root, upgrade=upgrade):
            say("locked the requirements")
        return
    wanted = root / REQUIREMENTS
    raw = wanted.read_bytes() if wanted.is_file() else b""
    locked = root / LOCK
    if lists_others(raw.decode(errors="replace")) and not (locked.is_file() and is_current(locked.read_text(), raw)):
        say(
            f"Warning: {REQUIREMENTS} is not locked, since uv is not installed: packages are installed in their newest "
            "versions that fit. To lock them: pip install uv"
        )


def find_uv() -> str:
    """Return the path of uv.

    Raises:
        UsageError: uv is not installed.
    """
    found = uv_program()
    if found is None:
        raise UsageError(
            f"{REQUIREMENTS} lists packages, and locking them needs uv",
            {"hint": "Install it: pip install uv"},
        )
    return str(found)


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


def _resolved(root: Path, file: Path, lines: list[str], seen: set[tuple[bool, Path]]) -> tuple[list[str], list[str]]:
    """Return the requirements and the constraints, with those of included files in their place.

    Files are included here and not by uv, so that uv reads exactly the lines that were checked.

    Raises:
        ConfigError: a line would run code of the project, or of a repository or URL that it names.
    """
    wanted, limits = list[str](), list[str]()
    for line in lines:
        if "${" in line:  # uv would put the user's variables into a URL
            raise _refused(root, file, line, "variables are not expanded", {})
        included = _INCLUDE.fullmatch(line)
        if included is not None:
            is_limit = line.startswith(("-c", "--c"))
            more, further = _included(root, file, included["path"].strip(), is_limit, seen)
            (limits if is_limit else wanted).extend(more)
            limits += further
            continue
        word = re.split(r"[\s=]", line, maxsplit=1)[0]
        plain = _HASHES.sub("", line)
        if not _OPTION.fullmatch(word) and (not _PLAIN.fullmatch(plain) or " -" in plain or _ARCHIVE.search(plain)):
            reason = (
                "only names and versions of packages can, since building a package from a path or a URL would run its "
                "code outside of a sandbox"
            )
            raise _refused(root, file, line, reason, {"hint": HINT})
        wanted.append(line)
    return wanted, limits


def _included(
    root: Path, file: Path, name: str, is_limit: bool, seen: set[tuple[bool, Path]]
) -> tuple[list[str], list[str]]:
    path = file.parent / name
    if not path.resolve().is_relative_to(root.resolve()):
        raise ConfigError(f"{os.path.relpath(file, root)}: {name} is outside of the project")
    if (is_limit, path.resolve()) in seen:
        return [], []
    seen.add((is_limit, path.resolve()))
    try:
        lines = _lines(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{os.path.relpath(file, root)}: {name} cannot be read: {error}") from None
    return _resolved(root, path, lines, seen)


def _refused(root: Path, file: Path, line: str, reason: str, details: dict[str, str]) -> ConfigError:
    return ConfigError(f"{os.path.relpath(file, root)}: '{line[:200]}' cannot be locked: {reason}", details)


def _remove(target: Path) -> bool:
    if not target.is_file():
        return False
    target.unlink()
    return True


def _compile(root: Path, lines: list[str], limits: list[str], before: str) -> str:
    """Run uv and return the lock. uv writes to a temporary folder, so that the project never has a partial lock."""
    with scratch_folder("lock") as folder:
        output = Path(folder) / LOCK
        output.write_text(before)  # locked versions are kept where possible
        command = [
            find_uv(), *settings_of_uv(), "pip", "compile", "-", "--universal", "--python-version", PYTHON,
            "--python", sys.executable, "--no-build", "--generate-hashes",
            "--no-header", "--no-annotate", "--no-emit-index-url", "--no-progress", "--color", "never",
            "--output-file", str(output),
        ]  # fmt: skip
        if limits:
            constraints = Path(folder) / "constraints.txt"
            constraints.write_text("\n".join(limits))
            command += ["--constraint", str(constraints)]
        with waiting_for("uv, which looks up the packages of requirements.txt"):
            done = run(command, stdin="\n".join(lines), cwd=root)
        if not done.ok:
            details = {"hint": HINT} if "building source distributions is disabled" in done.stderr.lower() else {}
            raise ConfigError(f"{REQUIREMENTS} cannot be locked:\n{done.stderr.strip()[-3000:]}", details)
        return output.read_text()
