"""Tars that may be made to harm: bounds on what the standard library's reader takes into memory, and on times."""

from __future__ import annotations

import math
import tarfile

MAX_HEADER = 64 * 1024
"""Bytes of a long name, a long link or a set of pax records: the reader holds them in memory."""
LAST_TIME = float(1 << 33)
"""The latest modification time that is kept, in seconds: about the year 2242."""
_ABOUT_OTHERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class BoundedTarInfo(tarfile.TarInfo):
    """For ``tarfile.open(tarinfo=...)``: a member with a long header, or with a map of holes, is a ValueError.

    The reader would take a header of any declared size into memory, and a map of holes of any length.
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
    """A modification time from a tar, as far as file systems can keep it: neither NaN nor infinite nor far away."""
    return min(max(float(seconds), 0.0), LAST_TIME) if math.isfinite(seconds) else 0.0
