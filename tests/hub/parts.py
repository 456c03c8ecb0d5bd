"""Bundles and servers for the hub's tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aenv.schema.bundle import BLOB_LIMIT, Bundle, BundleFile, digest_of
from aenv.schema.envhub import Hub, Pushed, PushRequest, Schemas

STOP_SECONDS = 20.0


def blobs_of(data: bytes) -> dict[str, bytes]:
    parts = [data[at : at + BLOB_LIMIT] for at in range(0, len(data), BLOB_LIMIT)]
    return {digest_of(part): part for part in parts}


def bundle_of(name: str, version: str, files: dict[str, bytes], **config: Any) -> tuple[Bundle, dict[str, bytes]]:
    """Return a bundle and its blobs."""
    blobs: dict[str, bytes] = {}
    entries = []
    for path, data in sorted(files.items()):
        parts = [data[at : at + BLOB_LIMIT] for at in range(0, len(data), BLOB_LIMIT)]
        blobs |= {digest_of(part): part for part in parts}
        entries.append(BundleFile(path=path, size=len(data), blobs=[digest_of(part) for part in parts]))
    bundle = Bundle(name=name, version=version, files=entries, config={"name": name, "version": version, **config})
    return bundle, blobs


def request_of(bundle: Bundle, **more: Any) -> PushRequest:
    tools = [{"name": tool, "description": "", "inputSchema": {}} for tool in more.pop("tools", ())]
    return PushRequest(bundle=bundle.model_dump(), schemas=Schemas(tools=tools), **more)


async def push(
    hub: Hub, name: str, version: str, content: str = "print()", *, force: bool = False, **more: Any
) -> Pushed:
    """Push a version: query missing blobs, upload them, publish."""
    bundle, blobs = bundle_of(name, version, {"src/env.py": content.encode()})
    for digest in await hub.missing(list(blobs)):
        await hub.put_blob(digest, blobs[digest])
    return await hub.push(request_of(bundle, **more), force)


class Served:
    """A running ``aenv hub serve``."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.log = log
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or lines[-1] != "}\n":
            line = process.stdout.readline()
            assert line, f"the hub did not start:\n{log.read_text()}"
            lines.append(line)
        self.url: str = json.loads("".join(lines))["url"]

    @property
    def first_token(self) -> str:
        """Return the admin token that the server printed at its first start."""
        lines = self.log.read_text().splitlines()
        return next(line.strip() for line in lines if line.strip().startswith("aenv_"))

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(STOP_SECONDS) == 0, self.log.read_text()


@contextmanager
def serving(store: str, blobs: Path, folder: Path, *options: str, port: int = 0) -> Iterator[Served]:
    """Run a hub server in a process of its own while the block runs."""
    log = folder / f"hub-{len(list(folder.glob('hub-*.log')))}.log"
    with log.open("ab") as stderr:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "aenv.cli", "hub", "serve", "--port", str(port), "--output", "json",
                "--blobs", str(blobs), *options,
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True,
            env={**os.environ, "AENV_HUB_STORE": store},
        )  # fmt: skip
    with process:
        try:
            served = Served(process, log)
            yield served
            served.stop()
        finally:
            process.kill()
