"""``Environment`` without any setup: sandboxes of the local platform."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from aenv import Environment, SyncEnvironment
from aenv.client import local_lease
from aenv.errors import AEnvError, ConfigError, EnvironmentError, LoadError, NotFound
from tests.conftest import fetch, run, stop_all
from tests.local_instances import instance_of, local_api


def test_the_path_of_a_project_is_enough(project: Path) -> None:
    async def main() -> None:
        async with Environment(str(project)) as env:
            assert env.env_name == "counter@1.2.0"
            assert (await env.list_tools())[0]["name"] == "counter@1.2.0/increment"
            assert (await env.call_tool("increment")).data == 1
            assert (await env.call_tool("counter@1.2.0/increment")).data == 2
            assert await env.call_function("double", {"n": 4}) == 8
            assert await env.call_reward() == 2.0
            assert (await env.check_health())["success"]

    run(main())


def test_the_name_in_the_current_folders_config_is_enough(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    with SyncEnvironment("counter") as env:
        assert env.call_tool("increment").data == 1
    with SyncEnvironment("counter@1.2.0") as env:
        assert env.call_tool("increment").data == 1
    with pytest.raises(NotFound, match=r"Environment\('\./my-env'\)"), SyncEnvironment("counter@2.0.0"):
        pass


def test_a_port_inside_has_a_url_on_this_machine_and_folders_go_in_and_out(project: Path, tmp_path: Path) -> None:
    with SyncEnvironment(str(project)) as env:
        env.upload(project, "/tmp/copy")
        env.download_to("/tmp/copy", tmp_path / "back")
        assert (tmp_path / "back" / "config.json").read_bytes() == (project / "config.json").read_bytes()
        line = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8123, bind='127.0.0.1')"
        env.exec(["sh", "-c", f'cd /tmp/copy; "{sys.executable}" -c "{line}" >/dev/null 2>&1 &'])
        url = env.presign_url(8123)
        assert url.startswith("http://127.0.0.1:")
        for _ in range(400):
            status, said = fetch(url, "config.json")
            if status != 502:  # it does not listen yet
                break
            time.sleep(0.05)
        assert (status, said["name"]) == (200, "counter")
        assert fetch(url[: url.index("/port/")], "/env-instance/list")[0] == 404
        assert fetch(url[: url.index("/port/")], "/functions/double", {"n": 1},
                     headers={"AEnvCore-EnvInstance-ID": url.split("/")[4]})[0] == 404  # fmt: skip


def test_a_missing_path_is_reported() -> None:
    with pytest.raises(ConfigError, match="no project at"):
        Environment("./no/such/project")


def test_code_that_does_not_load_is_a_load_error(project: Path) -> None:
    (project / "src" / "env.py").write_text("import no_such_module\n")
    with pytest.raises(LoadError, match=r"env\.py:1: .*no_such_module") as raised, SyncEnvironment(str(project)):
        pass
    assert (raised.value.code, raised.value.fault) == ("load", "env")
    assert isinstance(raised.value, EnvironmentError)


def test_a_wrong_config_json_is_a_config_error(project: Path) -> None:
    (project / "config.json").write_text('{"name": "counter", "deployConfig": {"cpu": "lots"}}')
    with pytest.raises(ConfigError, match=r"cpu") as raised, SyncEnvironment(str(project)):
        pass
    assert (raised.value.code, raised.value.fault) == ("config", "caller")


def test_an_unknown_key_in_config_json_is_a_warning(project: Path) -> None:
    name = f"typo-{os.getpid()}"  # each notice is given once by a process
    config = {"name": name, "version": "1.0.0", "deployConfig": {"memroy": "1Gi"}}
    (project / "config.json").write_text(json.dumps(config))
    with (
        pytest.warns(UserWarning, match=rf"{name}: config\.json: deployConfig\.memroy: unknown key.* mean memory"),
        SyncEnvironment(str(project)) as env,
    ):
        assert env.call_tool("increment").data == 1


def test_a_project_that_only_its_owner_may_read_works(project: Path) -> None:
    for path in (project, *project.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    with SyncEnvironment(str(project)) as env:
        assert env.call_tool("increment").data == 1
        assert env.exec("echo changed >> src/env.py && touch new && ls").stdout == "config.json\nnew\nsrc\n"
    assert "changed" not in (project / "src" / "env.py").read_text()
    assert not (project / "new").exists()


def test_a_single_file_is_an_environment(project: Path) -> None:
    with SyncEnvironment(str(project / "src" / "env.py")) as env:
        assert env.call_tool("increment").data == 1


def test_instances_have_their_own_state(project: Path) -> None:
    async def main() -> list[Any]:
        async with Environment(str(project)) as one, Environment(str(project)) as other:
            values = [(await e.call_tool("increment")).data for e in (one, one, other)]
            await one.upload("mine", "/tmp/x")
            with pytest.raises(NotFound, match="No such file"):
                await other.download("/tmp/x")
            return values

    assert run(main()) == [1, 2, 1]


def test_variables_and_arguments_arrive_in_their_order_of_precedence(project: Path) -> None:
    async def main() -> list[Any]:
        async with Environment(str(project), environment_variables={"MINE": "1"}, arguments=["--verbose", "x"]) as env:
            names = ("MINE", "FROM_CONFIG", "envNAME", "envversion", "HOME", "AENV_RUNTIME_DIR")
            found = [(await env.call_tool("variable", {"name": n})).data for n in names]
            return [*found, (await env.call_tool("arguments")).data]

    assert run(main()) == ["1", "yes", "counter", "1.2.0", "/home/env", None, ["--verbose", "x"]]


def test_commands_run_inside_and_files_are_copied(project: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with Environment(str(project)) as env:
            done = await env.exec("pwd; cat; echo oops >&2; exit 3", stdin="given")
            assert (done.exit_code, done.stdout, done.stderr) == (3, "/app\ngiven", "oops\n")
            late = await env.exec(["sleep", "60"], timeout=0.2)
            assert late.timed_out
            assert (await env.exec(["no-such-program"])).exit_code == 127
            (tmp_path / "file").write_bytes(bytes(range(256)) * 4096)
            await env.upload(tmp_path / "file", "data/deep/file")
            assert await env.download("/app/data/deep/file") == bytes(range(256)) * 4096
            assert (await env.exec("ls data/deep", cwd="/app")).stdout == "file\n"
        assert not (project / "data").exists()

    run(main())


@pytest.mark.long
def test_an_mcp_client_may_connect_unannounced(project: Path) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    asked = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}).encode()

    async def main(**options: bool) -> str:
        async with Environment(str(project), **options) as env:
            instance = await instance_of(env)
            assert instance.data_url is not None
            reader, writer = await asyncio.open_unix_connection(instance.data_url.removeprefix("unix:"))
            writer.write(
                b"POST /mcp HTTP/1.1\r\nhost: localhost\r\naccept: application/json, text/event-stream\r\n"
                b"connection: close\r\nauthorization: Bearer %s\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%s" % ((instance.token or "").encode(), len(asked), asked)
            )
            answer = await reader.read()
            writer.close()
            return answer.decode()

    for options in ({}, {"mcp": True}):
        said = run(main(**options))
        assert '"protocolVersion":"2025-11-25"' in said
        assert '"serverInfo":{"name":"counter","version":"1.2.0"}' in said


def test_a_batch_is_yielded_as_its_instances_get_ready(project: Path) -> None:
    async def main() -> list[Any]:
        async with Environment.batch(str(project), 6) as batch:
            values = [(await env.call_tool("increment")).data async for env in batch]
            ids = {(await env.get_env_info())["instance_id"] for env in batch.environments}
            assert len(ids) == 6
            assert len(await batch.all()) == 6
            return values

    assert run(main()) == [1] * 6


def test_a_batch_of_a_broken_environment_raises_the_reason(project: Path) -> None:
    (project / "src" / "env.py").write_text("1 / 0\n")

    async def main() -> None:
        async with Environment.batch(str(project), 2) as batch:
            with pytest.raises(EnvironmentError, match="ZeroDivisionError"):
                await batch.all()

    run(main())


def test_changed_sources_are_seen_by_the_next_instance(project: Path) -> None:
    with SyncEnvironment(str(project)) as before:
        (project / "src" / "env.py").write_text(
            "from aenv import register_tool\n@register_tool\ndef renewed(): return 1\n"
        )
        with SyncEnvironment(str(project)) as after:
            assert [t["name"] for t in after.list_tools()] == ["counter@1.2.0/renewed"]
        assert before.call_tool("increment").data == 1


def test_the_time_to_live_is_the_callers_then_the_projects_then_the_default(project: Path) -> None:
    async def lives(**options: Any) -> str | None:
        async with Environment(str(project), **options) as env:
            return (await instance_of(env)).ttl

    assert (run(lives()), run(lives(ttl="3m"))) == ("30m", "3m")
    config = json.loads((project / "config.json").read_text())
    config["deployConfig"]["ttl"] = "7m"
    (project / "config.json").write_text(json.dumps(config))
    assert (run(lives()), run(lives(ttl="3m"))) == ("7m", "3m")


def test_an_instance_ends_at_its_time_to_live(project: Path) -> None:
    async def main() -> None:
        env = Environment(str(project), ttl="1s")
        await env.initialize()
        async with local_api() as api:
            while await api.list_env_instances():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert (await env.get_env_info())["status"] == "Terminated"
        with pytest.raises(AEnvError):
            await env.call_tool("increment")
        await env.release()

    run(main())


def test_a_cancelled_start_leaves_no_instance(project: Path) -> None:
    async def main() -> None:
        task = asyncio.create_task(Environment(str(project)).initialize())
        await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with Environment(str(project)), local_api() as api:
            while len(await api.list_env_instances()) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    run(main())


def test_usage_is_reported(project: Path) -> None:
    with SyncEnvironment(str(project)) as env:
        env.call_tool("increment")  # without control groups, it is found by its socket, which listens by now
        info = env.get_env_info()
        assert info["status"] == "Running"
        assert info["usage"]["memory_bytes"] > 0


def test_ps_knows_how_often_an_instance_was_called(project: Path) -> None:
    with SyncEnvironment(str(project)) as env:
        for _ in range(3):
            env.call_tool("increment")
        name = env.get_env_info()["instance_id"]
        done = subprocess.run([sys.executable, "-m", "aenv.cli", "ps", "-o", "json"], capture_output=True, check=True)
        (row,) = [row for row in json.loads(done.stdout) if row["id"] == name]
    assert (row["status"], row["calls"]) == ("Running", 3)
    assert row["cpu"] is not None


@pytest.mark.long
def test_required_packages_are_installed(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_folder: Path
) -> None:
    assert importlib.util.find_spec("cowsay") is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("AENV_RUNTIME_DIR", str(short_folder))
    (project / "requirements.txt").write_text("aenvironment\ncowsay==6.1\n")
    (project / "src" / "env.py").write_text(
        "import cowsay\nfrom aenv import register_tool\n@register_tool\ndef version(): return cowsay.__version__\n"
    )
    code = (
        "import sys; from aenv import SyncEnvironment\n"
        "with SyncEnvironment(sys.argv[1]) as env: print(env.call_tool('version').data)"
    )
    variables = {**os.environ, "AENV_LOCAL_LINGER": "0"}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code, str(project)], env=variables, capture_output=True, text=True, check=False
        )
        assert done.stdout == "6.1\n", done.stderr
    assert len(list((tmp_path / "cache" / "aenv" / "layers").glob("[!.]*"))) == 1


def test_the_process_engine_is_selected_by_name(
    project: Path, monkeypatch: pytest.MonkeyPatch, short_folder: Path
) -> None:
    monkeypatch.setenv("AENV_RUNTIME_DIR", str(short_folder))
    code = (
        "import sys; from aenv import SyncEnvironment\n"
        "with SyncEnvironment(sys.argv[1], environment_variables={'A': '1'}, arguments=['-x']) as env:\n"
        "    print(env.call_tool('increment').data, env.call_tool('variable', {'name': 'A'}).data, "
        "env.call_tool('arguments').data)"
    )
    variables = {**os.environ, "AENV_LOCAL_LINGER": "0", "AENV_ENGINE": "process"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(project)], env=variables, capture_output=True, text=True, check=False
    )
    assert done.stdout == "1 1 ['-x']\n", done.stderr
    assert "plain processes" in next(short_folder.glob("*/platform.log")).read_text()


def test_the_local_command_shows_and_stops_the_platform(project: Path, platform: local_lease.LocalPaths) -> None:
    def aenv(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "aenv.cli", "local", *words], capture_output=True, text=True, check=False
        )

    with SyncEnvironment(str(project)) as env:
        env.call_tool("speak", {"text": "hello"})
        told = aenv("status").stdout
        assert told.startswith("running, version")
        assert {"ENGINE", "native"} <= set(told.split())
        name = env.get_env_info()["instance_id"]
        assert aenv("stop").stdout == "stopped\n"
        told = subprocess.run(
            [sys.executable, "-m", "aenv.cli", "instance", "get", name, "-o", "json"], capture_output=True, check=True
        ).stdout
        assert (json.loads(told)["ended_by"], json.loads(told)["reason"]) == ("stopped", "the platform was stopped")
        assert "serving at" in aenv("logs").stdout
    assert aenv("stop").stdout == "it was not running\n"
    assert aenv("status").returncode == 1
    unknown = subprocess.run(
        [sys.executable, "-m", "aenv.cli", "instance", "get", "nobody-0001"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert unknown.returncode == 1
    assert "there is no such instance" in unknown.stderr
    with SyncEnvironment(str(project)) as env:  # it starts again on demand
        assert env.call_tool("increment").data == 1


def test_a_file_alone_shows_only_itself_and_what_it_imports(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for path, text in {
        "alone.py": (
            "import os\nfrom aenv import register_tool\nimport helper\n"
            "@register_tool\ndef look() -> list[str]:\n    from parts.deep import word\n"
            "    open('/app/helper.py', 'a').write('# changed')\n    open('/app/new', 'w').close()\n"
            "    return [helper.word, word, *sorted(os.path.join(f, n)[5:] for f, _, ns in os.walk('/app') for n in ns "
            "if not n.endswith('.pyc'))]\n"
        ),
        "helper.py": "from second import word\n",
        "second.py": "word = 'second'\n",
        "parts/deep.py": "from more import word\n",
        "more/__init__.py": "word = 'more'\n",
        "more/data.txt": "of the package",
        "unrelated.py": "",
        "notes/secret.txt": "",
        ".ssh/id_ed25519": "",
    }.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
        (home / path).chmod(0o600)
    (home / "linked.py").symlink_to(home / "unrelated.py")
    (home / "alone.py").write_text(
        "try:\n    import linked\nexcept ImportError:\n    pass\n" + (home / "alone.py").read_text()
    )
    seen = ["alone.py", "helper.py", "more/__init__.py", "more/data.txt", "new", "parts/deep.py", "second.py"]
    with SyncEnvironment(str(home / "alone.py")) as env:
        assert env.call_tool("look").data == ["second", "more", *seen]
    (home / "second.py").write_text("word = 'changed'\n")
    with SyncEnvironment(str(home / "alone.py")) as env:
        assert env.call_tool("look").data == ["changed", "more", *seen]
    assert (home / "helper.py").read_text() == "from second import word\n"


def test_the_log_is_kept_in_the_state_folder(project: Path, short_folder: Path, tmp_path: Path) -> None:
    code = "import sys; from aenv import SyncEnvironment\nSyncEnvironment(sys.argv[1]).initialize()"
    variables = {name: value for name, value in os.environ.items() if name != "AENV_RUNTIME_DIR"}
    variables |= {"AENV_LOCAL_LINGER": "0", "XDG_RUNTIME_DIR": str(short_folder), "XDG_STATE_HOME": str(tmp_path / "s")}
    subprocess.run([sys.executable, "-c", code, str(project)], env=variables, check=True)
    (log,) = (tmp_path / "s" / "aenv" / socket.gethostname()).glob("*/platform.log")
    assert "serving at" in log.read_text()
    assert not list((short_folder / "aenv").rglob("platform.log"))
    stop_all(short_folder / "aenv")
