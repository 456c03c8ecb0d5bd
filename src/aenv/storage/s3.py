"""Blob store in a bucket of S3 or a compatible service, for hubs that several servers share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from aenv.errors import ConfigError, NotFound, Unavailable
from aenv.storage.blobs import BlobStore

try:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError
except ImportError as error:  # pragma: no cover - the tests install the extra
    raise ConfigError(
        "the S3 client is not installed",
        {"hint": "Install it with: pip install 'aenvironment[s3]'"},
    ) from error

T = TypeVar("T")

FRESH_SECONDS = 3600.0
"""Age at which `S3Blobs.sizes` copies a blob onto itself, to renew its modification time."""
AT_ONCE = 16
SIGNED_SECONDS = 3600


class S3Blobs(BlobStore):
    """Blobs at ``s3://bucket/prefix[?endpoint=http://host:9000&region=…]``, with credentials from the AWS settings."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        self.url = f"s3://{parts.netloc}{parts.path}"
        self._bucket = parts.netloc
        self._prefix = f"{parts.path.strip('/')}/".lstrip("/")
        if not self._bucket:
            raise ConfigError(f"'{url}' has no bucket; write it like s3://bucket/prefix")
        self._s3: Any = boto3.client(
            "s3",
            endpoint_url=options.get("endpoint"),
            region_name=options.get("region"),
            config=Config(max_pool_connections=AT_ONCE, retries={"max_attempts": 5, "mode": "standard"}),
        )

    async def close(self) -> None:
        self._s3.close()

    async def get(self, digest: str) -> bytes:
        data = await asyncio.to_thread(
            self._request, lambda: self._s3.get_object(Bucket=self._bucket, Key=self._key(digest))["Body"].read()
        )
        if data is None:
            raise NotFound(f"there is no blob {digest}")
        return bytes(data)

    async def sizes(self, digests: Sequence[str]) -> list[int | None]:
        def touch_all() -> list[int | None]:
            with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="aenv-sync-s3") as threads:
                return list(threads.map(self._touch, digests))

        return await asyncio.to_thread(touch_all)

    async def delete_older(self, digest: str, seconds: float) -> bool:
        return await asyncio.to_thread(self._delete_now, digest, seconds)

    async def walk(self) -> AsyncIterator[str]:
        more: dict[str, str] = {}
        while True:
            request = dict(Bucket=self._bucket, Prefix=f"{self._prefix}sha256/", **more)
            page = await asyncio.to_thread(self._request, lambda request=request: self._s3.list_objects_v2(**request))
            for item in (page or {}).get("Contents", ()):
                yield f"sha256:{item['Key'].rpartition('/')[2]}"
            if not page or not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def upload_url(self, name: str, *, read: bool) -> str | None:
        key = f"{self._prefix}uploads/{name}"
        url: str = self._s3.generate_presigned_url(
            "get_object" if read else "put_object",
            Params={"Bucket": self._bucket, "Key": key},
            ExpiresIn=SIGNED_SECONDS,
        )
        return url

    async def _write(self, digest: str, data: bytes) -> None:
        await asyncio.to_thread(
            self._request, lambda: self._s3.put_object(Bucket=self._bucket, Key=self._key(digest), Body=data)
        )

    def _key(self, digest: str) -> str:
        return f"{self._prefix}sha256/{digest.removeprefix('sha256:')}"

    def _touch(self, digest: str) -> int | None:
        key = self._key(digest)
        about = self._request(lambda: self._s3.head_object(Bucket=self._bucket, Key=key))
        if about is None:
            return None
        if about["LastModified"].timestamp() < time.time() - FRESH_SECONDS:
            source = {"Bucket": self._bucket, "Key": key}
            copied = self._request(
                lambda: self._s3.copy_object(
                    Bucket=self._bucket, Key=key, CopySource=source, MetadataDirective="REPLACE"
                )
            )
            if copied is None:
                return None
        return int(about["ContentLength"])

    def _delete_now(self, digest: str, seconds: float) -> bool:
        key = self._key(digest)
        about = self._request(lambda: self._s3.head_object(Bucket=self._bucket, Key=key))
        if about is None:
            return True
        if about["LastModified"].timestamp() > time.time() - seconds:
            return False
        self._request(lambda: self._s3.delete_object(Bucket=self._bucket, Key=key))
        return True

    def _request(self, work: Callable[[], T]) -> T | None:
        """Run a request; return None if the object does not exist."""
        try:
            return work()
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in ("404", "NoSuchKey", "NotFound"):
                return None
            if code in ("403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "NoSuchBucket"):
                raise ConfigError(f"the bucket at {self.url} refused access: {code}") from error
            raise Unavailable(f"the bucket at {self.url} failed: {code}") from error
        except BotoCoreError as error:
            raise Unavailable(f"the bucket at {self.url} does not answer: {error}") from error
