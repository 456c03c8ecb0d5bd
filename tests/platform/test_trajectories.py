"""Trajectories on a platform: rollouts are kept, local episodes uploaded, and the same commands read both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aenv.cli.main import main as aenv
from aenv.client.platform_client import ApiClient
from aenv.errors import Conflict, InvalidArguments, NotFound
from aenv.schema.trajectories import EVENTS_PER_PAGE, StoredEpisode
from aenv.trajectory import EpisodeKey, RunRecord, TrajectoryStore
from aenv.trajectory.platform_trajectories import PlatformTrajectories
from tests.conftest import fetch, run
from tests.platform.conftest import publish
from tests.platform.parts import Served, serving
from tests.platform.test_rollouts import PAIR, SHOP
from tests.platform.test_tenants import bearer
from tests.trajectory.conftest import greet

Tokens = Callable[..., str]


@pytest.fixture(scope="module")
def platform(published: Path) -> Iterator[Served]:
    asyncio.run(publish(published, "shop", SHOP))
    with serving(published) as served:
        yield served


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrajectoryStore]:
    """A local store with one run of two episodes."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with TrajectoryStore.open() as store:
        store.begin_run(RunRecord("demo", "a demonstration", {"environment": "hello-env"}))
        greet(store, 0, "Hello Ada", 1.0)
        greet(store, 1, "Who?", 0.0)
        yield store


def published_digest(platform: Served) -> str:
    status, found = fetch(platform.url, "/api/v1/environments/shop", headers=bearer(platform.first_token))
    assert status == 200
    return str(found["data"]["digest"])


def ids(store: TrajectoryStore) -> list[str]:
    return [each.id for each in store.all_episodes()]


@pytest.mark.long
def test_episodes_of_a_served_rollout_are_kept(platform: Served, tokens: Tokens) -> None:
    async def main() -> None:
        async with ApiClient(platform.url, api_key=tokens("ann")) as api:
            done = [each async for each in api.rollouts.run(environment="shop@1.2.0", agent="gold", tasks=PAIR)]
            page = await api.trajectories.list(outcome="ok", newest_first=True, limit=2)
            assert {each.id for each in page.items} == {each.episode for each in done}
            one = await api.trajectories.get(done[0].episode)
            assert (one.owner, one.state, one.reward, one.final) == ("ann", "ended", 1.0, True)
            assert (await api.trajectories.events(one.id)).items == done[0].events
            environment = {name: one.environment[name] for name in ("name", "version")}
            assert environment == {"name": "shop", "version": "1.2.0"}
            assert one.environment["digest"] == published_digest(platform)
            [kept] = (await api.trajectories.runs(run=one.run)).items
            assert (kept.owner, kept.episodes) == ("ann", {"ok": 2})
        async with ApiClient(platform.url, api_key=tokens("bob")) as api:
            assert (await api.trajectories.list(run=one.run)).items == []
            with pytest.raises(NotFound):
                await api.trajectories.get(one.id)
            with pytest.raises(NotFound):
                await api.trajectories.list(owner="ann")
        async with ApiClient(platform.url, api_key=platform.first_token) as api:
            assert (await api.trajectories.get(one.id)).owner == "ann"
            assert len((await api.trajectories.list(owner="ann", run=one.run)).items) == 2

    run(main())


def test_local_episodes_are_uploaded_once_and_read_by_the_same_commands(
    platform: Served, tokens: Tokens, local: TrajectoryStore, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def said(*args: str) -> Any:
        assert aenv(["trajectory", *args, "-o", "json"]) in (0, None)
        return json.loads(capsys.readouterr().out)

    both, folder = ids(local), ["--store", str(local.path)]
    views: list[tuple[str, ...]] = [
        ("show", both[0]), ("show", both[0], "--start", "2", "--limit", "3"), ("stats", "--run", "demo"),
        ("list", "--run", "demo"), ("list", "--run", "demo", "--after", both[1], "--limit", "1"),
        ("list", "--runs"), ("diff", both[0], both[0]),
    ]  # fmt: skip
    expected = [said(*view, *folder) for view in views]
    monkeypatch.setenv("AENV_SYSTEM_URL", platform.url)
    monkeypatch.setenv("AENV_API_KEY", tokens("bob"))
    assert said("push")["uploaded"] == 2
    assert said("push", "--run", "demo") == {"platform": platform.url, "uploaded": 0, "known": 2}
    assert [said(*view) for view in views] == expected
    for format, name in (("events", "a.jsonl"), ("openai", "b.jsonl")):
        said("export", str(tmp_path / name), "--format", format, "--run", "demo")
        said("export", str(tmp_path / "local"), "--format", format, "--run", "demo", *folder)
        assert (tmp_path / name).read_text() == (tmp_path / "local").read_text()
    assert aenv(["trajectory", "tail", both[1], "-n", "2", "-o", "json"]) == 0
    assert [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()] == ["result", "end"]
    assert aenv(["trajectory", "replay", both[0]]) == 2
    assert "--env" in capsys.readouterr().err
    assert said("prune", "--run", "demo", "--dry-run")["episodes"] == 2
    assert said("prune", "--task", "greet", "--yes")["episodes"] == 2
    assert said("list") == said("list", "--runs") == []
    assert len(said("list", *folder)) == 2


def test_an_episode_with_many_events_is_read_in_windows(platform: Served, tokens: Tokens, tmp_path: Path) -> None:
    count = 10_000
    with TrajectoryStore.open(tmp_path) as store, PlatformTrajectories(platform.url, tokens("bob")) as remote:
        recorder = store.record(EpisodeKey("long", "t"))
        lines = "".join(
            json.dumps({"seq": n, "at": 1.0, "kind": "note", "text": f"{n:0>200}"}) + "\n" for n in range(1, count)
        )
        live = next((tmp_path / "writers").glob("*/*.jsonl"))
        with live.open("a") as file:  # a recorder opens and closes its file for every event
            file.write(lines)
        recorder._seq = count
        recorder.end("ok", 1.0)
        assert remote.push(store, store.all_episodes()) == (1, 0)
        [summary] = remote.episodes(run="long")
        assert summary.events == count + 1
        window = list(remote.events(summary.id, 8_000, EVENTS_PER_PAGE + 5))
        assert [each["seq"] for each in window] == list(range(8_000, 8_000 + EVENTS_PER_PAGE + 5))
        assert [each["kind"] for each in remote.events(summary.id, count)] == ["end"]


def test_an_upload_with_other_events_is_refused(
    platform: Served, tokens: Tokens, local: TrajectoryStore, tmp_path: Path
) -> None:
    one, two = ids(local)
    changed = [json.dumps({**event, "episode": two}).encode() for event in local.events(one)]

    async def main() -> None:
        async with ApiClient(platform.url, api_key=tokens("bob")) as api:
            stored: StoredEpisode = await api.trajectories.put(two, list(local.lines(two)))
            assert stored.owner == "bob"
            with pytest.raises(Conflict):
                await api.trajectories.put(two, changed)
            with pytest.raises(InvalidArguments):
                await api.trajectories.put(one, list(local.lines(two)))
            with pytest.raises(InvalidArguments):
                await api.trajectories.put("..", list(local.lines(two)))
            assert (await api.trajectories.delete(two)).id == two
            with pytest.raises(NotFound):
                await api.trajectories.delete(two)

    run(main())


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=5000", "outcome=good", "state=x", "final=1", "after=1:%00", "after=unknown"]
)
def test_a_wrong_filter_is_refused(platform: Served, tokens: Tokens, query: str) -> None:
    headers = {"authorization": f"Bearer {tokens('ann')}"}
    status, _ = fetch(platform.url, f"/trajectories?{query}", headers=headers)
    assert status in (400, 404)


def test_reading_needs_no_right_to_write(platform: Served, tokens: Tokens) -> None:
    headers = {"authorization": f"Bearer {tokens('reader', 'read-only')}"}
    assert fetch(platform.url, "/trajectories", headers=headers)[0] == 200
    assert fetch(platform.url, "/trajectories/prune", {}, headers=headers)[0] == 403
    assert fetch(platform.url, "/trajectory-runs", {"id": "x", "created": 1}, headers=headers)[0] == 403


@pytest.mark.long
def test_what_was_kept_survives_kill_9_of_the_platform(published: Path) -> None:
    async def roll(url: str) -> list[str]:
        async with ApiClient(url) as api:
            found = api.rollouts.run(environment="shop@1.2.0", agent="nop", tasks=PAIR, request_id="kept", trace=False)
            return sorted([each.episode async for each in found])

    async def listed(url: str) -> list[str]:
        async with ApiClient(url) as api:
            [kept] = [each for each in (await api.trajectories.runs()).items if each.owner == "owner"]
            return sorted(each.id for each in (await api.trajectories.list(run=kept.id)).items)

    with serving(published, auth=False) as first:
        before = run(roll(first.url))
        first.kill()
        with serving(published, auth=False) as second:
            assert run(listed(second.url)) == before
            assert run(roll(second.url)) == before
