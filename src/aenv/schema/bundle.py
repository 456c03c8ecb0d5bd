"""Bundles: the content of one version of an environment, as a manifest and content-addressed blobs.

The manifest lists files, links and the config.json. A file's bytes are cut into blobs of at most 8 MiB. A blob is
identified by the SHA-256 of its bytes, and a bundle by that of its manifest. So a bundle's digest verifies every byte
of it, and a blob that a hub has already is not uploaded again.

Manifests are untrusted input. The rules for paths and links are defined here, once for packing, storing and unpacking:
nothing that validates can be written outside of the folder it is unpacked into.
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
"""Maximum number of files and links together."""
SIZE_LIMIT = 16 * 1024**3
"""Maximum bytes of all files together."""
MANIFEST_LIMIT = 16 * 1024 * 1024
"""Maximum bytes of a manifest's JSON."""
REPEAT_LIMIT, REPEAT_FLOOR = 100, 256 * 1024 * 1024
"""A bundle above the floor may unpack to at most this multiple of its blobs' bytes: a blob can be listed repeatedly."""
CONFIG_LIMIT = 1024 * 1024
PATH_LIMIT = 1024
PART_LIMIT = 255
DEPTH_LIMIT = 64

SETTINGS = ".aenv/cli_config.json"
"""Settings of ``aenv`` in a project. A bundle must not contain them, or it could change its users' settings."""
CONFIG = "config.json"
"""Stored as ``config`` in the manifest and not among the files, so that a version's config exists once."""


def digest_of(data: bytes | memoryview) -> str:
    """Return the digest that identifies a blob."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def check_path(path: str) -> str:
    """Return a path unchanged if a bundle may contain it.

    Raises:
        ValueError: the path could leave the folder, or is not valid on every file system.
    """
    subject = f"the path {shown(path)}"
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{subject} is not UTF-8") from None
    if not path or size > PATH_LIMIT:
        raise ValueError(f"{subject} has {size} bytes; a path has 1 to {PATH_LIMIT}")
    if path.startswith("/") or re.match(r"[A-Za-z]:", path):
        raise ValueError(f"{subject} is absolute; it must lie inside of the project")
    if "\\" in path or any(unicodedata.category(letter) == "Cc" for letter in path):
        raise ValueError(f"{subject} has a backslash or a control character in it")
    parts = path.split("/")
    if len(parts) > DEPTH_LIMIT:
        raise ValueError(f"{subject} is {len(parts)} levels deep; at most {DEPTH_LIMIT} are allowed")
    for part in parts:
        if part in ("", ".", ".."):
            raise ValueError(f"{subject} has the part {part!r} in it; write it plainly, without leaving the project")
        if len(part.encode()) > PART_LIMIT:
            raise ValueError(f"{subject} has a part of more than {PART_LIMIT} bytes")
        if part.casefold() == ".git":
            raise ValueError(f"{subject} lies in a .git folder, where git would run what it finds")
    if path.casefold() == SETTINGS:
        raise ValueError(f"{subject} holds settings of aenv, which are no part of an environment")
    return path


def check_target(path: str, target: str) -> str:
    """Return a link's target unchanged if it stays inside the project.

    Only leading ``..`` are allowed. A link's parent folder is a real folder, so each leading ``..`` goes up exactly one
    level; a later ``..`` could leave a folder that another link points to.

    Raises:
        ValueError: the target is outside of the project, or could be.
    """
    subject = f"the link {shown(path)} points to {shown(target)}"
    parts = target.split("/")
    climbs = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    if target.startswith("/") or climbs > path.count("/"):
        raise ValueError(f"{subject}, which lies outside of the project")
    rest = "/".join(parts[climbs:])
    if climbs < len(parts) and rest != ".":
        try:
            check_path(rest)
        except ValueError as error:
            raise ValueError(f"{subject}: {error}") from None
    return target


Digest = Annotated[str, Field(pattern=DIGEST_PATTERN)]
BundlePath = Annotated[str, AfterValidator(check_path)]


class _ManifestModel(BaseModel):
    """Base of manifest models. Unknown fields are refused, so that the digest covers everything."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class BundleFile(_ManifestModel):
    """A file and the blobs that hold its bytes, in order. All but the last have BLOB_LIMIT bytes."""

    path: BundlePath
    mode: Literal[0o644, 0o755] = 0o644
    """0o755 for executable files."""
    size: int = Field(ge=0, le=SIZE_LIMIT)
    blobs: list[Digest] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_blob_count(self) -> Self:
        count = -(-self.size // BLOB_LIMIT)
        if len(self.blobs) != count:
            raise ValueError(f"{shown(self.path)} has {self.size} bytes, so {count} blobs, not {len(self.blobs)}")
        return self

    def parts(self) -> Iterator[tuple[str, int]]:
        """Yield the file's blobs with their sizes."""
        left = self.size
        for digest in self.blobs:
            yield digest, min(left, BLOB_LIMIT)
            left -= BLOB_LIMIT


class BundleLink(_ManifestModel):
    """A symbolic link to something else in the bundle."""

    path: BundlePath
    target: str

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        check_target(self.path, self.target)
        return self


class Bundle(_ManifestModel):
    """The manifest of a bundle."""

    format: Literal[1] = 1
    name: Annotated[str, AfterValidator(check_name)]
    version: Annotated[str, AfterValidator(check_version)]
    files: list[BundleFile] = Field(default_factory=list, max_length=ENTRY_LIMIT)
    links: list[BundleLink] = Field(default_factory=list, max_length=ENTRY_LIMIT)
    config: dict[str, Any]
    """The config.json, which has the same name and version."""

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
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
                raise ValueError(f"the blob {digest} has two different sizes: {sizes[digest]} bytes and {size} bytes")
        if self.size > max(REPEAT_FLOOR, REPEAT_LIMIT * sum(sizes.values())):
            raise ValueError(
                f"{sum(sizes.values())} bytes of blobs would unpack to {self.size}; the limit is {REPEAT_LIMIT} times"
            )
        return self

    def entries(self) -> list[BundleFile | BundleLink]:
        """Return all files and links; the config.json is not among them."""
        return [*self.files, *self.links]

    @property
    def size(self) -> int:
        """Return the bytes of all files together."""
        return sum(file.size for file in self.files)

    def blobs(self) -> dict[str, int]:
        """Return the distinct blobs with their sizes."""
        return dict(self._parts())

    def _parts(self) -> Iterator[tuple[str, int]]:
        for file in self.files:
            yield from file.parts()

    def canonical(self) -> bytes:
        """Return the canonical JSON that the digest is computed from: sorted keys, no spaces, UTF-8."""
        return _canonical(self.model_dump(mode="python"))

    def digest(self) -> str:
        """Return the digest that identifies the bundle."""
        return digest_of(self.canonical())


def parse(data: bytes | str) -> Bundle:
    """Parse a manifest.

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
    """Return the first validation error of a manifest as a sentence."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    return f"the manifest is not valid: {f'{where}: ' if where else ''}{message}"


def differences(old: Bundle, new: Bundle, limit: int = 20) -> list[str]:
    """Return the changes from one bundle to another, one line each."""
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
        raise ValueError("it contains half of a surrogate pair, which is not valid UTF-8") from None


def _check_order(paths: list[str]) -> None:
    """Require sorted, distinct paths, so that the same files always have the same digest."""
    if any(paths[at] >= paths[at + 1] for at in range(len(paths) - 1)):
        at = next(at for at in range(len(paths) - 1) if paths[at] >= paths[at + 1])
        why = "is listed twice" if paths[at] == paths[at + 1] else "is not in order; sort the entries by their paths"
        raise ValueError(f"{shown(paths[at + 1])} {why}")


def _check_collisions(paths: list[str]) -> None:
    """Refuse paths that a case-insensitive or normalizing file system merges, and entries below a file or a link."""
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
                f"{shown(path)} {'is listed twice' if same else f'and {shown(taken[key])} differ only in case'}"
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
