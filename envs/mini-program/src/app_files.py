"""The files of a web app, in one folder, with every version that they had.

The folder may be a storage that outlives the instance. Nothing outside of it is read or written, whatever a path says:
`..`, absolute paths and links are refused or taken as paths below it.
"""

import base64
import difflib
import hashlib
import io
import json
import os
import re
import time
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

MAX_FILE = 1 << 20
"""Bytes of one file."""
MAX_FILES = 500
MAX_TOTAL = 16 << 20
HISTORY = ".history"
"""Folder of the versions: contents by digest, and a line for each change."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class AppFiles:
    """Files by path, such as ``css/app.css``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._versions = root / HISTORY
        self._log = self._versions / "log.jsonl"

    def read(self, path: str) -> str:
        """Return the text of a file.

        Raises:
            FileNotFoundError: there is none.
            ValueError: the path leads out of the project, or a program made the file too long.
        """
        place = self._place(path)
        if not place.is_file() or place.is_symlink():
            raise FileNotFoundError(f"no file {clean(path)}; there are {', '.join(self.paths()) or 'none'}")
        if place.stat().st_size > MAX_FILE:
            raise ValueError(f"{clean(path)} is longer than {MAX_FILE} bytes")
        return place.read_text(encoding="utf-8", errors="replace")

    def write(self, path: str, content: str, by: str = "agent") -> int:
        """Write a file and return the number of its version.

        Raises:
            ValueError: the path is not one of a file, or a limit is reached.
        """
        name, data = clean(path), content.encode("utf-8", "replace")
        if len(data) > MAX_FILE:
            raise ValueError(f"{name} has {len(data)} bytes; at most {MAX_FILE} are allowed")
        place = self._place(path)
        known = self.paths()
        if name not in known and len(known) >= MAX_FILES:
            raise ValueError(f"there are {MAX_FILES} files already")
        if sum(self._place(each).stat().st_size for each in known if each != name) + len(data) > MAX_TOTAL:
            raise ValueError(f"all files together may have {MAX_TOTAL} bytes")
        place.parent.mkdir(parents=True, exist_ok=True)
        self._versions.mkdir(parents=True, exist_ok=True)
        _replace(place, data)
        digest = hashlib.sha256(data).hexdigest()
        kept = self._versions / digest
        if not kept.exists():
            _replace(kept, data)
        return self._note(name, digest, by)

    def remove(self, path: str, by: str = "agent") -> int:
        """Remove a file; its versions stay."""
        self.read(path)
        self._place(path).unlink()
        return self._note(clean(path), None, by)

    def paths(self, directory: str = "/") -> list[str]:
        """Return the paths of all files below a folder."""
        below = clean(directory, folder=True)
        found = []
        for folder, folders, names in os.walk(self.root):
            if Path(folder) == self.root:
                folders[:] = [each for each in folders if each != HISTORY]
            for name in names:
                place = Path(folder) / name
                path = place.relative_to(self.root).as_posix()
                if not place.is_symlink() and (not below or path == below or path.startswith(f"{below}/")):
                    found.append(path)
        return sorted(found)

    def texts(self) -> dict[str, str]:
        """Return all files that are not too long, up to the limits: programs may write what they like."""
        found: dict[str, str] = {}
        for path in self.paths()[:MAX_FILES]:
            if self._place(path).stat().st_size <= MAX_FILE and sum(map(len, found.values())) <= MAX_TOTAL:
                found[path] = self.read(path)
        return found

    def history(self, path: str = "") -> list[dict[str, Any]]:
        """Return the changes, oldest first: ``version``, ``path``, ``digest`` (None: removed), ``at``, ``by``."""
        if not self._log.exists():
            return []
        name = clean(path) if path else ""
        rows = [_row(line) for line in self._log.read_text(errors="replace").splitlines()]
        return [row for row in rows if row is not None and (not name or row["path"] == name)]

    def version(self, path: str, number: int) -> str:
        """Return the text of a file as it was after a change; empty before the first one and after a removal."""
        last = None
        for row in self.history(path):
            if row["version"] <= number:
                last = row["digest"]
        return (self._versions / last).read_text(encoding="utf-8", errors="replace") if last else ""

    def difference(self, path: str, first: int, second: int) -> str:
        """Return what changed in a file between two versions, as a unified diff."""
        before, after = self.version(path, first), self.version(path, second)
        lines = difflib.unified_diff(
            before.splitlines(), after.splitlines(), f"{clean(path)}@{first}", f"{clean(path)}@{second}", lineterm=""
        )
        return "\n".join(lines)

    def as_zip(self) -> bytes:
        """Return all files as a zip: the same files give the same bytes."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, text in self.texts().items():
                archive.writestr(zipfile.ZipInfo(path, (2000, 1, 1, 0, 0, 0)), text)
        return buffer.getvalue()

    @property
    def chat(self) -> Path:
        """Where a conversation is kept."""
        self._versions.mkdir(parents=True, exist_ok=True)
        return self._versions / "chat.json"

    def digest(self) -> str:
        """Return a digest of all files: another one when anything changed."""
        return hashlib.sha256(json.dumps(self.texts(), sort_keys=True).encode()).hexdigest()[:16]

    def _place(self, path: str) -> Path:
        place = self.root / clean(path)
        parent = place.parent
        while parent != self.root:
            if parent.is_symlink():
                raise ValueError(f"{path!r} leads through a link")
            parent = parent.parent
        return place

    def _note(self, path: str, digest: str | None, by: str) -> int:
        number = len(self.history()) + 1
        row = {"version": number, "path": path, "digest": digest, "at": time.time(), "by": by}
        with self._log.open("a") as file:
            file.write(json.dumps(row) + "\n")
        return number


def clean(path: str, *, folder: bool = False) -> str:
    """Return a path relative to the project.

    Raises:
        ValueError: it leads out of the project, or names nothing.
    """
    parts = [part for part in PurePosixPath(path.replace("\\", "/")).parts if part not in ("/", ".")]
    if ".." in parts or "\0" in path or (parts and parts[0] == HISTORY):
        raise ValueError(f"{path!r} leads out of the project")
    if not parts and not folder:
        raise ValueError("name a file, such as index.html")
    return "/".join(parts)


def _row(line: str) -> dict[str, Any] | None:
    """Return a line of the log; None if a program has damaged it."""
    try:
        row = json.loads(line)
        whole = isinstance(row["version"], int) and isinstance(row["path"], str)
        return row if whole and (row["digest"] is None or _DIGEST.fullmatch(row["digest"])) else None
    except (ValueError, KeyError, TypeError):
        return None


def encoded(data: bytes) -> str:
    """Return bytes as text, for JSON."""
    return base64.b64encode(data).decode()


def _replace(place: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    temporary = place.with_name(f".{place.name}.new")
    temporary.write_bytes(data)
    os.replace(temporary, place)
