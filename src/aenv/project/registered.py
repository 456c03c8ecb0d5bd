"""Versions that the earlier CLI (0.1.x) pushed: the hub has their config.json and image, and no files.

An engine that runs images can run them. For all others, the message says how to publish the files.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from aenv.errors import NotFound
from aenv.project import manifest
from aenv.schema.envhub import EnvVersion

FOLDER = "registered"


def has_image(version: EnvVersion) -> bool:
    """Return whether the version has a container image."""
    return any(each.get("type") == "image" and each.get("content") for each in version.artifacts)


def no_files(version: EnvVersion) -> NotFound:
    """Return the error for a version whose files nobody has pushed."""
    title = f"{version.name}@{version.version}"
    return NotFound(
        f"{title} has no files in the hub: it was registered without a bundle, as the earlier aenv (0.1) does",
        details={"hint": f"Run in its project folder: {push_advice(version.status)}"},
    )


def push_advice(status: str) -> str:
    """Return the command that publishes the files of such a version."""
    if status == "Released":
        return "aenv push --version NEW (the released version cannot change)"
    return "aenv push"


def folder_of(version: EnvVersion, cache: Path) -> Path:
    """Return a folder with nothing but the version's config.json, for an engine that runs its image."""
    document = {
        **version.config,
        "name": version.name,
        "version": version.version,
        "status": version.status,
        "artifacts": version.artifacts,
    }
    raw = manifest.text(document)
    folder = cache / FOLDER / hashlib.sha256(raw).hexdigest()
    if not (folder / manifest.FILE_NAME).exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = folder / f".{secrets.token_hex(4)}"
        temporary.write_bytes(raw)
        os.replace(temporary, folder / manifest.FILE_NAME)
    return folder


def is_image_only(project: Path) -> bool:
    """Return whether `folder_of` made this folder."""
    return project.parent.name == FOLDER
