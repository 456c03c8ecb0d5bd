import json
import os
import signal
import subprocess
import sys
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from aenv.project import scaffold

LOOK = '''
import os
from aenv import register_function, register_health, register_reward, register_tool

@register_tool
def tool() -> str:
    """A tool.

    With more to say."""
    return "x"

@register_function
def look(name: str) -> str | None:
    """Look at a variable."""
    return os.environ.get(name)

@register_function
def where() -> str:
    return os.getcwd()

@register_reward
def reward() -> float:
    return 1.0

@register_health
def healthy() -> dict:
    """Feel the pulse."""
    return {"status": "healthy"}
'''


def configure(project: Path, **deploy: Any) -> None:
    config = project / "config.json"
    document = json.loads(config.read_text())
    document["deployConfig"] |= deploy
    config.write_text(json.dumps(document))


@pytest.mark.parametrize("where", [[], ["."], ["./src"], ["src/custom_env.py"]])
def test_a_project_is_served_from_wherever_one_points_at_it(serve: Any, project: Path, where: list[str]) -> None:
    server = serve("--quiet", *where, cwd=project)
    assert (server.facts["name"], server.facts["version"]) == ("my-env", "1.0.0")
    assert [tool["name"] for tool in server.facts["tools"]] == ["my_custom_echo_env"]
    assert server.post("/task/reward", {"task": {"name": "x"}})["score"] == 1.0
    assert server.stop()[0] == 0


def test_work_dir_points_at_the_project_from_elsewhere(serve: Any, project: Path) -> None:
    server = serve("--quiet", "--work-dir", str(project), "src", cwd=project.parent)
    assert server.facts["name"] == "my-env"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_good_order(serve: Any, project: Path, number: int) -> None:
    code, said = serve("--quiet", cwd=project).stop(number)
    assert code == 0
    assert "Traceback" not in said


def test_the_environment_finds_its_variables_and_its_own_directory(serve: Any, project: Path) -> None:
    (project / "src" / "custom_env.py").write_text(LOOK)
    configure(project, environmentVariables={"LIMIT": 3, "MODE": "fast"})
    server = serve("--quiet", "src", cwd=project, env={"MODE": "real"})

    def look(name: str) -> str | None:
        found: str | None = server.post("/functions/look", {"name": name})
        return found

    assert look("LIMIT") == "3"
    assert look("MODE") == "real"  # what the user exported wins
    assert (look("envNAME"), look("envversion")) == ("my-env", "1.0.0")
    assert server.post("/functions/where", {}) == str(project)


def test_people_see_what_was_loaded_and_what_to_paste(aenv_command: list[str], project: Path, read_until: Any) -> None:
    (project / "src" / "custom_env.py").write_text(LOOK)
    said = read_until([*aenv_command, "run", "--port", "0", "--no-inspector"], project, "Ctrl-C\n")
    lines = [line.split() for line in said.splitlines()]
    assert "my-env 1.0.0 is ready at http://127.0.0.1:" in said
    for expected in (
        ["tools", "tool", "A", "tool."],
        ["functions", "look", "Look", "at", "a", "variable."],
        ["where"],
        ["rewards", "reward"],
        ["health", "healthy", "Feel", "the", "pulse."],
    ):
        assert expected in lines
    assert "export AENV_INSTANCE_URL=http://localhost:" in said


def test_quiet_is_one_line(aenv_command: list[str], project: Path, read_until: Any) -> None:
    said = read_until([*aenv_command, "run", "--port", "0", "--quiet"], project, "\n")
    assert said.startswith("my-env 1.0.0 is ready at http://127.0.0.1:")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8081", "http://localhost"),
        ("http://127.0.0.1:9000", "http://localhost:9000"),
        ("http://localhost:8081", "http://localhost"),
        ("http://0.0.0.0:8081", "http://localhost"),
        ("http://192.0.2.7:8081", "http://192.0.2.7"),
        ("http://[::]:9000", "http://[::1]:9000"),
    ],
)
def test_the_address_to_paste_is_one_that_a_client_can_use(url: str, address: str) -> None:
    from aenv.cli.commands.author.run import client_address
    from aenv.runtime.serve import RuntimeReady

    assert client_address(RuntimeReady(url, None)) == address  # type: ignore[arg-type]


def test_a_token_is_asked_for_from_callers(serve: Any, project: Path) -> None:
    server = serve("--quiet", cwd=project, env={"AENV_TOKEN": "secret"})
    with pytest.raises(urllib.error.HTTPError) as caught:
        server.post("/functions/describe_task", {})
    caught.value.close()
    assert caught.value.code == 401
    assert server.post("/functions/describe_task", {}, token="secret")["task_name"] == "echo"
    assert "secret" not in server.stop()[1]


def test_other_machines_are_served_with_a_token_or_when_that_is_meant(aenv: Any, serve: Any, project: Path) -> None:
    refused = aenv("run", "--quiet", "--host", "0.0.0.0", "--port", "0", cwd=project)
    assert refused.returncode == 2
    assert "AENV_TOKEN" in refused.stderr
    assert serve("--quiet", "--host", "0.0.0.0", "--no-auth", cwd=project).stop()[0] == 0


def test_a_broken_config_is_reported_whole_and_nothing_is_loaded(aenv: Any, project: Path) -> None:
    (project / "src" / "custom_env.py").write_text("raise SystemExit('loaded')")
    configure(project, memory="2 gigs", cpu=True)
    done = aenv("run", "--quiet", cwd=project)
    assert done.returncode == 3
    assert done.stdout == ""
    assert "config.json: deployConfig.memory: '2 gigs' is not a size; write it like 2Gi" in done.stderr
    assert "config.json: deployConfig.cpu: true" in done.stderr
    assert "loaded" not in done.stderr


def test_an_unknown_key_is_a_warning_and_the_server_starts(serve: Any, project: Path) -> None:
    configure(project, memroy="2Gi")
    code, said = serve("--quiet", cwd=project).stop()
    assert code == 0
    assert "Warning: config.json: deployConfig.memroy: unknown key, ignored" in said
    assert "did you mean memory?" in said


def test_code_without_a_config_is_served_with_a_warning(serve: Any, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(LOOK)
    server = serve("--quiet", "tools.py")
    assert server.facts["name"] is None
    assert "there is no config.json" in server.stop()[1]


def test_a_folder_that_is_no_project_is_served_only_by_name(aenv: Any, serve: Any, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(f"{LOOK}\nopen('imported', 'w')\n")
    done = aenv("run", "--quiet", "--port", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert "it has neither config.json nor src/" in done.stderr
    assert "aenv run ." in done.stderr
    assert not (tmp_path / "imported").exists()
    assert serve("--quiet", ".", cwd=tmp_path).stop()[0] == 0
    assert (tmp_path / "imported").exists()


def test_broken_code_is_exit_code_4_with_the_line(aenv: Any, project: Path) -> None:
    (project / "src" / "custom_env.py").write_text("x = 1\nimport not_installed_anywhere\n")
    done = aenv("run", "--quiet", cwd=project)
    assert done.returncode == 4
    assert "custom_env.py:2" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_at_the_path_is_exit_code_2(aenv: Any, tmp_path: Path) -> None:
    done = aenv("run", "no-such-thing")
    assert done.returncode == 2
    assert f"no such file or folder: {tmp_path / 'no-such-thing'}" in done.stderr


def test_a_port_in_use_is_exit_code_2(aenv: Any, serve: Any, project: Path) -> None:
    port = serve("--quiet", cwd=project).facts["url"].rpartition(":")[2]
    done = aenv("run", "--quiet", "--port", port, cwd=project)
    assert done.returncode == 2
    assert "--port" in done.stderr


def test_the_mcp_name_is_the_environment_s_unless_told(serve: Any, project: Path) -> None:
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }
    for args, name in (([], "my-env"), (["--name", "other"], "other")):
        said = serve("--quiet", *args, cwd=project).mcp(hello).replace('": "', '":"')
        assert f'"name":"{name}"' in said
        assert '"version":"1.0.0"' in said


@pytest.mark.parametrize("template", ["default", "agent"])
def test_the_readme_s_example_works_against_it(serve: Any, tmp_path: Path, template: str) -> None:
    root = scaffold.create("my-env", template=template, parent_dir=tmp_path).root
    example = (root / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    server = serve("--quiet", cwd=root)
    done = subprocess.run(
        [sys.executable, "-c", example],
        env={**os.environ, "DUMMY_INSTANCE_IP": server.facts["dummy_instance_ip"]},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert {"default": "'score': 1.0", "agent": "Momo"}[template] in done.stdout.splitlines()[1]
