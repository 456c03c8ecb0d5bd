"""Readiness probe: ``/health`` says that the server lives, ``/ready`` that it can do its work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from pydantic_core import to_json

from aenv.engines.base import Engine
from aenv.errors import AEnvError
from aenv.http.messages import Answer, Handler, Request, Response
from aenv.platform.instances.create_probe import CreateHealth, CreateProbe, check_free_space
from aenv.schema import paths
from aenv.storage.base import Store

SECONDS = 5.0
CACHE_SECONDS = 1.0
"""Seconds for which a result is reused: anyone may ask, and checks cost the store and the engine something."""


class Readiness:
    """Checks the parts that the server cannot work without."""

    def __init__(
        self,
        engine: Engine,
        store: Store | None = None,
        *,
        creates: CreateHealth | None = None,
        folders: Sequence[Path] = (),
    ) -> None:
        """``creates``: outcome of recent creates; ``folders``: where instances are created and need disk space."""
        self._checks: dict[str, Callable[[], Awaitable[object]]] = {"engine": lambda: _list_one(engine)}
        self._probe: CreateProbe | None = None
        if creates is not None:
            self._probe = CreateProbe(engine, creates, folders[0] if folders else None)
            self._checks["creates"] = self._probe.check
        if folders:
            self._checks["disk"] = lambda: check_free_space(folders)
        if store is not None:
            self._checks["store"] = lambda: store.get("meta", "health")
        self._cached: tuple[float, dict[str, str]] | None = None
        self._lock = asyncio.Lock()
        self.draining = False
        """The server finishes open requests and then exits."""

    async def close(self) -> None:
        """Stop a running probe."""
        if self._probe is not None:
            await self._probe.close()

    def wrap(self, handler: Handler) -> Handler:
        """Wrap a handler and answer ``/ready`` here."""

        async def answer(request: Request) -> Answer:
            return await self._answer() if request.path == paths.READY else await handler(request)

        return answer

    async def _answer(self) -> Response:
        checks = {"server": "draining"} if self.draining else await self._results()
        ready = all(outcome == "ok" for outcome in checks.values())
        status = 200 if ready else 503
        wrong = "; ".join(f"{name}: {outcome}" for name, outcome in checks.items() if outcome != "ok")
        body = {
            "success": ready, "code": 0 if ready else status, "message": wrong, "data": {"ready": ready, **checks},
        }  # fmt: skip
        return Response(status, to_json(body))

    async def _results(self) -> dict[str, str]:
        async with self._lock:
            if self._cached is None or time.monotonic() - self._cached[0] > CACHE_SECONDS:
                outcomes = await asyncio.gather(*(_outcome(check) for check in self._checks.values()))
                self._cached = time.monotonic(), dict(zip(self._checks, outcomes, strict=True))
            return self._cached[1]


async def _outcome(check: Callable[[], Awaitable[object]]) -> str:
    try:
        async with asyncio.timeout(SECONDS):
            await check()
    except TimeoutError:
        return f"no answer within {SECONDS:g} s"
    except AEnvError as error:
        return error.message
    return "ok"


async def _list_one(engine: Engine) -> None:
    async for _ in engine.running():
        return
