import json
from pathlib import Path
from typing import Any


def test_a_project_is_made_and_its_next_steps_are_real_commands(aenv: Any, tmp_path: Path) -> None:
    done = aenv("init", "my-env")
    assert done.returncode == 0
    assert done.stderr == ""
    assert "└── test_custom_env.py" in done.stdout
    steps = [line.strip() for line in done.stdout.partition("Next:")[2].splitlines() if line.strip()]
    assert steps == ["cd my-env", "aenv test", "aenv run"]
    assert (tmp_path / "my-env" / "src" / "custom_env.py").exists()


def test_every_option_has_its_effect(aenv: Any, tmp_path: Path) -> None:
    (tmp_path / "in here").mkdir()
    done = aenv("init", "my-agent", "-v", "2.0.0", "-t", "agent", "-w", "in here", "-o", "json")
    made = json.loads(done.stdout)
    assert made["version"] == "2.0.0"
    assert "src/agent.py" in made["files"]
    root = Path(made["path"])
    assert root == tmp_path / "in here" / "my-agent"
    assert json.loads((root / "config.json").read_text())["version"] == "2.0.0"


def test_an_invalid_name_is_rejected_with_a_valid_suggestion(aenv: Any, tmp_path: Path) -> None:
    done = aenv("init", "Bad_Name")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "'Bad_Name' is not a name" in done.stderr
    assert "aenv init bad-name" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_told_and_force_goes_on(aenv: Any) -> None:
    aenv("init", "my-env")
    again = aenv("init", "my-env")
    assert again.returncode == 2
    assert "it has .aenv, .gitignore" in again.stderr
    assert aenv("init", "my-env", "--force").returncode == 0


def test_config_only_writes_one_file(aenv: Any, tmp_path: Path) -> None:
    done = aenv("init", "my-env", "--config-only")
    assert [path.name for path in (tmp_path / "my-env").iterdir()] == ["config.json"]
    assert "Next:" not in done.stdout


def test_no_network_is_needed(aenv: Any) -> None:
    nowhere = {
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
        "HUB_BACKEND": "http://x.invalid",
    }
    assert aenv("init", "my-env", env=nowhere).returncode == 0


def test_the_templates_offered_are_the_templates_there_are() -> None:
    from aenv.cli.commands.author.init import TEMPLATES
    from aenv.project import scaffold

    assert tuple(scaffold.TEMPLATES) == TEMPLATES
    folders = {entry.name for entry in (Path(scaffold.__file__).parent / "templates").iterdir()}
    assert folders == set(TEMPLATES)
