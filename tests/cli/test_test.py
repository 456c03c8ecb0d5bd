import json
import shutil
from pathlib import Path
from typing import Any

import pytest


def set_script(project: Path, script: str) -> None:
    config = project / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"testConfig": {"script": script}}))


def test_a_new_project_s_tests_run_and_pass(aenv: Any, project: Path) -> None:
    done = aenv("test", cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout


@pytest.mark.long
def test_the_project_can_be_elsewhere(aenv: Any, project: Path) -> None:
    assert aenv("test", "-w", str(project), cwd=project.parent).returncode == 0


@pytest.mark.long
def test_a_failing_test_is_a_failing_command(aenv: Any, project: Path) -> None:
    (project / "tests" / "test_more.py").write_text("def test_no():\n    assert False\n")
    assert aenv("test", cwd=project).returncode == 1


@pytest.mark.long
def test_arguments_go_to_pytest(aenv: Any, project: Path) -> None:
    assert "5 deselected" in aenv("test", "-k", "full_score", "-x", cwd=project).stdout
    one = "tests/test_custom_env.py::test_a_task_has_a_description"
    assert "1 passed" in aenv("test", one, cwd=project).stdout


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("true", 0), ("kill -9 $$", 137)])
def test_the_script_s_exit_code_is_ours(aenv: Any, project: Path, script: str, code: int) -> None:
    set_script(project, script)
    assert aenv("test", cwd=project).returncode == code


def test_the_script_runs_in_the_project_with_its_arguments_and_variables(aenv: Any, project: Path) -> None:
    set_script(project, 'echo "$envNAME $PWD"')
    done = aenv("test", "-w", str(project), "two words", "-x", cwd=project.parent)
    assert done.stdout == f"my-env {project} two words -x\n"


def test_no_tests_at_all_is_told(aenv: Any, project: Path) -> None:
    shutil.rmtree(project / "tests")
    done = aenv("test", cwd=project)
    assert done.returncode == 2
    assert "there are no tests in" in done.stderr
    assert "testConfig.script" in done.stderr


def test_tests_that_pytest_does_not_find_are_told(aenv: Any, project: Path) -> None:
    (project / "tests" / "test_custom_env.py").unlink()
    done = aenv("test", cwd=project)
    assert done.returncode == 5
    assert "pytest found nothing to run" in done.stderr


def test_a_missing_pytest_is_told(aenv: Any, project: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pytest'] = None\n")
    done = aenv("test", cwd=project, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 2
    assert "pip install pytest" in done.stderr


def test_a_broken_config_is_exit_code_3(aenv: Any, project: Path) -> None:
    (project / "config.json").write_text("{")
    assert aenv("test", cwd=project).returncode == 3


def test_verbose_shows_what_is_run(aenv: Any, project: Path) -> None:
    set_script(project, "true")
    assert aenv("-v", "test", cwd=project).stderr == f"{project}$ true\n"
