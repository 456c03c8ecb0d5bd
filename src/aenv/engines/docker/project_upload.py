"""The project as a tar stream for a container that has not started yet.

It goes there twice: at `PROJECT` for the environment to work in, and at `SNAPSHOT`, owned by root, as the copy that
modules are imported from. Private files go to a folder that the runtime empties before it loads any code.
"""

from __future__ import annotations

import io
import tarfile

from aenv.engines.base import SandboxSpec
from aenv.engines.project_archive import WITHHELD, project_members, without_owner
from aenv.isolation.files.private_folder import FOLDER
from aenv.isolation.files.rootfs import PROJECT, SNAPSHOT

_ROOT = (0, 0)


def project_tar(spec: SandboxSpec, owner: tuple[int, int]) -> bytes:
    """Return the stream. ``owner``: user and group that the container's processes have.

    Raises:
        OSError: the project cannot be read.
    """
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for folder, who in ((PROJECT, owner), (SNAPSHOT, _ROOT), (WITHHELD, owner)):
            made = tarfile.TarInfo(folder[1:])
            made.type, made.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(_owned(made, who))
        for path in project_members(spec):
            name = path.relative_to(spec.project).as_posix()
            private = name.split("/")[0] == FOLDER
            for folder, who in ((WITHHELD, owner),) if private else ((PROJECT, owner), (SNAPSHOT, _ROOT)):
                member = without_owner(archive.gettarinfo(path, f"{folder[1:]}/{name}"))
                if member is None:
                    continue
                if member.isreg() or member.islnk():  # not as a link: the two copies must not be one file
                    member.type, member.size = tarfile.REGTYPE, path.stat().st_size
                    with path.open("rb") as file:
                        archive.addfile(_owned(member, who), file)
                else:
                    archive.addfile(_owned(member, who))
    return stream.getvalue()


def _owned(member: tarfile.TarInfo, owner: tuple[int, int]) -> tarfile.TarInfo:
    member.uid, member.gid = owner
    return member
