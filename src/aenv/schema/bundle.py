"""A bundle: everything of one version of an environment, as a manifest and the blobs that it names.

The manifest lists files, links and the config.json. A file's bytes are cut into blobs of at most 8 MiB, and a blob
is called by the SHA-256 of its bytes; the bundle is called by that of its manifest. So whoever has a bundle's digest
can check every byte of it, and a blob that is there once need not be sent again.

A manifest comes from strangers. What a path or a link may be is decided here, once for who packs, who stores and who
unpacks: nothing that validates can be written outside of the folder it is unpacked into.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from aenv.schema.names import check_name, check_version, shown
from aenv.schema.ref import DIGEST_PATTERN

BLOB_LIMIT = 8 * 1024 * 1024
ENTRY_LIMIT = 50_000
"""Files and links together."""
SIZE_LIMIT = 16 * 1024**3
"""The files' bytes together."""
MANIFEST_LIMIT = 16 * 1024 * 1024
"""A manifest's own JSON."""
REPEAT_LIMIT, REPEAT_FLOOR = 100, 256 * 1024 * 1024
"""How many times over its blobs a bundle may unpack to, once it is larger than that: one blob can be named often."""
CONFIG_LIMIT = 1024 * 1024
PATH_LIMIT = 1024
PART_LIMIT = 255
DEPTH_LIMIT = 64

SETTINGS = ".aenv/cli_config.json"
"""Where ``aenv`` looks for its settings in a project: somebody else's bundle must not bring its own."""
CONFIG = "config.json"
"""Stands in ``config`` and not among the files: there is one truth about a version's settings."""


def digest_of(data: bytes | memoryview) -> str:
    """What a blob is called."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def check_path(path: str) -> str:
    """A place inside of a bundle, itself.

    Raises:
        ValueError: it could lead out of the folder, or cannot be a file's name everywhere.
    """
    wrong = f"the path {shown(path)}"
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{wrong} is not UTF-8") from None
    if not path or size > PATH_LIMIT:
        raise ValueError(f"{wrong} has {size} bytes; a path has 1 to {PATH_LIMIT}")
    if path.startswith("/") or re.match(r"[A-Za-z]:", path):
        raise ValueError(f"{wrong} is absolute; it must lie inside of the project")
    if "\\" in path or any(unicodedata.category(letter) == "Cc" for letter in path):
        raise ValueError(f"{wrong} has a backslash or a control character in it")
    parts = path.split("/")
    if len(parts) > DEPTH_LIMIT:
        raise ValueError(f"{wrong} is {len(parts)} levels deep; at most {DEPTH_LIMIT} are allowed")
    for part in parts:
        if part in ("", ".", ".."):
            raise ValueError(f"{wrong} has the part {part!r} in it; write it plainly, without leaving the project")
        if len(part.encode()) > PART_LIMIT:
            raise ValueError(f"{wrong} has a part of more than {PART_LIMIT} bytes")
        if part.casefold() == ".git":
            raise ValueError(f"{wrong} lies in a .git folder, where git would run what it finds")
    if path.casefold() == SETTINGS:
        raise ValueError(f"{wrong} holds settings of aenv, which are no part of an environment")
    return path


def check_target(path: str, target: str) -> str:
    """Where a link points, itself.

    Only leading ``..`` are allowed. A link's own folder is a real one, so these climb exactly as far as they say;
    further in they could climb out of a folder that another link leads to.

    Raises:
        ValueError: it leads out of the project, or could.
    """
    wrong = f"the link {shown(path)} points to {shown(target)}"
    parts = target.split("/")
    climbs = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    if target.startswith("/") or climbs > path.count("/"):
        raise ValueError(f"{wrong}, which lies outside of the project")
    rest = "/".join(parts[climbs:])
    if climbs < len(parts) and rest != ".":
        try:
            check_path(rest)
        except ValueError as error:
            raise ValueError(f"{wrong}: {error}") from None
    return target


Digest = Annotated[str, Field(pattern=DIGEST_PATTERN)]
Place = Annotated[str, AfterValidator(check_path)]


class _Part(BaseModel):
    """What is not known is refused: the digest must cover all that is there."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class BundleFile(_Part):
    """A file and the blobs that hold its bytes, in order. All but the last are full."""

    path: Place
    mode: Literal[0o644, 0o755] = 0o644
    """0o755 for what can be executed."""
    size: int = Field(ge=0, le=SIZE_LIMIT)
    blobs: list[Digest] = Field(default_factory=list)

    @model_validator(mode="after")
    def _blobs_hold_the_bytes(self) -> Self:
        count = -(-self.size // BLOB_LIMIT)
        if len(self.blobs) != count:
            raise ValueError(f"{shown(self.path)} has {self.size} bytes, so {count} blobs, not {len(self.blobs)}")
        return self

    def parts(self) -> Iterator[tuple[str, int]]:
        """Its blobs, each with its size."""
        left = self.size
        for digest in self.blobs:
            yield digest, min(left, BLOB_LIMIT)
            left -= BLOB_LIMIT


class BundleLink(_Part):
    """A symbolic link to something else in the bundle."""

    path: Place
    target: str

    @model_validator(mode="after")
    def _stays_inside(self) -> Self:
        check_target(self.path, self.target)
        return self


class Bundle(_Part):
    """The manifest of a bundle."""

    format: Literal[1] = 1
    name: Annotated[str, AfterValidator(check_name)]
    version: Annotated[str, AfterValidator(check_version)]
    files: list[BundleFile] = Field(default_factory=list, max_length=ENTRY_LIMIT)
    links: list[BundleLink] = Field(default_factory=list, max_length=ENTRY_LIMIT)
    config: dict[str, Any]
    """The config.json, which has the same name and version."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        for key in ("name", "version"):
            if self.config.get(key) != getattr(self, key):
                raise ValueError(f"the {key} of the bundle and the {key} in its config.json differ")
        if len(_canonical(self.config)) > CONFIG_LIMIT:
            raise ValueError(f"the config.json is larger than {CONFIG_LIMIT} bytes")
        entries = self.entries()
        if len(entries) > ENTRY_LIMIT:
            raise ValueError(f"there are {len(entries)} entries; at most {ENTRY_LIMIT} are allowed")
        if self.size > SIZE_LIMIT:
            raise ValueError(f"the files have {self.size} bytes; at most {SIZE_LIMIT} are allowed")
        _check_order([file.path for file in self.files])
        _check_order([link.path for link in self.links])
        _check_collisions([CONFIG, *(entry.path for entry in entries)])
        sizes: dict[str, int] = {}
        for digest, size in self._parts():
            if sizes.setdefault(digest, size) != size:
                raise ValueError(f"the blob {digest} is said to have {sizes[digest]} bytes and {size} bytes")
        if self.size > max(REPEAT_FLOOR, REPEAT_LIMIT * sum(sizes.values())):
            raise ValueError(f"{sum(sizes.values())} bytes of blobs would unpack to {self.size}; that is a trap")
        return self

    def entries(self) -> list[BundleFile | BundleLink]:
        """All that is unpacked, but for the config.json."""
        return [*self.files, *self.links]

    @property
    def size(self) -> int:
        """The files' bytes."""
        return sum(file.size for file in self.files)

    def blobs(self) -> dict[str, int]:
        """Every blob, once, with its size."""
        return dict(self._parts())

    def _parts(self) -> Iterator[tuple[str, int]]:
        for file in self.files:
            yield from file.parts()

    def canonical(self) -> bytes:
        """The one spelling that the digest is made of: sorted keys, no spaces, UTF-8."""
        return _canonical(self.model_dump(mode="python"))

    def digest(self) -> str:
        """What the bundle is called."""
        return digest_of(self.canonical())


def parse(data: bytes | str) -> Bundle:
    """Read a manifest.

    Raises:
        ValueError: with one sentence that says what is wrong.
    """
    if len(data) > MANIFEST_LIMIT:
        raise ValueError(f"the manifest is larger than {MANIFEST_LIMIT} bytes")
    try:
        return Bundle.model_validate_json(data)
    except ValidationError as error:
        raise ValueError(explain(error)) from None


def explain(error: ValidationError) -> str:
    """The first thing that is wrong with a manifest, as a sentence."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    return f"the manifest is not valid: {f'{where}: ' if where else ''}{message}"


def differences(old: Bundle, new: Bundle, limit: int = 20) -> list[str]:
    """What changed from one to the other, a line each."""
    before, after = ({entry.path: entry for entry in each.entries()} for each in (old, new))
    lines = [f"config.json: {key}" for key in {**old.config, **new.config} if _differ(old.config, new.config, key)]
    lines += [f"added {path}" for path in after if path not in before]
    lines += [f"removed {path}" for path in before if path not in after]
    lines += [f"changed {path}" for path in after if path in before and before[path] != after[path]]
    return lines if len(lines) <= limit else [*lines[:limit], f"and {len(lines) - limit} more"]


def _differ(old: dict[str, Any], new: dict[str, Any], key: str) -> bool:
    return (key in old) != (key in new) or old.get(key) != new.get(key)


def _canonical(value: Any) -> bytes:
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError("there is half of a surrogate pair in it, which is not UTF-8") from None


def _check_order(paths: list[str]) -> None:
    """One order, so that the same files have the same digest."""
    if any(paths[at] >= paths[at + 1] for at in range(len(paths) - 1)):
        at = next(at for at in range(len(paths) - 1) if paths[at] >= paths[at + 1])
        why = "is there twice" if paths[at] == paths[at + 1] else "is not in order; sort the entries by their paths"
        raise ValueError(f"{shown(paths[at + 1])} {why}")


def _check_collisions(paths: list[str]) -> None:
    """No two names that some file system takes for one, and nothing inside of a file or a link."""
    spelled: dict[str, str] = {}
    for path in paths:
        for end in _ends(path):
            folder = path[:end]
            if spelled.setdefault(_folded(folder) + "/", folder) != folder:
                raise ValueError(f"{shown(folder)} and {shown(spelled[_folded(folder) + '/'])} differ only in case")
    taken: dict[str, str] = {}
    for path in paths:
        key = _folded(path)
        if key in taken:
            same = taken[key] == path
            raise ValueError(
                f"{shown(path)} {'is there twice' if same else f'and {shown(taken[key])} differ only in case'}"
            )
        if key + "/" in spelled:
            raise ValueError(f"{shown(path)} is a file or a link, and other entries lie inside of it")
        taken[key] = path


def _ends(path: str) -> Iterator[int]:
    at = path.find("/")
    while at >= 0:
        yield at
        at = path.find("/", at + 1)


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
