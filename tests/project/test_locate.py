import json
from pathlib import Path

import pytest

from aenv.errors import ConfigError, UsageError
from aenv.project import scaffold
from aenv.project.locate import locate


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return scaffold.create("my-env", parent_dir=tmp_path).root


@pytest.mark.parametrize("where", [".", "src", "src/custom_env.py"])
def test_a_project_is_found_from_its_src_and_its_files(project: Path, where: str) -> None:
    found = locate(project / where)
    assert found.root == project
    assert found.code == project / where
    assert found.loaded is not None
    assert found.loaded.manifest.name == "my-env"


def test_variables_include_the_name_and_version(project: Path) -> None:
    config = project / "config.json"
    document = json.loads(config.read_text())
    document["deployConfig"]["environmentVariables"] = {"LIMIT": 3}
    config.write_text(json.dumps(document))
    assert locate(project).variables == {"LIMIT": "3", "envNAME": "my-env", "envversion": "1.0.0"}


def test_code_without_a_config_is_located(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    found = locate(tmp_path / "src")
    assert found.loaded is None
    assert found.variables == {}


def test_a_config_two_levels_up_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert locate(tmp_path / "a" / "b").loaded is None


def test_a_missing_path_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        locate(tmp_path / "none")


def test_a_broken_config_is_reported(project: Path) -> None:
    (project / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        locate(project / "src")
