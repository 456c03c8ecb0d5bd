"""Commands, the nasty ones too: the right output, the right status, and a shell that can go on."""

import asyncio
import os
import signal
from pathlib import Path

import mini_terminal
import pytest
from conftest import wait_until_gone
from mini_terminal import execute_command


def done(text, status=0):
    return {"output": [text, True], "returncode": status}


@pytest.mark.parametrize(
    ("command", "output", "status"),
    [
        ("echo hello", "hello\n", 0),
        ("printf 'no newline'", "no newline", 0),
        ("false", "", 1),
        ("(exit 42)", "", 42),
        ("sh -c 'kill -9 $$'", "Killed", 137),
        ("no-such-program", "bash: no-such-program: command not found\n", 127),
        ("if", "syntax error: unexpected end of file", 2),
        ("echo 'unclosed", "unexpected EOF while looking for matching", 2),
        ("break", "only meaningful in a", 0),
        ("", "", 0),
        ("# a comment", "", 0),
        ("echo one; echo two >&2; ls /nowhere 2>&1 | wc -l; echo three >&2", "one\ntwo\n1\nthree\n", 0),
        ("for i in 1 2 3; do echo $i; echo e$i >&2; done", "1\ne1\n2\ne2\n3\ne3\n", 0),
        ("cat", "", 0),
        ("read x; echo \"[$x] $?\"", "[] 1\n", 0),
        ("cat <<'END'\n$HOME \\ 'quoted' \"twice\"\nEND", "$HOME \\ 'quoted' \"twice\"\n", 0),
        ("echo 'it'\\''s'; echo \"a\\\\b\"; echo !x!!", "it's\na\\b\n!x!!\n", 0),
        ("echo 你好 ünï 🎉", "你好 ünï 🎉\n", 0),
        ("printf 'a\\0b\\377\\n'", "a\0b\ufffd\n", 0),
        ("printf '1\\r\\n2\\r\\n'", "1\r\n2\r\n", 0),
        ("sleep 0.3; echo done", "done\n", 0),
        ("true | false; echo ${PIPESTATUS[@]}", "0 1\n", 0),
        ("python3 -c 'input()' 2>&1 | tail -1", "EOFError: EOF when reading a line\n", 0),
        ("test -t 0; echo $?; test -t 1; echo $?", "1\n1\n", 0),
        ("yes | head -2", "y\ny\n", 0),
        ("ls /proc/self/fd | wc -l", "4\n", 0),
    ],
)  # fmt: skip
def test_a_command(commands, command, output, status):
    first, second = commands(command, "echo still $((40 + 2)) here")
    assert first["returncode"] == status
    text, finished = first["output"]
    assert finished
    assert text == output if output.endswith("\n") else output in text
    assert set(first) == {"output", "returncode"}
    assert second == done("still 42 here\n")


def test_state_stays_from_command_to_command(commands, tmp_path):
    (tmp_path / "deep").mkdir()
    results = commands(
        "cd deep; X='a  b'; export Y=2; f() { echo \"f $1\"; }; declare -A table=([k]=v); set -o pipefail; alias l=ls",
        "pwd; echo \"$X\"; sh -c 'echo $Y'; f 1; echo ${table[k]}; shopt -o pipefail",
        "false | true; echo $?; exec 7<<<'from seven'",
        "cat <&7",
    )
    assert results[1] == done(f"{tmp_path}/deep\na  b\n2\nf 1\nv\npipefail       \ton\n")
    assert results[2] == done("1\n")
    assert results[3] == done("from seven\n")


def test_the_status_of_the_last_command_is_known_to_the_next(commands):
    assert [r["output"][0] for r in commands("(exit 3)", "echo $?", "echo $?")] == ["", "3\n", "0\n"]


def test_options_that_end_other_drivers_are_survived(commands):
    results = commands(
        "set -u; set -x; IFS=1 ", "echo $((1 + 1))", "set +x; printf() { echo mine; }; printf", "echo ok"
    )
    assert results[1] == done("++ echo 2\n2\n")
    assert results[2]["output"][0].endswith("mine\n")
    assert results[3] == done("ok\n")


def test_output_cannot_be_lost_for_good(commands):
    assert commands("exec >/dev/null 2>&1; echo gone", "echo here")[1] == done("here\n")


def test_what_takes_too_long_is_interrupted_and_the_shell_keeps_its_state(play):
    async def work():
        await execute_command("X=kept; cd /")
        late = await execute_command("echo before; sleep 100; echo after", 0.3)
        return late, await execute_command("echo $X $PWD $?")

    late, after = play(work)
    assert late["output"] == ["before\n", False]
    assert late["returncode"] == 124
    assert late["note"] == "timed out after 0.3 s and was interrupted"
    assert after == done("kept / 130\n")


@pytest.mark.parametrize(
    "command",
    [
        "while :; do :; done",
        "while true; do sleep 0.01; done; echo never",
        "yes",
        "cat /dev/tty",
        "python3 -c 'while True: pass'",
        "sh -c 'trap \"\" INT; sleep 100; sleep 100'",
        "(sleep 100; sleep 100) | cat",
        "stty raw </dev/tty; cat /dev/tty",
    ],
)
def test_nothing_keeps_a_shell_busy_for_good(play, command):
    async def work():
        await execute_command("X=kept")
        late = await execute_command(command, 0.5)
        return late, await execute_command("echo $X")

    late, after = play(work)
    assert late["output"][1] is False
    assert late["returncode"] == 124
    assert after["output"][0].endswith("kept\n")
    assert after["returncode"] == 0


def test_a_loop_that_ignores_everything_ends_with_its_shell(play):
    async def work():
        late = await execute_command("cd /tmp; trap '' INT TERM; while :; do :; done", 0.3)
        return late, await execute_command("pwd")

    late, after = play(work)
    assert late["returncode"] == 124
    assert "the shell has ended" in late["note"]
    assert after == done("/tmp\n")


def test_a_question_on_the_terminal_is_told(play):
    async def work():
        return await execute_command("printf 'Password: ' >/dev/tty; read x </dev/tty", 0.3)

    assert "'Password:'" in play(work)["note"]


def test_a_shell_that_ends_says_so_and_is_replaced(commands, tmp_path):
    (tmp_path / "here").mkdir()
    results = commands("cd here", "echo bye; exit 3", "pwd", "kill -9 $$", "echo again", "exec sh -c 'echo x; exit 5'")
    assert results[1]["output"] == ["bye\nexit\n", True]
    assert results[1]["returncode"] == 3
    assert "starts a new one in the same folder" in results[1]["note"]
    assert results[2] == done(f"{tmp_path}/here\n")
    assert results[3]["returncode"] == 137
    assert results[4] == done("again\n")
    assert (results[5]["output"][0], results[5]["returncode"]) == ("x\n", 5)


def test_a_shell_killed_while_nothing_ran_is_replaced(play):
    async def work():
        pid = int((await execute_command("echo $$"))["output"][0])
        os.kill(pid, signal.SIGKILL)
        await mini_terminal.shells["main"].ended()
        return await execute_command("echo ok")

    assert play(work) == {**done("ok\n"), "note": "the shell had ended; this is a new one"}


def test_jobs_in_the_background_do_not_delay_and_go_on(commands, tmp_path):
    results = commands(
        "(until test -e go; do sleep 0.02; done; echo came > result) & echo started",
        "jobs | wc -l; touch go; wait; cat result",
        "sleep 100 &",
        "kill %1; wait %1; echo $?",
        timeout=20,
    )
    assert results[0]["output"][0].splitlines()[-1] == "started"
    assert results[1]["output"][0].endswith("came\n")
    assert results[3]["output"][0].endswith("143\n")


def test_output_of_a_job_comes_with_the_next_command(play):
    async def work():
        await execute_command("(until test -e go; do sleep 0.01; done; echo late; touch gone) &")
        return await execute_command("touch go; until test -e gone; do sleep 0.01; done; echo next")

    text = play(work)["output"][0]
    assert "late\n" in text
    assert text.endswith("next\n")


def test_a_job_that_prints_forever_neither_blocks_nor_fills_the_memory(play):
    async def work():
        await execute_command("yes 0123456789 &")
        text = ""
        while "left out" not in text:
            text = (await execute_command("sleep 0.2"))["output"][0]
        return text, await execute_command("kill %1; wait; echo end")

    text, end = play(work)
    assert len(text) < 300_000
    assert end["output"][0].rstrip().endswith("end")


def test_huge_output_is_bounded_and_shows_both_ends(play):
    async def work():
        return await execute_command(
            "echo first; head -c 100000000 /dev/zero | tr '\\0' x; echo; echo last; (exit 4)", 60
        )

    result = play(work)
    text = result["output"][0]
    assert text.startswith("first\nxxx")
    assert text.endswith("xxx\nlast\n")
    assert "[... 99,737,868 bytes left out ...]" in text
    assert len(text) < 263_000
    assert result["returncode"] == 4


def test_a_command_may_be_longer_than_a_pipe(commands):
    long = "x" * 1_000_000
    assert commands(f"cat > f <<'END'\n{long}\nEND\nwc -c < f")[0] == done("1000001\n")


def test_a_nul_in_a_command_is_refused_with_a_hint(play):
    with pytest.raises(ValueError, match="printf"):
        play(lambda: execute_command("echo \0"))


def test_shells_of_different_names_are_apart_and_run_at_once(play):
    async def work():
        await execute_command("mkfifo pipe; X=one", shell="one")
        reading, _ = await asyncio.gather(
            execute_command("cat pipe; echo [$X]", shell="one"), execute_command("echo over > pipe", shell="two")
        )
        names = [shell["name"] for shell in (await mini_terminal.list_shells())["shells"]]
        return reading, names, await execute_command("echo [$X]", shell="two")

    reading, names, other = play(work)
    assert reading == done("over\n[one]\n")
    assert names == ["one", "two"]
    assert other == done("[]\n")


def test_commands_for_one_shell_wait_for_their_turn(play):
    async def work():
        texts = await asyncio.gather(*(execute_command(f"echo {i}a; sleep 0.01; echo {i}b") for i in range(10)))
        return [result["output"][0] for result in texts]

    assert play(work) == [f"{i}a\n{i}b\n" for i in range(10)]


def test_a_call_that_was_given_up_leaves_the_shell_usable(play):
    async def work():
        await execute_command("X=kept")
        call = asyncio.create_task(execute_command("touch began; sleep 100"))
        await execute_command("until test -e began; do sleep 0.01; done", shell="other")
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        return await execute_command("echo $X")

    assert play(work) == done("kept\n")


def test_a_closed_shell_starts_anew(play):
    async def work():
        await execute_command("X=1")
        assert await mini_terminal.close_shell("main")
        assert not await mini_terminal.close_shell("main")
        return await execute_command("echo [$X]")

    assert play(work) == done("[]\n")


def test_jobs_end_with_a_closed_shell(play):
    async def work():
        return int((await execute_command("sleep 100 & echo $!"))["output"][0].split()[-1])

    wait_until_gone([play(work)])


def test_jobs_of_a_shell_that_had_to_be_killed_end_too(play):
    async def work():
        return int((await execute_command("trap : HUP; sleep 100 & echo $!"))["output"][0].split()[-1])

    wait_until_gone([play(work)])


def test_what_chose_to_outlive_its_shell_does(play):
    async def work():
        started = "nohup sh -c 'touch up; exec sleep 100' >/dev/null & until test -e up; do sleep 0.01; done; echo $!"
        return int((await execute_command(started))["output"][0].split()[-1])

    pid = play(work)
    assert b"sleep 100" in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    os.kill(pid, signal.SIGKILL)


def test_the_platforms_variables_are_not_shown(commands, monkeypatch):
    monkeypatch.setenv("AENV_TOKEN", "secret")
    monkeypatch.setenv("MINE", "shown")
    assert commands("env | grep -c secret; echo $MINE")[0] == done("0\nshown\n")


def test_nothing_is_left_open(play):
    before = len(os.listdir("/proc/self/fd"))

    async def work():
        for _ in range(5):
            await execute_command("exit")
        await execute_command("sleep 100 &")

    play(work)
    assert len(os.listdir("/proc/self/fd")) == before
