"""Parts that need no browser: sites, goals, keys, action strings."""

import http.client
import random

import pytest
from keyboard import chord, describe, modifiers_of
from shapes import Gym
from sites import shop, tickets, wiki
from sites.serving import Refused, Request, SiteServer, folder_site
from sites.state import differences
from tabs import NotPossible
from worlds import SITES

from aenv import private

KINDS = private("goals.py").module().KINDS
TASKS = [(site, kind) for site, kinds in KINDS.items() for kind in kinds]


@pytest.mark.parametrize(("site", "kind"), TASKS)
def test_a_task_is_the_same_for_a_seed_and_done_by_what_its_goal_says(site, kind):
    goals = private("goals.py").module()
    _, make, pages = SITES[site]
    for seed in range(5):
        wanted, found, other = make(seed), make(seed), make(seed)
        goal = goals.goal(site, kind, seed, pages(wanted))
        assert goal.instruction == goals.goal(site, kind, seed, pages(other)).instruction
        goal.do(pages(wanted))
        assert goal.answer or differences(wanted, found), "an untouched site must not be enough"
        goal.do(pages(found))
        assert differences(wanted, found) == []


def test_more_than_was_asked_for_is_not_done():
    wanted, found = shop.make(1), shop.make(1)
    for state, count in ((wanted, 1), (found, 2)):
        product = state.row("SELECT id FROM products WHERE stock > 2")["id"]
        shop.Shop(state).add(product, count)
    assert len(differences(wanted, found)) == 2


@pytest.mark.parametrize(("make", "pages"), [(shop.make, shop.Shop), (tickets.make, tickets.Tickets),
                                              (wiki.make, wiki.Wiki)])  # fmt: skip
def test_no_request_breaks_a_site(make, pages):
    chance = random.Random(1)
    words = ["cart", "add", "set", "orders", "cancel", "new", "ticket", "1", "-1", "99999999999999999999", "page",
             "Home", "write", "revert", "<b>", "'; DROP TABLE orders", "", "é", "move", "label", "review"]  # fmt: skip
    names = ["product", "count", "order", "ticket", "name", "text", "status", "label", "number", "new", "of"]
    site = pages(make(1))
    for _ in range(2000):
        path = "/" + "/".join(chance.sample(words, chance.randrange(3)))
        form = {name: chance.choice(words) for name in chance.sample(names, 4)}
        try:
            answer = site(Request(chance.choice(("GET", "POST")), path, form, form, {}))
        except (Refused, OverflowError):
            continue
        assert "<script>alert" not in str(answer.body)
        assert "<b></" not in str(answer.body)


def ask(port, method, path, host, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body=headers.pop("body", None), headers={"Host": host, **headers})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_site_answers_to_its_own_name_and_takes_changes_from_its_own_pages(tmp_path):
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.html").write_text("<h1>here</h1>")
    (tmp_path / "pages" / ".hidden").write_text("secret")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "pages" / "link").symlink_to(tmp_path / "secret")
    server = SiteServer()
    try:
        server.sites.update({"shop.test": shop.Shop(shop.make(1)), "pages.test": folder_site(tmp_path / "pages")})
        assert ask(server.port, "GET", "/", "pages.test")[1] == "<h1>here</h1>"
        for path in ("/../secret", "/%2e%2e/secret", "/link", "/.hidden", "//etc/passwd"):
            status, text = ask(server.port, "GET", path, "pages.test")
            assert (status, "secret" in text) == (404, False)
        assert ask(server.port, "GET", "/", "127.0.0.1")[0] == 421
        change = {"body": "product=1&count=1", "Content-Type": "application/x-www-form-urlencoded"}
        assert ask(server.port, "POST", "/cart/add", "shop.test", **change)[0] == 403
        assert ask(server.port, "POST", "/cart/add", "shop.test", **change, Origin="http://other.test")[0] == 403
        assert ask(server.port, "POST", "/cart/add", "shop.test", **change, Origin="null")[0] == 403
        assert ask(server.port, "POST", "/cart/add", "shop.test", **change, Origin="http://shop.test")[0] in (303, 400)
    finally:
        server.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("ctrl+a", (2, "a")), ("ctrl+shift+T", (10, "T")), ("+", (0, "+")), ("ctrl++", (2, "+")),
     ("Return", (0, "Return")),
     ("shift", (8, "")), ("ControlOrMeta+c", (2, "c"))],
)  # fmt: skip
def test_a_chord_is_taken_apart(text, expected):
    assert chord(text) == expected


@pytest.mark.parametrize(
    ("name", "key", "number"),
    [("Return", "Enter", 13), ("BackSpace", "Backspace", 8), ("Page_Down", "PageDown", 34), ("a", "a", 65),
     ("F5", "F5", 116), ("!", "!", 49), ("space", " ", 32), ("Left", "ArrowLeft", 37)],
)  # fmt: skip
def test_keys_have_the_names_of_xdotool_and_of_browsers(name, key, number):
    described = describe(name)
    assert (described["key"], described["windowsVirtualKeyCode"]) == (key, number)


def test_unknown_keys_are_refused():
    for bad in ("nokey", "ctrl+nokey"):
        with pytest.raises(NotPossible, match="nokey"):
            describe(chord(bad)[1])
    with pytest.raises(NotPossible, match="not a modifier"):
        modifiers_of("a")


@pytest.mark.parametrize(
    "text",
    ["__import__('os').system('id')", "click", "click(open('/etc/passwd'))", "x = 1", "eval('1')", "click(*[1])", "",
     "lambda: 0", "click('1').x()", "goto", "(" * 500, "click(10 ** 10 ** 10)", "f'{1}'"],
)  # fmt: skip
def test_an_action_string_is_never_run_as_code(text):
    assert Gym(None, print).do(text)
