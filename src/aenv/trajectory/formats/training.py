"""Rows for trainers, as verl, TRL and AReaL read them from parquet files and from datasets on disk.

- ``verl``: ``prompt``, ``data_source``, ``ability``, ``reward_model``, ``extra_info``; and ``messages`` for SFT.
- ``trl``: ``prompt`` and ``completion`` as messages; other columns go to the reward functions.
- ``areal``: ``messages`` (the prompt) and ``answer``; and ``input_ids``, ``loss_mask`` and ``logprobs`` where the
  episode has token ids.

Arguments of calls are JSON text, since columns of parquet files cannot hold objects with different fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aenv.errors import ConfigError
from aenv.trajectory.events import EpisodeSummary, Event
from aenv.trajectory.formats.chat import facts
from aenv.trajectory.formats.conversation import Turn, conversation, numbers, openai_messages

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

ROWS = 512
"""Rows of one group; memory holds one group at a time."""
Rows = Callable[[EpisodeSummary, Iterable[Event]], Iterator[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Input and output of a model, as tokens."""

    input_ids: list[int]
    loss_mask: list[int]
    """1 where the model wrote the token."""
    logprobs: list[float]
    """0.0 where the model did not write the token, or gave none."""


def token_sequences(turns: Iterable[Turn]) -> list[TokenSequence]:
    """Return the token sequences of an episode: one as long as each request continues the one before, else several."""
    found: list[TokenSequence] = []
    for turn in turns:
        prompt, written = turn.event.get("prompt_token_ids"), turn.event.get("token_ids")
        if turn.role != "assistant" or not prompt or not written:
            continue
        said = numbers(turn.event.get("logprobs")) or []
        said = said if len(said) == len(written) else [0.0] * len(written)
        last = found[-1] if found else None
        if last is not None and prompt[: len(last.input_ids)] == last.input_ids:
            between = len(prompt) - len(last.input_ids)
            last.input_ids[:] = [*prompt, *written]
            last.loss_mask.extend([0] * between + [1] * len(written))
            last.logprobs.extend([0.0] * between + said)
        else:
            mask = [0] * len(prompt) + [1] * len(written)
            found.append(TokenSequence([*prompt, *written], mask, [0.0] * len(prompt) + said))
    return found


def verl_rows(summary: EpisodeSummary, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
    """Yield an episode as a row for verl."""
    found = conversation(events)
    messages = list(openai_messages(found.turns))
    task = found.begin.get("task") or {}
    yield {
        "data_source": str(summary.environment.get("name") or "aenv"),
        "prompt": _plain(messages[: _prompt_length(found.turns)]),
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": _text(_answer(task))},
        "extra_info": {"index": summary.sample, "split": "train", **facts(summary)},
        "messages": _flat(messages),
        "reward": summary.score,
    }


def trl_rows(summary: EpisodeSummary, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
    """Yield an episode as a row for TRL."""
    found = conversation(events)
    messages = _flat(openai_messages(found.turns))
    at = _prompt_length(found.turns)
    yield {"prompt": messages[:at], "completion": messages[at:], **facts(summary)}


def areal_rows(summary: EpisodeSummary, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
    """Yield an episode as rows for AReaL: one for each token sequence, or one without tokens."""
    found = conversation(events)
    messages = list(openai_messages(found.turns))
    row = {
        "messages": _plain(messages[: _prompt_length(found.turns)]),
        "answer": _text(_answer(found.begin.get("task") or {})),
        **facts(summary),
    }
    sequences = token_sequences(found.turns) or [TokenSequence([], [], [])]
    for number, tokens in enumerate(sequences):
        yield {
            **row, "part": number, "input_ids": tokens.input_ids, "loss_mask": tokens.loss_mask,
            "logprobs": tokens.logprobs,
        }  # fmt: skip


def message_rows(summary: EpisodeSummary, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
    """Yield an episode as a row with all messages, for any use."""
    yield {"messages": _flat(openai_messages(conversation(events).turns)), **facts(summary)}


LAYOUTS: Mapping[str, Rows] = {"verl": verl_rows, "trl": trl_rows, "areal": areal_rows, "messages": message_rows}


def schema(layout: str) -> pa.Schema:
    """Return the columns of a layout. They are fixed, so that files of different episodes fit together."""
    pa = _arrow()
    text, number = pa.string(), pa.float64()
    call = pa.struct([("id", text), ("type", text), ("function", pa.struct([("name", text), ("arguments", text)]))])
    plain = pa.list_(pa.struct([("role", text), ("content", text)]))
    full = pa.list_(
        pa.struct([("role", text), ("content", text), ("tool_calls", pa.list_(call)), ("tool_call_id", text)])
    )
    about = [
        ("episode", text), ("run", text), ("task", text), ("sample", pa.int64()), ("outcome", text),
        ("reward", number), ("model", text), ("environment", text),
    ]  # fmt: skip
    if layout == "verl":
        graded = pa.struct([("style", text), ("ground_truth", text)])
        extra = pa.struct([("index", pa.int64()), ("split", text), *about])
        return pa.schema([
            ("data_source", text), ("prompt", plain), ("ability", text), ("reward_model", graded),
            ("extra_info", extra), ("messages", full), ("reward", number),
        ])  # fmt: skip
    if layout == "trl":
        return pa.schema([("prompt", full), ("completion", full), *about])
    if layout == "areal":
        tokens = [
            ("part", pa.int64()), ("input_ids", pa.list_(pa.int64())), ("loss_mask", pa.list_(pa.int64())),
            ("logprobs", pa.list_(number)),
        ]  # fmt: skip
        return pa.schema([("messages", plain), ("answer", text), *about, *tokens])
    return pa.schema([("messages", full), *about])


def write_parquet(path: Path, layout: str, episodes: Iterable[tuple[EpisodeSummary, Iterable[Event]]]) -> int:
    """Write a parquet file and return the number of rows."""
    _arrow()
    import pyarrow.parquet as pq

    columns, count = schema(layout), 0
    with pq.ParquetWriter(path, columns) as writer:
        for batch in _batches(layout, columns, episodes):
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def write_dataset(folder: Path, layout: str, episodes: Iterable[tuple[EpisodeSummary, Iterable[Event]]]) -> int:
    """Write a dataset that ``datasets.load_from_disk`` reads, and return the number of rows."""
    pa = _arrow()
    name, columns, count = "data-00000-of-00001.arrow", schema(layout), 0
    folder.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, columns) as writer:
        for batch in _batches(layout, columns, episodes):
            writer.write_batch(batch)
            count += batch.num_rows
    features = {field.name: _feature(field.type) for field in columns}
    info = {
        "citation": "",
        "description": "Episodes recorded with aenv.",
        "features": features,
        "homepage": "",
        "license": "",
    }
    state: dict[str, Any] = {
        "_data_files": [{"filename": name}], "_fingerprint": f"aenv{count:012x}", "_format_columns": None,
        "_format_kwargs": {}, "_format_type": None, "_output_all_columns": False, "_split": None,
    }  # fmt: skip
    (folder / "dataset_info.json").write_text(json.dumps(info, indent=2), encoding="utf-8")
    (folder / "state.json").write_text(json.dumps(state, indent=2), encoding="utf-8")
    return count


def _batches(
    layout: str, columns: pa.Schema, episodes: Iterable[tuple[EpisodeSummary, Iterable[Event]]]
) -> Iterator[pa.RecordBatch]:
    pa = _arrow()
    rows: list[dict[str, Any]] = []
    for summary, events in episodes:
        rows += LAYOUTS[layout](summary, events)
        if len(rows) >= ROWS:
            yield pa.RecordBatch.from_pylist(rows, schema=columns)
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=columns)


def _feature(kind: pa.DataType) -> Any:
    """Return the description of a column's type that the datasets library stores."""
    pa = _arrow()
    if pa.types.is_list(kind):
        return {"feature": _feature(kind.value_type), "_type": "List"}
    if pa.types.is_struct(kind):
        return {kind.field(n).name: _feature(kind.field(n).type) for n in range(kind.num_fields)}
    return {"dtype": {"double": "float64"}.get(str(kind), str(kind)), "_type": "Value"}


def _prompt_length(turns: list[Turn]) -> int:
    """Return how many turns come before the agent's first."""
    return next((n for n, turn in enumerate(turns) if turn.role == "assistant"), len(turns))


def _plain(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    return [{"role": str(each["role"]), "content": _text(each.get("content"))} for each in messages]


def _flat(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{**each, "content": _text(each.get("content"))} for each in messages]


def _answer(task: Mapping[str, Any]) -> Any:
    metadata = task.get("metadata") or {}
    return next((place[name] for place in (task, metadata) for name in ("answer", "target") if place.get(name)), "")


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ConfigError(
            "this format needs pyarrow", {"hint": "Install it: pip install 'aenvironment[trajectory]'"}
        ) from None
    return pyarrow
