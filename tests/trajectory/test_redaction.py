"""Secrets are not in the files of a store, and ordinary text is."""

from __future__ import annotations

import base64
import json
import urllib.parse
from pathlib import Path

import pytest

from aenv.trajectory import EpisodeKey, TrajectoryStore
from aenv.trajectory.events import encode
from aenv.trajectory.redaction import REDACTED, Redactor

SECRETS = {
    "a header": {"headers": {"Authorization": "Bearer abcdef1234567890abcdef"}},
    "a field": {"x-api-key": "abc123"},
    "a field of a provider": {"OPENAI_API_KEY": "whatever"},
    "a key of OpenAI": {"text": "use sk-proj-1a2b3c4d5e6f7g8h9i0j please"},
    "a token of GitHub": {"text": "ghp_0123456789abcdefghijABCDEFGHIJ012345"},
    "a token of Hugging Face": {"text": "hf_abcdefghijklmnopqrstuvwxyz"},
    "a key of AWS": {"text": "AKIAIOSFODNN7EXAMPLE"},
    "a token of a platform": {"text": f"curl -H 'x-token: aenv_0123456789ab_{'a-_Z9' * 9}'"},
    "a variable of the instance": {"task": {"variables": {"DB_PASSWORD": "x", "VISITOR": "Ada"}}},
    "JSON in text": {"text": '{"api_key": "0123456789abcdef0123"}'},
    "a header in text": {"text": "curl -H 'Authorization: Bearer 0123456789abcdef0123'"},
}
ORDINARY = [
    "a bearer of good news",
    "authorization is required",
    "api_key = os.environ['OPENAI_API_KEY']",
    "the task-list and the risk-assessment",
    "basic arithmetic",
    {"password": "correct horse", "token_ids": [1, 2], "tokens": {"input": 3}},
]


@pytest.mark.parametrize("event", SECRETS.values(), ids=SECRETS.keys())
def test_a_secret_is_replaced(event: dict[str, object]) -> None:
    redactor = Redactor()
    assert redactor.finds(encode(event))
    assert REDACTED in json.dumps(redactor.redacted(event))


@pytest.mark.parametrize("value", ORDINARY, ids=str)
def test_ordinary_text_stays(value: object) -> None:
    assert Redactor().redacted(value) == value


def test_the_files_of_a_store_have_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "value-of-a-variable")
    own, named = 'quoted "value" of a\nvariable', "value-of-the-episode"
    with TrajectoryStore.open(tmp_path, secrets=[own]) as store:
        recorder = store.record(EpisodeKey("run", "t"), {"environment": {"name": "x"}, "note": named}, secrets=[named])
        for value in (own, named, "value-of-a-variable"):
            recorder.append("message", role="user", content=f"before {value} after")
        live = b"".join(path.read_bytes() for path in (tmp_path / "writers").glob("*/*"))
        recorder.end("ok", 1.0, failure_reason=f"{named}!")
        events = list(store.events(recorder.episode_id))
        assert store.episode(recorder.episode_id).failure_reason == f"{REDACTED}!"
    assert [event["content"] for event in events[1:4]] == [f"before {REDACTED} after"] * 3
    for value in (named, "value-of-a-variable", "quoted"):
        assert value.encode() not in live
        assert value not in json.dumps(events)


@pytest.mark.attack("trajectory")
def test_a_known_secret_is_found_in_every_spelling_of_it() -> None:
    """Arguments of calls are JSON in text; URLs and headers have their own spellings."""
    secret = 'p\u00e4ss "word"/with\\more'
    redactor = Redactor([secret])
    data = secret.encode()
    nested = json.dumps({"arguments": json.dumps({"arguments": json.dumps(secret)})})
    for text in (
        secret, nested, json.dumps(secret), json.dumps(secret, ensure_ascii=False),
        f"https://u:{urllib.parse.quote(secret, safe='')}@host/", urllib.parse.urlencode({"key": secret}),
        f"Basic {base64.b64encode(data).decode()}",
    ):  # fmt: skip
        event = {"kind": "call", "arguments": text}
        assert redactor.finds(encode(event)), text
        shown = json.dumps(redactor.redacted(event), ensure_ascii=False)
        assert REDACTED in shown, text
        assert "word" not in shown, text
        assert base64.b64encode(data).decode().rstrip("=") not in shown


def test_redaction_can_be_turned_off(tmp_path: Path) -> None:
    with TrajectoryStore.open(tmp_path, redact=False) as store:
        recorder = store.record(EpisodeKey("run", "t"))
        recorder.append("note", api_key="abc123")
        recorder.end("ok", 1)
        assert list(store.events(recorder.episode_id))[1]["api_key"] == "abc123"
