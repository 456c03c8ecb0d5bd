"""Keys and screens: real programs on a real terminal, and what they draw with."""

import re
import shutil

import pytest
from conftest import wait_until_gone
from mini_terminal import close_terminal, list_shells, screen, send_keys

from aenv.terminal.keys import key_sequence
from aenv.terminal.screen import Screen


def shown(data, rows=4, columns=10):
    screen = Screen(rows, columns)
    screen.feed(data.encode())
    return screen.text()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("one\r\ntwo", "one\ntwo"),
        ("0123456789ab", "0123456789\nab"),
        ("0123456789\r\nx", "0123456789\nx"),
        ("a\r\nb\r\nc\r\nd\r\ne", "b\nc\nd\ne"),
        ("abc\b\bX", "aXc"),
        ("a\tb", "a       b"),
        ("\x1b[2;3Hx\x1b[1;1Hy", "y\n  x"),
        ("abcdef\x1b[3D\x1b[K", "abc"),
        ("abcdef\x1b[1G\x1b[2P", "cdef"),
        ("abc\x1b[1G\x1b[2@", "  abc"),
        ("junk\x1b[2J\x1b[Hclean", "clean"),
        ("a\r\nb\r\nc\x1b[2;1H\x1b[L", "a\n\nb\nc"),
        ("a\r\nb\r\nc\x1b[2;1H\x1b[M", "a\nc"),
        ("\x1b[2;3ra\r\nb\r\nc\r\nd\r\ne\x1b[4;1Hf", "a\nd\ne\nf"),
        ("a\r\nb\x1b[1;1H\x1bM", "\na\nb"),
        ("\x1b[31;1mred\x1b[0m", "red"),
        ("\x1b]0;a title\x07x", "x"),
        ("main\x1b[?1049h\x1b[Hother\x1b[?1049l", "main"),
        ("\x1b(0lqk\x1b(B-", "┌─┐-"),
        ("你好x", "你好x"),
        ("e\u0301x", "e\u0301x"),
        ("=\x1b[4b", "====="),
        ("a\x1b[99;99Hb\x1b[0Gc", "a\n\n\nc        b"),
    ],
)
def test_what_is_drawn_is_shown(data, text):
    assert shown(data) == text
    byte_by_byte = Screen(4, 10)
    for byte in data.encode():
        byte_by_byte.feed(bytes([byte]))
    assert byte_by_byte.text() == text


def test_questions_are_answered():
    asked = Screen(24, 80)
    asked.feed(b"ab\x1b[6n\x1b[c")
    assert asked.answers == "\x1b[1;3R\x1b[?62;22c"


def test_no_sequence_of_bytes_breaks_it():
    import random

    random.seed(1)
    screen = Screen(5, 7)
    alphabet = [bytes([byte]) for byte in b"\x1b[]?;19rHLMP@x\n\xffh"]
    for _ in range(20_000):
        screen.feed(random.choice(alphabet))
        assert len(screen.text().splitlines()) <= 5
        assert 0 <= screen.row < 5
        assert 0 <= screen.column < 7


@pytest.mark.parametrize(
    ("key", "bytes_"),
    [("Enter", "\r"), ("C-c", "\x03"), ("^D", "\x04"), ("M-x", "\x1bx"), ("Up", "\x1b[A"), ("Enter now", "Enter now"),
     ("C-[", "\x1b"), ("C-Space", "C-Space"), ("F5", "\x1b[15~"), ("ü", "ü")],
)  # fmt: skip
def test_keys_have_the_names_that_tmux_gives_them(key, bytes_):
    assert key_sequence(key) == bytes_


def test_arrows_change_with_the_mode():
    assert key_sequence("Up", application_keys=True) == "\x1bOA"


def test_commands_can_be_typed(play):
    async def work():
        return await send_keys(["echo $((6*7))", "Enter"], wait_for="\n42", timeout=20)

    seen = play(work)
    assert seen["found"]
    assert seen["size"] == [24, 80]
    assert seen["cursor"][0] == 2


def test_an_interrupted_program_gives_the_prompt_back(play):
    async def work():
        await send_keys(["sh -c 'echo ready; exec sleep 100'", "Enter"], wait_for="\nready", timeout=20)
        await send_keys("C-c", wait_for="^C")
        return await send_keys(["echo o''k", "Enter"], wait_for="\nok", timeout=20)

    assert play(work)["found"]


@pytest.mark.skipif(not shutil.which("vim"), reason="no vim here")
def test_an_editor_writes_a_file(play, tmp_path):
    async def work():
        await send_keys(["vim -u NONE -i NONE f", "Enter"], wait_for="~\n~", timeout=20)
        await send_keys(["i", "first", "Enter", "second", "Escape"], wait_for="second", timeout=20)
        await send_keys([":wq", "Enter"], wait_for="written")
        return await send_keys(["cat f", "Enter"], wait_for="first\nsecond\n", timeout=20)

    assert play(work)["found"]
    assert (tmp_path / "f").read_text() == "first\nsecond\n"


def test_a_python_prompt_can_be_used(play):
    async def work():
        await send_keys(["python3 -q", "Enter"], wait_for=">>> ", timeout=20)
        await send_keys(["print(6 * 7)", "Enter"], wait_for="\n42\n>>>", timeout=20)  # before it asks, nobody hears C-d
        return await send_keys("C-d", wait_for="\n~", timeout=20)

    assert play(work)["found"]


def test_a_terminal_that_ended_says_so_and_can_be_started_anew(play):
    async def work():
        await send_keys(["exit 3", "Enter"])
        while "exit_code" not in (seen := await screen(wait_for="never", timeout=20)):
            pass
        with pytest.raises(ProcessLookupError, match="exit code 3; close it"):
            await send_keys("x")
        assert await close_terminal()
        assert not (await list_shells())["terminals"]
        await screen()
        return seen["exit_code"]

    assert play(work) == 3


def test_what_runs_in_a_terminal_ends_with_it(play):
    async def work():
        await send_keys(["sleep 100 & echo pid=$!", "Enter"], wait_for="\npid=", timeout=20)
        seen = await send_keys(["sh -c 'echo fore=$$; exec sleep 100'", "Enter"], wait_for="\nfore=", timeout=20)
        pids = [int(pid) for pid in re.findall(r"^(?:pid|fore)=(\d+)", seen["screen"], re.MULTILINE)]
        await close_terminal()
        return pids

    pids = play(work)
    assert len(pids) == 2
    wait_until_gone(pids)


def test_a_long_text_can_be_pasted(play, tmp_path):
    lines = "".join(f"{number:060}\n" for number in range(500))

    async def work():
        await send_keys(["stty -echo; echo go; cat > f; echo o''ver", "Enter"], wait_for="\ngo", timeout=20)
        await send_keys(lines, literal=True)
        return await send_keys("C-d", wait_for="over", timeout=20)

    assert play(work)["found"]
    assert (tmp_path / "f").read_text() == lines
