"""Record one episode: each event is in the file before `append` returns, and survives the death of the process."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from aenv.errors import UsageError
from aenv.trajectory import rows
from aenv.trajectory.events import KINDS, Event, Outcome, check_end, encode
from aenv.trajectory.folder import full_disk_as_error
from aenv.trajectory.redaction import Redactor
from aenv.trajectory.writer import StoreWriter


class EpisodeRecorder:
    """Writes the events of one episode. Not for use by two threads at once.

    Made by `TrajectoryStore.record`.

    Example:
        ```python
        recorder = store.record(EpisodeKey("run-1", "task-1"), {"environment": {"name": "search"}})
        recorder.append("call", id="1", tool="find", arguments={"text": "lakes"})
        recorder.append("result", id="1", content=[{"type": "text", "text": "3 found"}], is_error=False)
        recorder.end("ok", reward=1.0)
        ```
    """

    def __init__(self, writer: StoreWriter, begin: Mapping[str, Any], redactor: Redactor) -> None:
        self.episode_id: str = begin["episode"]
        self._writer = writer
        self._path: Path = writer.live(self.episode_id)
        self._redactor = redactor
        self._size = 0
        self._seq = 0
        self._steps = 0
        self._tokens = {"input": 0, "output": 0}
        self._started = time.monotonic()
        self._end: Event | None = None
        self._begin = self._write("begin", begin)
        writer.begin(rows.begun(self._begin, writer.name))

    @property
    def ended(self) -> bool:
        """Return whether the episode's end was recorded."""
        return self._end is not None

    def append(self, kind: str, /, **fields: Any) -> int:
        """Record an event and return its number. ``fields`` may have its time as ``at``, but not its number or kind.

        Raises:
            UsageError: the kind does not exist, or the episode has ended.
            StorageFull: there is no space; the episode is as it was before.
        """
        if kind not in KINDS or kind in ("begin", "end"):
            raise UsageError(f"invalid kind of event {kind!r}; expected one of {', '.join(sorted(KINDS))}")
        seq: int = self._write(kind, fields)["seq"]
        self._count(kind, fields)
        return seq

    def end(self, outcome: Outcome, reward: Any = None, *, final: bool = True, **fields: Any) -> None:
        """Record the end of the episode, and return when the whole episode is durable.

        After `StorageFull`, call it again when there is space.

        Args:
            outcome: How the episode ended.
            reward: A number, a JSON object, or None. It must be None for env, infra, user and cancelled.
            final: False if the sample is attempted again, so that this episode is not its result.
            fields: failure_reason, fault, error, seconds, steps, tokens, cost, and score: the number that counts, if
                `score_of` would choose another. Seconds, steps and tokens are counted where they are not given.

        Raises:
            UsageError: the outcome does not exist or has no reward.
            StorageFull: there is no space; nothing is lost.
        """
        self.end_soon(outcome, reward, final=final, **fields).result()

    async def finish(self, outcome: Outcome, reward: Any = None, *, final: bool = True, **fields: Any) -> None:
        """Do as `end` without blocking the event loop."""
        await asyncio.wrap_future(self.end_soon(outcome, reward, final=final, **fields))

    def end_soon(self, outcome: Outcome, reward: Any = None, *, final: bool = True, **fields: Any) -> Future[None]:
        """Record the end of the episode; the future is done when the whole episode is durable."""
        check_end(outcome, reward)
        if self._end is None:
            counted = {
                "seconds": round(time.monotonic() - self._started, 6),
                "steps": self._steps,
                "tokens": dict(self._tokens),
            }
            given = {name: value for name, value in fields.items() if value is not None}
            self._end = self._write("end", {"outcome": outcome, "reward": reward, "final": final, **counted, **given})
        return self._writer.end(rows.closed(self._begin, self._end, self._seq))

    def _count(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind == "message" and fields.get("role") == "assistant":
            self._steps += 1
            usage = fields.get("usage") or {}
            for name, other in (("input", "prompt_tokens"), ("output", "completion_tokens")):
                self._tokens[name] += int(usage.get(f"{name}_tokens") or usage.get(other) or 0)

    def _write(self, kind: str, fields: Mapping[str, Any]) -> Event:
        if self._end is not None:
            raise UsageError(f"episode {self.episode_id} has ended; nothing can be added to it")
        own: Event = {"seq": self._seq, "kind": kind}
        event: Event = {"seq": self._seq, "at": time.time(), "kind": kind, **fields, **own}
        line = encode(event)
        if self._redactor.finds(line):
            event = self._redactor.redacted(event)
            line = encode(event)
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        with full_disk_as_error(self._path):
            try:
                descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                raise UsageError("the store is closed; nothing can be recorded in it") from None
            try:
                written = 0
                while written < len(data):
                    written += os.write(descriptor, data[written:])
            except BaseException:
                os.ftruncate(descriptor, self._size)
                raise
            finally:
                os.close(descriptor)
        self._size += len(data)
        self._seq += 1
        return event
