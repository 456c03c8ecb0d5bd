"""The folder of a synthesised dataset: a journal of all proposals, the tasks, and a card that describes them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aenv.errors import UsageError
from aenv.schema.tasks import Task

TASKS, PROVENANCE, CARD, REQUEST = "tasks.jsonl", "provenance.jsonl", "card.md", "request.json"


class Dataset:
    """A dataset folder. Decisions are in its journal batch by batch, so that a killed run goes on where it was.

    Args:
        folder: The folder; it is created.
        request: What the dataset is made from. A folder with another request is refused, once it has decisions.

    Raises:
        UsageError: the folder holds a dataset that was made in another way.
    """

    def __init__(self, folder: Path, request: Mapping[str, Any]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        known = _read_json(folder / REQUEST)
        if known is None or not (folder / PROVENANCE).exists():
            _replace(folder / REQUEST, json.dumps(request, indent=2) + "\n")
        else:
            changed = sorted(name for name in request if known.get(name) != request[name])
            if changed:
                raise UsageError(
                    f"{folder} holds a dataset that was made with another {', '.join(changed)}",
                    {"hint": "Use the same arguments to go on, or choose another folder."},
                )
        self.entries = self._recorded()
        """All decisions: the number of the proposal, its source, its calls, and the reason of its rejection if any.

        The last entry of a batch has ``batch``, with what was learned meanwhile.
        """
        self._uncommitted: list[dict[str, Any]] = []

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add a decision. It is in the journal after `commit`."""
        self.entries.append(dict(entry))
        self._uncommitted.append(dict(entry))

    def commit(self, batch: Mapping[str, Any]) -> None:
        """Write the decisions since the last commit, and what was learned meanwhile."""
        self.append({"batch": dict(batch)})
        lines = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in self._uncommitted)
        self._uncommitted.clear()
        with (self.folder / PROVENANCE).open("a", encoding="utf-8") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())

    @property
    def batches(self) -> list[dict[str, Any]]:
        """Findings of each batch."""
        return [entry["batch"] for entry in self.entries if "batch" in entry]

    @property
    def kept(self) -> list[dict[str, Any]]:
        """Decisions that kept a task, without those that a later check has removed."""
        removed = {entry["removed"] for entry in self.entries if "removed" in entry}
        return [entry for entry in self.entries if "task" in entry and entry["task"]["id"] not in removed]

    @property
    def rejected(self) -> Counter[str]:
        """How many proposals were rejected, by reason."""
        return Counter(entry["rejected"] for entry in self.entries if "rejected" in entry)

    def write(self, tasks: Sequence[Task], card: str) -> None:
        """Write the tasks and the card, each at once."""
        rows = "".join(json.dumps(task.as_row(), ensure_ascii=False) + "\n" for task in tasks)
        _replace(self.folder / TASKS, rows)
        _replace(self.folder / CARD, card)

    def _recorded(self) -> list[dict[str, Any]]:
        """Return the journal. A last batch that a crash has cut is removed: all of it is decided again."""
        path = self.folder / PROVENANCE
        if not path.exists():
            return []
        data = path.read_bytes()
        lines = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
        entries: list[dict[str, Any]] = [json.loads(line) for line in lines]
        whole = max((at for at, entry in enumerate(entries, 1) if "batch" in entry), default=0)
        if b"".join(lines[:whole]) != data:
            _replace(path, b"".join(lines[:whole]).decode())
        return entries[:whole]


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
