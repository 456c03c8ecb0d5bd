"""Parse a project's requirements: the packages to install, and where to look for them.

The project may be untrusted, and its packages are installed outside of a sandbox. So only wheels are installed, since
building a package would run its code; a path must stay within the project; a URL must belong to a host that the
network rules of the environment allow. Everything else is refused, with the line and the reason.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement

from aenv.errors import LoadError
from aenv.schema.requirements import LOCK, REQUIREMENTS, is_current

HINT = "publish it as a wheel, put the wheel or its modules into the project, or install it where aenv runs"
_HASHES = re.compile(r"(\s+--hash[= ]sha256:[0-9a-f]{64})+\s*$")
_URL = re.compile(r"(?i)([a-z][a-z0-9+.-]*)://")
_NAMED = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[[^\]]*\])?\s*@")
_SWITCHES = ("--no-index", "--pre")
_IGNORED = ("--require-hashes", "--prefer-binary", "--only-binary")
"""Options that change nothing: only wheels are installed, and the hashes of a line are always checked."""
_SHORT = {"-i": "--index-url", "-f": "--find-links", "-r": "--requirement", "-c": "--constraint", "-e": "--editable"}
_BESIDE_WHEELS = (".whl", ".gz", ".zip", ".bz2", ".xz", ".metadata", ".asc", ".sha256", ".txt", ".md", "")
"""Suffixes of files that a folder of wheels may contain. Installers read the wheels only."""
_PORTS = {"http": 80, "https": 443}
_DEEPEST = 8


@dataclass(frozen=True, slots=True)
class Line:
    """Package to install."""

    text: str
    """Line as the installer reads it."""
    requirement: Requirement | None
    """None: a wheel without a name, at a path or URL."""
    url: str = ""
    """Location of the package, if it is not looked up in an index."""
    where: str = REQUIREMENTS
    """File that the line comes from."""
    refused: str = ""
    """Reason why it cannot be installed, unless it is there already."""
    applies: bool = True
    """False: its marker excludes this Python or this system."""

    @property
    def shown(self) -> str:
        """The line for people: without digests and passwords."""
        return redacted(_HASHES.sub("", self.text).strip())


@dataclass(slots=True)
class RequirementFile:
    """The requirements of a project, with the files that they include."""

    lines: list[Line] = field(default_factory=list)
    options: list[tuple[str, str]] = field(default_factory=list)
    """Options for the installer with their values: indexes, folders of wheels, constraints."""
    urls: list[tuple[str, str]] = field(default_factory=list)
    """URLs that installing needs besides the configured index, each with the line that names it."""


def read(project: Path) -> RequirementFile:
    """Read a project's requirements; those of its lock, with versions and digests, where that is current.

    Raises:
        LoadError: a line is invalid, or an option is not supported.
    """
    found = RequirementFile()
    try:
        raw = (project / REQUIREMENTS).read_bytes()
    except OSError:
        return found
    with contextlib.suppress(OSError, UnicodeDecodeError):
        locked = (project / LOCK).read_text()
        if is_current(locked, raw):
            options = RequirementFile()  # a lock names no index
            _read_into(options, project, REQUIREMENTS, raw.decode(errors="replace"), 0)
            found.options, found.urls = options.options, options.urls
            for text in _lines(locked):
                _add(found, _requirement(project, LOCK, text))
            return found
    _read_into(found, project, REQUIREMENTS, raw.decode(errors="replace"), 0)
    return found


def redacted(text: str) -> str:
    """Return the text with user names and passwords of URLs hidden."""
    return re.sub(r"(?i)([a-z][a-z0-9+.-]*://)[^/@\s]*@", r"\1***@", text)


def host_and_port(url: str) -> tuple[str, int]:
    """Return the host and port that a URL leads to.

    Raises:
        ValueError: it is not an HTTP URL, or another program may see another host in it.
    """
    if "\\" in url or not url.isascii() or not url.isprintable():
        raise ValueError(f"{redacted(url)} contains characters that a URL cannot contain")
    parts = urlsplit(url)
    scheme = parts.scheme.lower().rpartition("+")[2]
    if scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{redacted(url)} is not an http or https URL")
    return parts.hostname, parts.port or _PORTS[scheme]


def _read_into(found: RequirementFile, project: Path, name: str, text: str, depth: int) -> None:
    for line in _lines(text):
        if line.startswith("-"):
            _option(found, project, name, line, depth)
            continue
        _add(found, _requirement(project, name, line))


def _add(found: RequirementFile, line: Line) -> None:
    found.lines.append(line)
    if line.url and not line.url.startswith("file:"):
        found.urls.append((line.url, line.shown))


def _lines(text: str) -> Iterator[str]:
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        bare = re.sub(r"(^|\s)#.*", "", line).strip()
        if bare:
            yield bare


def _option(found: RequirementFile, project: Path, where: str, line: str, depth: int) -> None:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise _refusal(where, line, str(error)) from None
    name, equals, value = words[0].partition("=")
    if name[:2] in _SHORT and not name.startswith("--"):
        value = value if equals else name[2:] or "".join(words[1:2])
        name = _SHORT[name[:2]]
    elif not equals:
        value = "".join(words[1:2])
    if name in _IGNORED:
        return
    if name in _SWITCHES:
        found.options.append((name, ""))
    elif name in ("--requirement", "--constraint"):
        _include(found, project, where, line, name, value, depth)
    elif name in ("--index-url", "--extra-index-url", "--find-links"):
        place = _place(found, project, where, line, value)
        if name == "--find-links":
            _check_wheel_folder(project, where, line, place)
        found.options.append((name, place))
    elif name == "--editable":
        found.lines.append(_requirement(project, where, value, editable=True))
    else:
        raise _refusal(where, line, f"the option {name} is not supported")


def _include(found: RequirementFile, project: Path, where: str, line: str, option: str, value: str, depth: int) -> None:
    path = _inside(project, where, line, value, base=(project / where).parent)
    if depth >= _DEEPEST:
        raise _refusal(where, line, "the files include each other")
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError):
        raise _refusal(where, line, "the file cannot be read") from None
    name = str(path.relative_to(project.resolve()))
    if option == "--requirement":
        _read_into(found, project, name, text, depth + 1)
        return
    constraints = [_requirement(project, name, each) for each in _lines(text)]
    if any(each.url or each.refused for each in constraints):
        raise _refusal(where, line, "a constraint must be the name and version of a package")
    found.options.append(("--constraint", "".join(f"{each.text}\n" for each in constraints)))


def _place(found: RequirementFile, project: Path, where: str, line: str, value: str) -> str:
    """Return the URL of an index, or the path of a folder of wheels within the project."""
    if "$" in value:
        raise _refusal(where, line, "variables are not expanded; set UV_INDEX_URL or PIP_INDEX_URL where aenv runs")
    if _URL.match(value) and not value.lower().startswith("file:"):
        found.urls.append((value, redacted(line)))
        return value
    return str(_inside(project, where, line, value))


def _check_wheel_folder(project: Path, where: str, line: str, place: str) -> None:
    """Refuse a folder with anything but packages: pip follows the links of pages in it, to any host and any file."""
    if _URL.match(place):
        return
    try:
        entries = sorted(Path(place).iterdir())
    except OSError:
        raise _refusal(where, line, "it is not a folder of wheels") from None
    for entry in entries:
        if not entry.resolve().is_relative_to(project.resolve()):
            raise _refusal(where, line, f"{entry.name} leads out of the project")
        if not entry.is_dir() and entry.suffix.lower() not in _BESIDE_WHEELS:
            raise _refusal(where, line, f"{entry.name} is not a package; only packages may be in that folder")


def _inside(project: Path, where: str, line: str, value: str, base: Path | None = None) -> Path:
    given = unquote(urlsplit(value).path) if value.lower().startswith("file:") else value
    path = ((base or project) / given).resolve()
    if not given or not path.is_relative_to(project.resolve()):
        raise _refusal(where, line, "it is outside of the project")
    return path


def _requirement(project: Path, where: str, line: str, *, editable: bool = False) -> Line:
    if "${" in line:  # the installer would put the platform's variables into a URL
        raise _refusal(where, line, "variables are not expanded")
    hashes = _HASHES.search(line)
    bare = _HASHES.sub("", line).strip()
    text = bare + (f" {' '.join(hashes[0].split())}" if hashes else "")
    if re.search(r"\s-", bare):
        raise _refusal(where, line, "options after a package are not supported")
    if editable or not (_NAMED.match(bare) or _is_plain(bare)):
        return _unnamed(project, where, bare, text, editable=editable)
    try:
        requirement = Requirement(bare)
    except InvalidRequirement as error:
        raise _invalid(where, line, error) from None
    applies = requirement.marker is None or requirement.marker.evaluate()
    if requirement.url is None:
        return Line(text, requirement, where=where, applies=applies)
    url, refused = _location(project, requirement.url)
    return Line(text.replace(requirement.url, url), requirement, url, where, refused, applies)


def _is_plain(bare: str) -> bool:
    """Return whether the line is a name, with a version perhaps, and not a path or URL."""
    first = re.split(r"[\s\[<>=!~;(]", bare, maxsplit=1)[0]
    return bool(first) and "/" not in first and not first.startswith(".") and not first.lower().endswith(".whl")


def _unnamed(project: Path, where: str, bare: str, text: str, *, editable: bool) -> Line:
    place, _, condition = bare.partition(" ;")
    try:
        applies = not condition or Marker(condition).evaluate()
    except InvalidMarker as error:
        raise _invalid(where, bare, error) from None
    url, refused = _location(project, place.strip(), editable=editable)
    return Line(text.replace(place.strip(), url), None, url, where, refused, applies)


def _location(project: Path, value: str, *, editable: bool = False) -> tuple[str, str]:
    """Return the URL of a wheel, and why it cannot be installed, if so."""
    scheme = _URL.match(value)
    if scheme and scheme[1].lower() in ("http", "https"):
        wheel = unquote(urlsplit(value).path).lower().endswith(".whl")
        return value, "" if wheel else "it is not a wheel, and building it would run its code outside of a sandbox"
    if (scheme and scheme[1].lower() != "file") or value.startswith("git@"):
        return value, "a repository must be built, which would run its code outside of a sandbox"
    given = unquote(urlsplit(value).path) if value.lower().startswith("file:") else value
    path = (project / given).resolve()
    if editable or path.suffix.lower() != ".whl":
        return path.as_uri(), "it is not a wheel, and building it would run its code outside of a sandbox"
    if not path.is_relative_to(project.resolve()):
        return path.as_uri(), "it is outside of the project"
    return path.as_uri(), "" if path.is_file() else "there is no such file"


def _invalid(where: str, line: str, error: ValueError) -> LoadError:
    reason = str(error).splitlines()[0]
    reason = reason[:1].lower() + reason[1:]
    hint = "Write it as NAME, NAME==1.2 or NAME>=1.2,<2, with a marker after a semicolon"
    return LoadError(f"{where}: '{redacted(line)[:200]}' is not a valid requirement: {reason}", {"hint": hint})


def _refusal(where: str, line: str, reason: str) -> LoadError:
    return LoadError(f"{where}: '{redacted(line)[:200]}' cannot be installed: {reason}", {"hint": f"To use it, {HINT}"})
