"""Episodes as one HTML page."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from aenv.cli.main import main as aenv
from aenv.trajectory import EpisodeKey, RunRecord, TrajectoryStore
from tests.trajectory.conftest import greet


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with two samples of a task."""
    with TrajectoryStore.open(tmp_path / "store") as store:
        store.begin_run(RunRecord("demo"))
        greet(store, 0, "Hello Ada", 1.0)
        greet(store, 1, "Who?", 0.0)
    return tmp_path / "store"


class Tags(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)


def exported(folder: Path, *options: str) -> str:
    target = folder.parent / "page.html"
    assert aenv(["trajectory", "export", str(target), "--html", "--store", str(folder), *options]) == 0
    return target.read_text()


def test_an_episode_is_one_page_without_scripts(folder: Path) -> None:
    with TrajectoryStore.open(folder) as store:
        first = store.episodes()[0].id
    page = exported(folder, "--episode", first)
    assert "I ask first." in page
    assert "My name is Ada." in page
    assert "reward</dt><dd>{&quot;score&quot;: 1.0" in page
    assert "default-src &#x27;none&#x27;" in page
    assert "script" not in Tags(page).tags


def test_two_episodes_stand_side_by_side_and_their_parting_is_marked(folder: Path) -> None:
    page = exported(folder)
    assert "class=two" in page
    assert page.count('class="apart"') == 2
    assert "steps are the same." in page


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    hostile = "</pre></style><script>1</script><img src=x onerror=1>\x1b[31m\u202e\x00"
    image = {"type": "image", "mimeType": "image/png", "data": '"><script>'}
    with TrajectoryStore.open(tmp_path / "store") as store:
        record = store.record(
            EpisodeKey(hostile, hostile), {"environment": {"name": hostile}, "model": {"name": hostile}}
        )
        record.append("message", role=hostile, content=[{"type": "text", "text": hostile}, image, None, 3])
        record.append("call", id="1", of=hostile, arguments={hostile: [hostile]})
        record.end("policy", reward={hostile: 1.0}, failure_reason=hostile)
    page = exported(tmp_path / "store")
    found = Tags(page)
    assert not found.tags & {"script", "img", "iframe", "svg", "object", "link"}
    assert not {name for name in found.attributes if name.startswith("on")}
    assert not [c for c in ("\x1b", "\u202e", "\x00") if c in page]


def test_too_many_episodes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with TrajectoryStore.open(tmp_path / "store") as store:
        for sample in range(51):
            store.record(EpisodeKey("demo", "many", sample)).end("ok", reward=1.0)
    target = str(tmp_path / "page.html")
    assert aenv(["trajectory", "export", target, "--html", "--store", str(tmp_path / "store")]) == 2
    assert "at most 50 episodes" in capsys.readouterr().err


def test_a_format_must_be_chosen_and_only_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(folder.parent / "x")
    assert aenv(["trajectory", "export", target, "--store", str(folder)]) == 2
    assert "no format was chosen" in capsys.readouterr().err
    assert aenv(["trajectory", "export", target, "--html", "-f", "openai", "--store", str(folder)]) == 2
