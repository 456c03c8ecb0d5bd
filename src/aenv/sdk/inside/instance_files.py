"""``Environment.files``: list, read, write, remove and watch the files of an instance."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from pydantic import ValidationError
from pydantic_core import from_json

from aenv.client.instance_client import InstanceClient
from aenv.errors import EnvironmentError, InstanceUnreachable, NotFound
from aenv.schema import paths
from aenv.schema.inside import MAX_ENTRIES, MOST_ENTRIES, FileEvent, FileInfo
from aenv.sdk import arguments as checks

if TYPE_CHECKING:
    from aenv.sdk.inside.sandbox_access import SandboxAccess

MAX_LINE = 64 * 1024
"""Limit for one event of a watch."""


class Files:
    """The files of an instance; `Environment.files`. Relative paths start at the project, ``/app``."""

    def __init__(self, env: SandboxAccess) -> None:
        self._env = env

    async def list(self, path: str = ".", *, depth: int = 1, limit: int = MAX_ENTRIES) -> list[FileInfo]:
        """Return the entries of a folder, sorted by path.

        Args:
            path: The folder.
            depth: Levels of folders to list. Links are never followed.
            limit: Number of entries above which the call fails with InvalidArguments, at most 100,000.
        """
        depth, limit = checks.integer("depth", depth, 1, 64), checks.integer("limit", limit, 1, MOST_ENTRIES)
        found = await self._request("GET", paths.FILE_LIST, path, depth=depth, limit=limit)
        return [file_info(each) for each in found] if isinstance(found, list) else []

    async def stat(self, path: str) -> FileInfo:
        """Return the description of a file, folder or link. Raises NotFound if there is none."""
        return file_info(await self._request("GET", paths.FILE_STAT, path))

    async def exists(self, path: str) -> bool:
        """Return whether there is something at this path."""
        try:
            await self.stat(path)
        except NotFound:
            return False
        return True

    async def read(self, path: str) -> bytes:
        """Return the content of a file."""
        return await self._env.download(path)

    async def read_text(self, path: str) -> str:
        """Return the content of a file as text. Raises UnicodeDecodeError if it is not UTF-8."""
        return (await self.read(path)).decode()

    async def write(self, path: str, data: bytes | str | Path) -> None:
        """Write bytes, text, or a file or folder of this machine; folders above ``path`` are made."""
        await self._env.upload(data, path)

    async def make_folder(self, path: str) -> None:
        """Make a folder and those above it. Nothing happens if it exists."""
        await self._request("POST", paths.FOLDER, path)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty folder; with ``recursive``, a folder and all that is in it."""
        await self._request("DELETE", paths.FILES, path, recursive=str(checks.flag("recursive", recursive)).lower())

    def watch(self, path: str = ".", *, recursive: bool = False) -> Watch:
        """Watch a file or a folder; with ``recursive``, also the folders in it, at most 1000.

        Example:
            ```python
            async with env.files.watch("/app", recursive=True) as changes:
                async for change in changes:
                    print(change.type, change.path)
            ```
        """
        return Watch(self._env, checks.text("path", path), recursive=checks.flag("recursive", recursive))

    async def _request(self, method: str, route: str, path: str, **query: Any) -> Any:
        target = f"{route}?{urlencode({'path': checks.text('path', path), **query})}"

        async def send(client: InstanceClient, seconds: float) -> Any:
            body = b"" if method == "POST" else None
            return await client.exchange(method, target, body, timeout=seconds)

        return (await self._env._exchange(f"{method} {route}", send, None)).get("data")


class Watch:
    """Changes below a path. ``async with`` begins to watch; ``async for`` yields each change as a `FileEvent`."""

    def __init__(self, env: SandboxAccess, path: str, *, recursive: bool) -> None:
        self._env = env
        self._target = f"{paths.FILE_WATCH}?{urlencode({'path': path, 'recursive': str(recursive).lower()})}"
        self._stack = contextlib.AsyncExitStack()
        self._lines: AsyncIterator[dict[str, Any]] | None = None

    async def __aenter__(self) -> Watch:
        async def open_stream(client: InstanceClient, seconds: float) -> Any:
            return await self._stack.enter_async_context(client.receive_stream(self._target, timeout=None))

        self._lines = events_in(await self._env._exchange("watch", open_stream, None))
        await anext(self._lines)  # the watch has begun
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lines = None
        await self._stack.aclose()

    async def __aiter__(self) -> AsyncIterator[FileEvent]:
        if self._lines is None:
            async with self:
                async for event in self:
                    yield event
            return
        try:
            async for line in self._lines:
                yield FileEvent.model_validate(line)
        except ValidationError:
            raise EnvironmentError("the instance sent an invalid event") from None
        except InstanceUnreachable as error:
            raise await self._env._why_ended(error) or error from None


async def events_in(chunks: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a watch, which is one line of JSON each."""
    buffer = b""
    async for data in chunks:
        *complete, buffer = (buffer + data).split(b"\n")
        if any(len(line) > MAX_LINE for line in (*complete, buffer)):
            raise EnvironmentError(f"the instance sent an event of over {MAX_LINE} bytes")
        for line in complete:
            try:
                yield from_json(line)
            except ValueError:
                raise EnvironmentError("the instance sent an invalid event") from None


def file_info(data: Any) -> FileInfo:
    """Return the description of a file that an instance sent, which is untrusted."""
    try:
        return FileInfo.model_validate(data)
    except ValidationError:
        raise EnvironmentError("the instance sent an invalid description of a file") from None
