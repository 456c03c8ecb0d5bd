"""The init step of a pod: ``python3 -m aenv.engines.kubernetes.bundle_fetch URL DIGEST FOLDER``.

Fetches the project's archive, checks its digest, and unpacks it twice: once for the environment to work in, once as the
read-only copy that modules are imported from. The private files go to a folder that the runtime empties before it loads
any code. It needs nothing but the standard library.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tarfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

SECONDS = 60
PRIVATE = "private"
_FILTER: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # since Python 3.11.4


def main(arguments: list[str]) -> int:
    """Run the step; return the exit code of the process."""
    url, digest, folder = arguments
    try:
        fetch(url, digest, Path(folder), os.environ.get("AENV_BUNDLE_TOKEN", ""))
    except (OSError, ValueError, tarfile.TarError) as error:
        print(f"Error: the project could not be fetched from {url}: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def fetch(url: str, digest: str, folder: Path, token: str) -> None:
    """Fetch an archive into ``folder``: ``project``, ``snapshot`` and ``withheld`` are created.

    Raises:
        OSError, ValueError, tarfile.TarError: it cannot be fetched, or is not the one that was asked for.
    """
    archive = folder / "bundle.tar.gz"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    found = hashlib.sha256()
    with direct.open(request, timeout=SECONDS) as answer, archive.open("wb") as file:
        while data := answer.read(1 << 20):
            found.update(data)
            file.write(data)
    if found.hexdigest() != digest:
        raise ValueError(f"the archive has the digest {found.hexdigest()}, and not {digest}")
    for name in ("project", "snapshot"):
        unpack(archive, folder / name)
    archive.unlink()
    withheld = folder / "withheld"
    withheld.mkdir()
    if (folder / "project" / PRIVATE).is_dir():
        shutil.move(folder / "project" / PRIVATE, withheld / PRIVATE)
        shutil.rmtree(folder / "snapshot" / PRIVATE)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a project's archive into a new folder.

    Raises:
        OSError, ValueError, tarfile.TarError: it cannot be unpacked.
    """
    with tarfile.open(archive) as opened:
        opened.extractall(folder, [member for member in opened if _is_inside(member)], **_FILTER)


def _is_inside(member: tarfile.TarInfo) -> bool:
    """Return False for a link that leads out of the project: there is nothing at its end in a pod."""
    if not member.issym():
        return True
    target = os.path.normpath(os.path.join(os.path.dirname(member.name), member.linkname))
    return not os.path.isabs(member.linkname) and target.split("/")[0] != ".."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
