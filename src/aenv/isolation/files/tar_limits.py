"""Limits for reading untrusted tars: on what the standard library's reader holds in memory, and on times."""

from __future__ import annotations

import math
import tarfile

MAX_HEADER = 64 * 1024
"""Bytes of a long name, a long link or a set of pax records, which the reader holds in memory."""
LAST_TIME = float(1 << 33)
"""Latest modification time that is kept, in seconds: about the year 2242."""
_ABOUT_OTHERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class BoundedTarInfo(tarfile.TarInfo):
    """Tar member for ``tarfile.open(tarinfo=...)`` that raises ValueError for long headers and sparse files.

    The standard reader would hold a header of any declared size, and a sparse map of any length, in memory.
    """

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _ABOUT_OTHERS and self.size > MAX_HEADER:
            raise ValueError("a name in the tar is too long")
        if self.type == tarfile.GNUTYPE_SPARSE:
            self._proc_gnusparse_00()
        made: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]
        if made.size < 0:
            raise ValueError(f"'{made.name[:200]}' has a negative size")
        return made

    def _proc_gnusparse_00(self, *_: object) -> None:
        raise ValueError(f"'{self.name[:200]}' is a sparse file; make the tar without --sparse")

    _proc_gnusparse_01 = _proc_gnusparse_10 = _proc_gnusparse_00


def clamp_mtime(seconds: float) -> float:
    """Clamp a modification time from a tar to the range of file systems; NaN and infinity become 0."""
    return min(max(float(seconds), 0.0), LAST_TIME) if math.isfinite(seconds) else 0.0
