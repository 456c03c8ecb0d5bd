"""Whether to send requests here: ``/health`` says that the server lives, ``/ready`` that it can do its work."""

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
FRESH = 1.0
"""Seconds for which an answer is good: everybody may ask, and asking costs the store and the engine something."""


class Readiness:
    """Asks the parts that nothing works without."""

    def __init__(
        self,
        engine: Engine,
        store: Store | None = None,
        *,
        creates: CreateHealth | None = None,
        folders: Sequence[Path] = (),
    ) -> None:
        """``creates``: what became of the last ones; ``folders``: where instances are made, and need room."""
        self._looks: dict[str, Callable[[], Awaitable[object]]] = {"engine": lambda: _first(engine)}
        self._probe: CreateProbe | None = None
        if creates is not None:
            self._probe = CreateProbe(engine, creates, folders[0] if folders else None)
            self._looks["creates"] = self._probe.check
        if folders:
            self._looks["disk"] = lambda: check_free_space(folders)
        if store is not None:
            self._looks["store"] = lambda: store.get("meta", "health")
        self._known: tuple[float, dict[str, str]] | None = None
        self._lock = asyncio.Lock()
        self.draining = False
        """The server finishes what it has begun, and goes."""

    async def close(self) -> None:
        """Stop what it has begun."""
        if self._probe is not None:
            await self._probe.close()

    def before(self, handler: Handler) -> Handler:
        """The same handler, with this one path answered here."""

        async def answer(request: Request) -> Answer:
            return await self._answer() if request.path == paths.READY else await handler(request)

        return answer

    async def _answer(self) -> Response:
        checks = {"server": "draining"} if self.draining else await self._checks()
        ready = all(said == "ok" for said in checks.values())
        status = 200 if ready else 503
        wrong = "; ".join(f"{name}: {said}" for name, said in checks.items() if said != "ok")
        body = {
            "success": ready, "code": 0 if ready else status, "message": wrong, "data": {"ready": ready, **checks},
        }  # fmt: skip
        return Response(status, to_json(body))

    async def _checks(self) -> dict[str, str]:
        async with self._lock:
            if self._known is None or time.monotonic() - self._known[0] > FRESH:
                said = await asyncio.gather(*(_said(look) for look in self._looks.values()))
                self._known = time.monotonic(), dict(zip(self._looks, said, strict=True))
            return self._known[1]


async def _said(look: Callable[[], Awaitable[object]]) -> str:
    try:
        async with asyncio.timeout(SECONDS):
            await look()
    except TimeoutError:
        return f"no answer within {SECONDS:g} s"
    except AEnvError as error:
        return error.message
    return "ok"


async def _first(engine: Engine) -> None:
    async for _ in engine.running():
        return
