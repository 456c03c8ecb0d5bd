"""Record the answers of a model in a file, and give them again: a second run needs no model and is the same.

An answer is found by what was asked (model, messages, tools, sampling), in which episode, and how often before. No id
of a run or of a session is part of that, or nothing would ever be found again.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter
from pathlib import Path

from aenv.errors import UsageError
from aenv.rollout.model import Model, ModelRequest, ModelUnavailable, Reply

_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    episode TEXT NOT NULL, request TEXT NOT NULL, number INTEGER NOT NULL, reply TEXT NOT NULL,
    PRIMARY KEY (episode, request, number)
)
"""


class NotRecorded(ModelUnavailable):
    """The recording has no answer to a request, and the model may not be asked."""

    code = "not_recorded"


class ModelRecording:
    """A file with the answers of a model.

    Args:
        path: The file; it is created if it does not exist.
        offline: Never ask the model: an answer that is not in the file is a failure.
    """

    def __init__(self, path: Path, *, offline: bool = False) -> None:
        if offline and not path.is_file():
            raise UsageError(f"there is no recording at {path}")
        self.path = path
        self.offline = offline
        self._file: sqlite3.Connection | None = None

    def of_episode(self, model: Model, episode: str) -> Model:
        """Return the model for one episode, with the answers of the recording where it has them."""
        return _RecordedModel(self, model, episode)

    def find(self, episode: str, request: str, number: int) -> Reply | None:
        """Return the recorded answer; None if there is none."""
        row = self._opened().execute(
            "SELECT reply FROM answers WHERE episode = ? AND request = ? AND number = ?", (episode, request, number)
        ).fetchone()  # fmt: skip
        if row is None:
            return None
        data = json.loads(row[0])
        return Reply(data["message"], data["input_tokens"], data["output_tokens"], data["cost"], model=data["model"])

    def add(self, episode: str, request: str, number: int, reply: Reply) -> None:
        """Record an answer; it is durable when this returns."""
        data = {
            "message": reply.message, "input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens,
            "cost": reply.cost, "model": reply.model,
        }  # fmt: skip
        row = (episode, request, number, json.dumps(data))
        with self._opened() as file:
            file.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", row)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> sqlite3.Connection:
        if self._file is None:
            try:
                self._file = sqlite3.connect(self.path, timeout=30.0, check_same_thread=False)
                self._file.execute(_SCHEMA)
            except sqlite3.Error as error:
                raise UsageError(f"{self.path} cannot be used as a recording: {error}") from None
        return self._file


class _RecordedModel:
    def __init__(self, recording: ModelRecording, model: Model, episode: str) -> None:
        self.name = model.name
        self._recording = recording
        self._model = model
        self._episode = episode
        self._asked: Counter[str] = Counter()

    async def complete(self, request: ModelRequest) -> Reply:
        """Return the recorded answer, or else ask the model and record what it says."""
        asked = [self.name, list(request.messages), list(request.tools), dict(request.sampling)]
        key = hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()
        number = self._asked[key]
        self._asked[key] += 1
        found = self._recording.find(self._episode, key, number)
        if found is not None:
            return found
        if self._recording.offline:
            raise NotRecorded(f"{self._recording.path} has no answer to a request of {self._episode}")
        reply = await self._model.complete(request)
        self._recording.add(self._episode, key, number, reply)
        return reply

    def close(self) -> None:
        self._model.close()
