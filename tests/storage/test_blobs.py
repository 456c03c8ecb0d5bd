"""The blob contract on disk and on S3, crash cleanup on disk, and bucket errors."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from aenv.errors import ConfigError
from aenv.schema.bundle import digest_of
from aenv.storage import s3
from aenv.storage.blobs import BlobStore, DiskBlobs
from aenv.storage.open_url import open_blobs
from aenv.testing.stores import BlobContract
from tests.conftest import run


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """URL of an HTTP server that implements S3."""
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_url(bucket: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in (("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")):
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=bucket, region_name="us-east-1")
    name = f"b{time.time_ns()}"
    client.create_bucket(Bucket=name)
    client.close()
    return f"s3://{name}/some/prefix?endpoint={bucket}&region=us-east-1"


class TestDisk(BlobContract):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> Callable[[], BlobStore]:
        return lambda: open_blobs(str(tmp_path / "blobs"))


class TestS3(BlobContract):
    @pytest.fixture
    def blobs(self, s3_url: str) -> Callable[[], BlobStore]:
        return lambda: open_blobs(s3_url)


def test_opening_a_disk_store_cleans_up_after_a_killed_process(tmp_path: Path) -> None:
    data = b"moved aside and then killed"
    name = digest_of(data).removeprefix("sha256:")

    async def use() -> None:
        first = DiskBlobs(tmp_path)
        await first.put(digest_of(data), data)
        (tmp_path / name[:2] / name).rename(tmp_path / "parts" / f"{name}.aside")
        half, old = tmp_path / "parts" / f"{name}.half", tmp_path / "parts" / f"{name}.old"
        half.write_bytes(b"half")
        old.write_bytes(b"half")
        os.utime(old, (1, 1))
        again = DiskBlobs(tmp_path)
        assert await again.get(digest_of(data)) == data
        assert half.exists(), "another process may be writing it"
        assert not old.exists()

    run(use())


def test_a_blob_requested_during_its_deletion_is_kept(tmp_path: Path) -> None:
    """Run both concurrently 100 times; about half of the requests come between the age check and the deletion."""
    data = b"wanted after all"
    digest = digest_of(data)

    async def use() -> None:
        blobs = DiskBlobs(tmp_path)
        for _ in range(100):
            await blobs.put(digest, data)
            path = tmp_path / digest[7:9] / digest[7:]
            os.utime(path, (1, 1))
            (size,), gone = await asyncio.gather(blobs.sizes([digest]), blobs.delete_older(digest, 3600))
            if size is not None and not gone:
                assert await blobs.get(digest) == data
            elif size is not None:
                # The size was requested before the move, so the age check after the move must have seen it renewed.
                raise AssertionError("a blob was deleted after its size was reported")

    run(use())


def test_a_missing_bucket_is_a_config_error(s3_url: str) -> None:
    async def use() -> None:
        blobs = open_blobs(s3_url.replace("s3://b", "s3://nowhere"))
        with pytest.raises(ConfigError, match="NoSuchBucket"):
            await blobs.put(digest_of(b""), b"")
        await blobs.close()

    run(use())
    with pytest.raises(ConfigError, match="no bucket"):
        open_blobs("s3:///x")
    with pytest.raises(ConfigError, match="expected a folder or s3"):
        open_blobs("ftp://x")


def test_requesting_the_size_of_an_old_blob_in_a_bucket_renews_it(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use() -> None:
        blobs = open_blobs(s3_url)
        await blobs.put(digest_of(b"x"), b"x")
        monkeypatch.setattr(s3, "FRESH_SECONDS", -1.0)
        assert await blobs.sizes([digest_of(b"x")]) == [1]
        assert await blobs.get(digest_of(b"x")) == b"x"
        url = blobs.upload_url("name.tar", read=False)
        assert url is not None
        assert "uploads/name.tar" in url
        await blobs.close()

    run(use())
