"""From nothing to a published environment that others run, offline and with no server."""

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

USE = """
import asyncio
from aenv import Environment

async def main():
    async with Environment({name!r}) as env:
        result = await env.call_tool("my_custom_echo_env", {{"content": "hi"}})
        print(result.content[0]["text"], (await env.get_env_info())["name"])

asyncio.run(main())
"""


def test_from_nothing_to_a_copy_that_runs(person, sandboxes):
    me = person()
    me.aenv("init", "hello")
    project = me.home / "hello"
    assert me.json("build", "-o", "json", cwd=project)["images"] == []
    pushed = me.json("push", "-o", "json", cwd=project)
    assert (pushed["outcome"], pushed["tools"]) == ("created", ["my_custom_echo_env"])
    listed = me.aenv("list").stdout.splitlines()
    assert listed[0].split()[:2] == ["NAME", "VERSION"]
    assert ["hello", "1.0.0"] in [line.split()[:2] for line in listed]
    got = me.json("get", "hello")
    assert got["digest"] == pushed["digest"]
    assert (got["id"], got["status"], got["deploy_config"]["memory"]) == ("hello@1.0.0", 6, "2Gi")
    assert got["schemas"]["tools"][0]["inputSchema"]["required"] == ["content"]
    assert [each["name"] for each in got["schemas"]["functions"]] == ["describe_task"]
    assert [each["name"] for each in got["schemas"]["rewards"]] == ["my_custom_reward"]
    assert "hello" in got["readme"]
    me.aenv("pull", "hello@1.0.0", "../copy", cwd=project)
    copy = me.home / "copy"
    assert (copy / "src/custom_env.py").read_text() == (project / "src/custom_env.py").read_text()
    assert json.loads((copy / "config.json").read_text()) == json.loads((project / "config.json").read_text())
    assert list(json.loads((copy / "config.json").read_text())) == list(
        json.loads((project / "config.json").read_text())
    )
    me.aenv("test", cwd=copy)
    assert me.python(USE.format(name="./copy")).split() == ['{"result":"hi"}', "hello@1.0.0"]
    assert me.json("build", "--no-image", "-o", "json", cwd=copy)["digest"] == pushed["digest"]


@pytest.mark.long
def test_an_environment_runs_by_its_name_from_the_hub(person, sandboxes):
    me = person()
    me.aenv("init", "hello")
    digest = me.json("push", "-w", "hello", "-o", "json")["digest"]
    for name in ("hello@1.0.0", "hello", "hello@1", f"hello@{digest}"):
        assert me.python(USE.format(name=name)).startswith('{"result":"hi"}'), name
    cached = me.home / ".cache/aenv/bundles" / digest.replace(":", "-")
    assert [path.name for path in cached.parent.glob("sha256-*")] == [cached.name]
    writable = [p for p in cached.rglob("*") if p.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)]
    assert not writable
    said = me.python(
        "import asyncio\nfrom aenv import Environment\ntry:\n    asyncio.run(Environment('hello@9').initialize())\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    assert said.startswith("NotFound")
    assert "aenv push" in said


@pytest.mark.long
def test_the_current_folder_comes_before_the_hub(person, sandboxes):
    me = person()
    me.aenv("init", "hello")
    me.aenv("push", "-w", "hello")
    source = me.home / "hello/src/custom_env.py"
    source.write_text(source.read_text().replace('{"result": content}', '{"result": "local " + content}'))
    assert me.python(USE.format(name="hello"), cwd=me.home / "hello").startswith('{"result":"local hi"}')
    assert me.python(USE.format(name="hello")).startswith('{"result":"hi"}')


@pytest.mark.long
def test_many_processes_may_want_the_same_environment_at_once(person, sandboxes):
    me = person()
    me.aenv("init", "hello")
    me.aenv("push", "-w", "hello")
    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(lambda _: me.python(USE.format(name="hello")), range(4)))
    assert [line.split()[0] for line in said] == ['{"result":"hi"}'] * 4
    assert len(list((me.home / ".cache/aenv/bundles").glob("sha256-*"))) == 1


@pytest.mark.long
def test_a_published_version_does_not_change(person, sandboxes):
    me = person()
    me.aenv("init", "hello")
    project = me.home / "hello"
    first = me.json("push", "-o", "json", cwd=project)
    assert me.json("push", "-o", "json", cwd=project)["outcome"] == "unchanged"
    (project / "README.md").write_text("other")
    refused = me.aenv("push", cwd=project, code=1)
    assert "changed README.md" in refused.stderr
    assert me.json("get", "hello")["digest"] == first["digest"]
    assert me.json("push", "--force", "-o", "json", cwd=project)["outcome"] == "replaced"
    me.aenv("release", cwd=project)
    assert me.json("get", "hello")["status_name"] == "Released"
    (project / "README.md").write_text("yet another")
    me.aenv("push", "--force", cwd=project, code=1)
    assert me.json("push", "--version", "1.1.0", "--release", "-o", "json", cwd=project)["version"] == "1.1.0"
    assert json.loads((project / "config.json").read_text())["version"] == "1.0.0"
    assert me.json("get", "hello")["version"] == "1.1.0"
    assert me.json("get", "hello", "--version", "1.0.0")["version"] == "1.0.0"
    me.aenv("pull", "hello@1.1", "copy")
    assert json.loads((me.home / "copy/config.json").read_text())["version"] == "1.1.0"


@pytest.mark.long
def test_a_dry_run_sends_nothing(person, sandboxes):
    me = person()
    me.aenv("init", "hello")
    said = me.json("push", "--dry-run", "-o", "json", cwd=me.home / "hello")
    assert (said["outcome"], said["blobs"] > 0) == ("created", True)
    assert "src/custom_env.py" in said["files"]
    assert "hello" not in [each["name"] for each in me.json("list", "-f", "json")]
    me.aenv("push", cwd=me.home / "hello")
    said = me.json("push", "--dry-run", "-o", "json", cwd=me.home / "hello")
    assert (said["outcome"], said["blobs"]) == ("unchanged", 0)


@pytest.mark.long
def test_code_that_does_not_load_is_not_published(person, sandboxes):
    me = person()
    me.aenv("init", "hello")
    source = me.home / "hello/src/custom_env.py"
    good = source.read_text()
    source.write_text(good + "\nraise RuntimeError('not today')\n")
    refused = me.aenv("push", cwd=me.home / "hello", code=4)
    assert "not today" in refused.stderr
    source.write_text(good + "\nimport helper\n")
    (me.home / "hello/src/helper.py").touch()
    (me.home / "hello/.aenvignore").write_text("helper.py\n")
    said = me.aenv("push", cwd=me.home / "hello", code=4).stderr
    assert "No module named 'helper'" in said
    assert f"{me.home / 'hello'}/src/" in said, "it names the copy that was loaded"
    assert "hello" not in [each["name"] for each in me.json("list", "-f", "json")]
    assert me.json("push", "--no-load", "-o", "json", cwd=me.home / "hello")["tools"] == []


def test_without_sandboxes_a_project_is_not_run_unless_a_flag_says_so(person):
    me = person(AENV_RUNTIME_DIR="/dev/null/nowhere")
    me.aenv("init", "hello")
    refused = me.aenv("push", "-o", "json", cwd=me.home / "hello", code=1)
    assert "--no-sandbox" in refused.stderr
    pushed = me.aenv("push", "--no-sandbox", "-o", "json", cwd=me.home / "hello")
    assert json.loads(pushed.stdout)["tools"] == ["my_custom_echo_env"]


@pytest.mark.long
def test_lists_search_and_advice(person):
    me = person()
    for name, tags in (("hello-a", ["echo", "demo"]), ("hello-b", ["demo"]), ("other", [])):
        me.aenv("init", name)
        path = me.home / name / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "tags": tags, "description": f"About {name}"}))
        me.aenv("push", "--no-load", "-w", name)

    def names(*args):
        return [each["name"] for each in me.json(*args, "--format", "json") if not each["builtin"]]

    assert names("list") == ["hello-a", "hello-b", "other"]
    assert names("list", "--name", "hello") == ["hello-a", "hello-b"]
    assert names("list", "--tags", "demo") == ["hello-a", "hello-b"]
    assert names("list", "--tags", "demo,echo") == names("list", "-t", "demo", "-t", "echo") == ["hello-a"]
    assert names("list", "--name", "hello", "--limit", "1", "--offset", "1") == ["hello-b"]
    assert names("search", "about", "other") == ["other"]
    me.aenv("deprecate", "other@1.0.0", "--reason", "use hello-a")
    assert "use hello-a" in me.aenv("pull", "other", "copy").stderr
    me.aenv("deprecate", "other@1.0.0", "--undo")
    assert "Warning" not in me.aenv("pull", "other", "copy2").stderr
    me.aenv("yank", "hello-b@1.0.0", "--reason", "leaks")
    me.aenv("pull", "hello-b", code=1)
    assert "leaks" in me.aenv("pull", "hello-b@1.0.0", "copy3").stderr
    me.aenv("hub", "delete", "hello-b@1.0.0", code=2)  # without a reason
    assert me.aenv("hub", "delete", "hello-b@1.0.0", "--reason", "leaks", "--yes").stdout == "deleted hello-b@1.0.0\n"
    me.aenv("pull", "hello-b@1.0.0", "copy4", code=1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["pull", "Bad_Name"], 2, "bad-name"),
        (["pull", "nope"], 1, "nope"),
        (["get", "nope"], 1, "nope"),
        (["get", "a@1.0.0", "--version", "2.0.0"], 2, "twice"),
        (["get", "a@one"], 2, "invalid version 'one'"),
        (["release", "nope@1.0.0"], 1, "nope"),
        (["release", "nope"], 2, "exact version"),
        (["release"], 3, "config.json"),
        (["deprecate", "a@1.0.0"], 2, "--reason"),
        (["yank", "a@^1", "--reason", "x"], 2, "exact version"),
        (["push"], 3, "config.json"),
        (["pull", "nothing.aenv.tar"], 2, "nothing.aenv.tar"),
        (["list", "--limit", "0"], 2, "--limit"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(person, command, code, said):
    done = person().aenv(*command, code=code)
    assert said in done.stderr
    assert done.stdout == ""


def test_more_than_a_hub_keeps_is_told(person):
    me = person()
    me.aenv("init", "hello")
    path = me.home / "hello/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tags": ["", "x" * 65], "description": "y" * 5000}))
    said = me.aenv("push", "--no-load", "-w", "hello", code=3).stderr
    assert "tags.0" in said
    assert "tags.1" in said
    assert "description" in said


def test_push_refuses_another_projects_name(person):
    me = person()
    me.aenv("init", "hello")
    assert "is called hello, not bye" in me.aenv("push", "bye", cwd=me.home / "hello", code=2).stderr
    assert me.json("push", "hello", "--no-load", "-o", "json", cwd=me.home / "hello")["outcome"] == "created"


def test_push_takes_the_folder_of_a_project(person):
    me = person()
    me.aenv("init", "hello")
    assert me.json("push", "hello", "--no-load", "-o", "json")["outcome"] == "created"
    assert me.json("push", "./hello/", "--no-load", "-o", "json")["outcome"] == "unchanged"
    assert "no config.json" in me.aenv("push", "bye", code=3).stderr


def test_a_bundles_file_needs_no_hub(person):
    me = person()
    me.aenv("init", "hello")
    file = me.json("build", "--no-image", "-w", "hello", "-o", "json")["path"]
    other = person()
    other.aenv("pull", file)
    assert (other.home / "hello/src/custom_env.py").is_file()
    assert "exists already" in other.aenv("pull", file, code=2).stderr
    data = Path(file).read_bytes()
    evil = other.home / "evil.aenv.tar"
    evil.write_bytes(data.replace(b"src/custom_env.py", b"../../../../tmp/x"))
    assert "without leaving the project" in other.aenv("pull", str(evil), "out", code=1).stderr
    assert sorted(os.listdir(other.home)) == ["evil.aenv.tar", "hello"]


@pytest.mark.long
@pytest.mark.attack("build")
@pytest.mark.parametrize(
    ("death", "code"),
    [("import ctypes; ctypes.string_at(0)", 1), ("import os; os.abort()", 1), ("import os; os._exit(0)", 4)],
)
def test_a_push_never_runs_a_project_outside_of_a_sandbox(person, sandboxes, death, code):
    me = person()
    me.aenv("init", "hello")
    mark = me.home / "ran"
    attempt = f"try:\n    open({str(mark)!r}, 'w').close()\nexcept OSError:\n    pass\n"
    (me.home / "hello" / "src" / "custom_env.py").write_text(f"{attempt}{death}\n")
    me.aenv("push", "-w", "hello", code=code)
    assert not mark.exists()
    me.aenv("push", "-w", "hello", "--no-sandbox", code=4)  # the same code, where the user chose that
    assert mark.exists()
