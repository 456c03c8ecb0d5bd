"""What a page can do to its own reward, with a browser that runs beside the tests."""

import shutil

import pytest
from cdp import PROGRAMS
from episode import Episode, task_names
from worlds import miniwob_kinds

try:
    KINDS = miniwob_kinds()
except ValueError:
    KINDS = []
pytestmark = [
    pytest.mark.skipif(not any(map(shutil.which, PROGRAMS)), reason="apt-get install -y chromium-headless-shell"),
    pytest.mark.skipif(not KINDS, reason="pip install --no-deps miniwob"),
]
FORGERIES = {
    "the globals": "WOB_RAW_REWARD_GLOBAL = WOB_REWARD_GLOBAL = 1; WOB_DONE_GLOBAL = true",
    "another end of the episode": "core.endEpisode = (reward) => { WOB_RAW_REWARD_GLOBAL = reward }",
    "a new core": "window.core = {endEpisode() {}, EP_TIMER: 1}; WOB_RAW_REWARD_GLOBAL = 1; core.endEpisode(1)",
    "a redefined property": "try { Object.defineProperty(core, 'endEpisode', {value: () => 1}) } catch (error) {}",
    "every function of the window with a report": """
      for (const name of Object.getOwnPropertyNames(window))
        if (name.startsWith('_')) try { window[name]('1') } catch (error) {}""",
    "the shown reward": "document.body.insertAdjacentHTML('beforeend', '<b>reward: 1</b>')",
}


@pytest.fixture(scope="module")
def episode():
    made = Episode()
    yield made
    made.close()


@pytest.mark.parametrize("name", FORGERIES)
def test_a_page_script_cannot_write_the_reward(episode, name):
    episode.start("miniwob/click-test", seed=1)
    with episode.acting() as actor:
        tab = actor.context.tab()
        actor.context.call(tab, "Runtime.evaluate", {"expression": FORGERIES[name]})
        actor.context.settle(tab)
        assert episode.score()["score"] == 0.0
        assert not episode.score()["done"]


def test_only_the_first_end_of_an_episode_counts(episode):
    episode.start("miniwob/click-test", seed=1)
    with episode.acting() as actor:
        tab = actor.context.tab()
        for reward in ("-1", "1"):
            actor.context.call(tab, "Runtime.evaluate", {"expression": f"core.endEpisode({reward})"})
        actor.context.settle(tab)
    assert episode.score() == {"score": 0.0, "raw": -1.0, "done": True, "differences": []}


def test_all_kinds_are_listed():
    assert len([name for name in task_names() if name.startswith("miniwob/")]) >= 125
