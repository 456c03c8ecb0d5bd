"""MiniWoB++ in the browser of a sandbox: all tasks start, a script solves some kinds, doing nothing solves none."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import pytest

from tests.conftest import run
from tests.envs.test_browser import Browsing, browsing, needs_miniwob
from tests.envs.test_browser import pytestmark as needs_browser

pytestmark = [needs_browser, needs_miniwob]


async def press(page: Browsing, *names: str) -> None:
    for name in names:
        seen = await page.text("read_page")
        found = re.search(rf'\n *(?:button|link|text|tab|generic) "{re.escape(name)}" \[(ref_\d+)\]', seen)
        assert found, f"{name}: {seen}"
        await page.call("left_click", target={"type": "ref", "ref": found[1]})


async def fields(page: Browsing) -> list[str]:
    return re.findall(r"\n *textbox.*?\[(ref_\d+)\]", await page.text("read_page"))


async def write(page: Browsing, *values: str) -> None:
    for ref, value in zip(await fields(page), values, strict=True):
        await page.call("form_input", target={"type": "ref", "ref": ref}, value=value)


def quoted(text: str) -> list[str]:
    return re.findall(r'"([^"]*)"', text)


async def click_test(page: Browsing, text: str) -> None:
    await press(page, "Click Me!")


async def click_one(page: Browsing, text: str) -> None:
    await press(page, "ONE")


async def click_both(page: Browsing, text: str) -> None:
    await press(page, "ONE", "TWO")


async def click_quoted(page: Browsing, text: str) -> None:
    await press(page, quoted(text)[0])


async def focus(page: Browsing, text: str) -> None:
    await page.call("left_click", target={"type": "ref", "ref": (await fields(page))[0]})


async def focus_one(page: Browsing, text: str) -> None:
    place = int(re.findall(r"(\d)(?:st|nd|rd|th)", text)[0]) - 1
    await page.call("left_click", target={"type": "ref", "ref": (await fields(page))[place]})


async def enter(page: Browsing, text: str) -> None:
    await write(page, quoted(text)[0])
    await press(page, "Submit")


async def log_in(page: Browsing, text: str) -> None:
    await write(page, *quoted(text)[:2])
    await press(page, "Login")


async def enter_twice(page: Browsing, text: str) -> None:
    await write(page, quoted(text)[0], quoted(text)[0])
    await press(page, "Submit")


async def choose(page: Browsing, text: str) -> None:
    wanted = re.findall(r"Select (.+) from the list", text)[0]
    await page.fill("combobox", wanted)
    await press(page, "Submit")


async def choose_one(page: Browsing, text: str) -> None:
    wanted = re.findall(r"Select (.+) and click", text)[0]
    seen = await page.text("read_page")
    found = re.search(rf'radio "{re.escape(wanted)}".*?\[(ref_\d+)\]', seen)
    assert found, seen
    await page.call("left_click", target={"type": "ref", "ref": found[1]})
    await press(page, "Submit")


async def check_some(page: Browsing, text: str) -> None:
    wanted = re.findall(r"Select (.+) and click", text)[0]
    for name in [] if wanted == "nothing" else wanted.split(", "):
        found = re.search(rf'checkbox "{re.escape(name)}".*?\[(ref_\d+)\]', await page.text("read_page"))
        assert found
        await page.call("left_click", target={"type": "ref", "ref": found[1]})
    await press(page, "Submit")


SOLVERS: dict[str, Callable[[Browsing, str], Awaitable[None]]] = {
    "click-test": click_test, "click-test-2": click_one, "click-button-sequence": click_both,
    "click-button": click_quoted, "click-link": click_quoted, "focus-text": focus, "focus-text-2": focus_one,
    "enter-text": enter, "login-user": log_in, "enter-password": enter_twice, "choose-list": choose,
    "click-option": choose_one, "click-checkboxes": check_some,
}  # fmt: skip


@pytest.mark.long
def test_a_script_solves_thirteen_kinds() -> None:
    async def main() -> None:
        async with browsing() as page:
            for kind, solve in SOLVERS.items():
                for seed in (1, 2):
                    started = await page.start(f"miniwob/{kind}", seed)
                    assert await page.score() == 0.0
                    await solve(page, started["instruction"])
                    assert await page.score() == 1.0, (kind, seed, started)

    run(main())


@pytest.mark.long
@pytest.mark.parametrize("part", range(6))
def test_every_task_starts_says_the_same_for_a_seed_and_is_not_solved_by_doing_nothing(part: int) -> None:
    async def main() -> None:
        async with browsing() as page:
            names = [name for name in await page.env.call_function("list_tasks") if name.startswith("miniwob/")]
            assert len(names) >= 125
            for name in names[part::6]:
                said = (await page.start(name, 7))["instruction"]
                assert said, name
                assert await page.score() == 0.0, name
                assert (await page.start(name, 7))["instruction"] == said, name

    run(main())
