"""Download the data of a benchmark: a git checkout at one commit, or one file with a known hash.

Nothing unchecked is used: a checkout has the pinned commit and tree, a file the pinned SHA-256. A download that was cut
off, or is something else, leaves nothing behind. Git and the standard library use the usual variables for proxies.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from aenv import config
from aenv.errors import ConfigError, NetworkError

CHUNK = 1 << 20
SECONDS = 120.0
"""Timeout of a connection, and of git without any progress."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Checkout:
    """A git repository at one commit."""

    name: str
    url: str
    commit: str
    tree: str
    named_by: str
    """Option or variable that names a copy which was made in another way."""

    @property
    def key(self) -> str:
        """Name of its folder in the cache."""
        return f"{self.name}-{self.commit[:12]}"

    @property
    def manual(self) -> str:
        """Commands that make a copy on another machine."""
        return f"git clone {self.url} && git checkout {self.commit}"

    def download(self, url: str, folder: Path) -> None:
        """Write the files of the commit into a new folder.

        Raises:
            NetworkError: it cannot be downloaded.
            ConfigError: the repository has something else under that commit.
        """
        if shutil.which("git") is None:
            raise ConfigError("git is not installed")
        _git("init", "--quiet", str(folder))
        inside = ("-C", str(folder))
        try:
            _git(*inside, "fetch", "--quiet", "--depth", "1", url, self.commit)
        except NetworkError:  # not every server gives a single commit
            _git(*inside, "fetch", "--quiet", url, "+refs/heads/*:refs/remotes/origin/*")
        _git(*inside, "-c", "advice.detachedHead=false", "checkout", "--quiet", self.commit, failed=ConfigError)
        found = [_git(*inside, "rev-parse", what) for what in ("HEAD", "HEAD^{tree}")]
        if found != [self.commit, self.tree]:
            raise ConfigError(f"{url} has commit {found[0]} with tree {found[1]}, not {self.commit} with {self.tree}")
        _git(*inside, "fsck", "--no-dangling", "--no-progress", failed=ConfigError)


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """File to download, such as an archive, and how to unpack it."""

    name: str
    url: str
    sha256: str
    unpack: Callable[[Path, Path], None]
    """Unpacks the file into an existing folder."""
    named_by: str

    @property
    def key(self) -> str:
        """Name of its folder in the cache."""
        return f"{self.name}-{self.sha256[:12]}"

    @property
    def manual(self) -> str:
        """Command that makes a copy on another machine."""
        return f"curl -LO {self.url}"

    def download(self, url: str, folder: Path) -> None:
        """Write the unpacked files into a new folder.

        Raises:
            NetworkError: it cannot be downloaded, or was cut off.
            ConfigError: it has another hash.
        """
        folder.mkdir()
        file = folder.with_name("download")
        found = hashlib.sha256()
        opener = urllib.request.build_opener()  # urlopen would keep the proxies of its first call
        try:
            with opener.open(url, timeout=SECONDS) as answer, file.open("wb") as target:
                size = int(answer.headers.get("content-length") or -1)
                while part := answer.read(CHUNK):
                    found.update(part)
                    target.write(part)
                if size not in (-1, target.tell()):
                    raise NetworkError(f"{url} was cut off after {target.tell()} of {size} bytes")
        except (OSError, HTTPException, urllib.error.URLError) as error:
            raise NetworkError(f"{url}: {getattr(error, 'reason', None) or error}") from None
        if found.hexdigest() != self.sha256:
            raise ConfigError(f"{url} has the SHA-256 {found.hexdigest()}, not {self.sha256}")
        self.unpack(file, folder)
        file.unlink()


def fetch(source: Checkout | PinnedFile, url: str = "", say: Say = lambda text: None) -> Path:
    """Return the folder with a benchmark's data, downloaded on first use. ``url``: of a mirror.

    Raises:
        NetworkError: it cannot be downloaded; the hint names the other ways.
        ConfigError: what was downloaded is something else.
    """
    target = config.cache_folder() / "benchmarks" / source.key
    if target.is_dir():
        return target
    where = url or source.url
    say(f"Downloading {where}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as temporary:
        made = Path(temporary) / "data"
        try:
            source.download(where, made)
        except (NetworkError, ConfigError) as error:
            raise type(error)(error.message, details={"hint": other_ways(source)}) from None
        try:
            os.replace(made, target)
        except OSError:
            if not target.is_dir():  # else another process was faster
                raise
    say(f"It is in {target}")
    return target


def other_ways(source: Checkout | PinnedFile) -> str:
    """Return how to get the data where this machine cannot download it."""
    return (
        f"Two other ways: name a mirror that this machine reaches, directly or through a proxy (https_proxy), with "
        f"--fetch-from URL; or get it on another machine ({source.manual}), copy it here, and name the folder with "
        f"{source.named_by}."
    )


def _git(*arguments: str, failed: type[NetworkError] | type[ConfigError] = NetworkError) -> str:
    """Run git without asking for passwords; return what it printed."""
    slow = {"GIT_HTTP_LOW_SPEED_LIMIT": "1", "GIT_HTTP_LOW_SPEED_TIME": f"{SECONDS:g}"}
    environment: dict[str, Any] = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1", **slow}
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line] or [f"git ended with {done.returncode}"]
        raise failed(f"git: {lines[-1].removeprefix('fatal: ')}")
    return done.stdout.strip()
