"""A hub that lies: what it answers names no folder of this machine and ends in no traceback."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from aenv.errors import InvalidBundle
from aenv.project import fetch, publish
from aenv.project.packing import pack
from aenv.schema.bundle import digest_of
from aenv.schema.envhub import EnvVersion, Hub


class LyingHub:
    """Says whatever it was told to say."""

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
def test_a_digest_of_a_hub_names_no_other_folder(tmp_path: Path, digest: str) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "cache" / "bundles").mkdir(parents=True)
    given = digest.format(private=tmp_path / "private")
    with pytest.raises(InvalidBundle):
        asyncio.run(fetch.cached(lying(), version(given), tmp_path / "cache"))


@pytest.mark.attack("build")
@pytest.mark.parametrize("blob", [b"", b"{}", b"[" * 10_000, b"\xff", b'{"name": "other"}'])
def test_a_manifest_that_is_not_the_promised_one_is_refused(tmp_path: Path, blob: bytes) -> None:
    for digest in (digest_of(blob), digest_of(b"something else")):
        with pytest.raises(InvalidBundle):
            asyncio.run(fetch.cached(lying(blob), version(digest), tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.attack("build")
def test_a_hub_that_misses_what_was_never_offered_gets_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"name": "env", "version": "1.0.0"}')
    (tmp_path / "a.py").write_text("a = 1")
    packed = pack(tmp_path)
    [own] = packed.bundle.blobs()
    found = asyncio.run(publish.missing(lying(b"", [own, "sha256:" + "0" * 64, "../../etc/passwd"]), packed))
    assert list(found) == [own]
