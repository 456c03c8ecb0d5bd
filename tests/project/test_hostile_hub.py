"""A malicious hub: its answers can neither name a folder of this machine nor cause a traceback."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from aenv.errors import InvalidBundle
from aenv.project import fetch, publish
from aenv.project.bundles.packing import pack
from aenv.schema.bundle import digest_of
from aenv.schema.envhub import EnvVersion, Hub


class LyingHub:
    """A hub that returns prepared answers."""

    def __init__(self, blob: bytes = b"", missing: list[str] | None = None) -> None:
        self._blob = blob
        self._missing = missing or []

    async def get_blob(self, digest: str) -> bytes:
        return self._blob

    async def missing(self, digests: list[str]) -> list[str]:
        return self._missing


def lying(*words: Any) -> Hub:
    return cast("Hub", LyingHub(*words))


def version(digest: str) -> EnvVersion:
    return EnvVersion(name="env", version="1.0.0", digest=digest)


@pytest.mark.attack("build")
@pytest.mark.parametrize(
    "digest",
    ["../private", "/{private}", "sha256:../../private", ".", "..", "x", "sha256:" + "0" * 63, f"sha256:{'0' * 64}/.."],
)
def test_an_invalid_digest_of_a_hub_cannot_name_a_folder(tmp_path: Path, digest: str) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "cache" / "bundles").mkdir(parents=True)
    given = digest.format(private=tmp_path / "private")
    with pytest.raises(InvalidBundle):
        asyncio.run(fetch.cached(lying(), version(given), tmp_path / "cache"))


@pytest.mark.attack("build")
@pytest.mark.parametrize("blob", [b"", b"{}", b"[" * 10_000, b"\xff", b'{"name": "other"}'])
def test_a_manifest_that_does_not_match_its_digest_is_rejected(tmp_path: Path, blob: bytes) -> None:
    for digest in (digest_of(blob), digest_of(b"something else")):
        with pytest.raises(InvalidBundle):
            asyncio.run(fetch.cached(lying(blob), version(digest), tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.attack("build")
def test_a_hub_cannot_request_blobs_that_are_not_in_the_bundle(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"name": "env", "version": "1.0.0"}')
    (tmp_path / "a.py").write_text("a = 1")
    packed = pack(tmp_path)
    [own] = packed.bundle.blobs()
    found = asyncio.run(publish.missing(lying(b"", [own, "sha256:" + "0" * 64, "../../etc/passwd"]), packed))
    assert list(found) == [own]
