import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aenv.errors import UsageError
from aenv.project import manifest, scaffold

EXPECTED = {
    ".aenv/config.schema.json",
    ".gitignore",
    "Dockerfile",
    "README.md",
    "config.json",
    "pytest.ini",
    "requirements.txt",
    "src/__init__.py",
}


def files_below(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("template", "own"),
    [
        ("default", {"private/answers.json", "src/custom_env.py", "tests/test_custom_env.py"}),
        ("agent", {"src/agent.py", "tests/test_agent.py"}),
        ("web", {"src/board.py", "tests/test_board.py", "console/index.html", "console/board.js", "console/board.css"}),
        (
            "world",
            {"private/scenario.json", "src/schema.sql", "src/database.py", "src/tables.py", "src/world.py"}
            | {"tests/test_world.py"},
        ),
    ],
)
def test_a_project_has_all_its_files_and_nothing_else(tmp_path: Path, template: str, own: set[str]) -> None:
    created = scaffold.create("my-env", template=template, parent_dir=tmp_path)
    assert files_below(tmp_path / "my-env") == EXPECTED | own == {str(path) for path in created.files}
    assert [entry.name for entry in tmp_path.iterdir()] == ["my-env"]


@pytest.mark.parametrize("template", scaffold.TEMPLATES)
def test_the_config_of_a_new_project_is_valid_and_has_its_name(tmp_path: Path, template: str) -> None:
    created = scaffold.create("my-env", version="2.1.0", template=template, parent_dir=tmp_path)
    loaded = manifest.load(created.root)
    assert loaded.warnings == ()
    assert (loaded.manifest.name, loaded.manifest.version) == ("my-env", "2.1.0")
    assert loaded.manifest.service().storage_name == "my-env"
    assert json.loads((created.root / str(loaded.manifest.schema_url)).read_text()) == manifest.schema()


@pytest.mark.parametrize("template", scaffold.TEMPLATES)
def test_templates_have_no_unfilled_placeholders(tmp_path: Path, template: str) -> None:
    created = scaffold.create("my-env", template=template, parent_dir=tmp_path)
    for path in created.files:
        assert "{{" not in (created.root / path).read_text()


@pytest.mark.long
@pytest.mark.parametrize("template", scaffold.TEMPLATES)
def test_the_tests_of_a_new_project_pass(tmp_path: Path, template: str) -> None:
    created = scaffold.create("my-env", template=template, parent_dir=tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"],
        cwd=created.root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("template", scaffold.TEMPLATES)
def test_the_image_starts_the_server_as_an_ordinary_user(tmp_path: Path, template: str) -> None:
    created = scaffold.create("my-env", template=template, parent_dir=tmp_path)
    lines = (created.root / "Dockerfile").read_text().splitlines()
    assert "USER 10001" in lines
    assert json.loads(lines[-1].removeprefix("CMD ")) == [
        "python", "-m", "aenv.main", "/app/src", "--host", "0.0.0.0",
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "try_this"), [("Bad_Name", "bad-name"), ("MyEnv", "my-env"), ("..", "my-env")])
def test_an_invalid_name_is_rejected_with_a_valid_suggestion(tmp_path: Path, name: str, try_this: str) -> None:
    with pytest.raises(UsageError) as caught:
        scaffold.create(name, parent_dir=tmp_path)
    assert caught.value.details["hint"] == f"Try: aenv init {try_this}"
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_version_and_an_unknown_template_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"write it like 1\.0"):
        scaffold.create("my-env", version="v1.0", parent_dir=tmp_path)
    with pytest.raises(UsageError, match="expected one of default, agent"):
        scaffold.create("my-env", template="../x", parent_dir=tmp_path)


def test_a_missing_parent_directory_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        scaffold.create("my-env", parent_dir=tmp_path / "none")


def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    (tmp_path / "my-env").mkdir()
    assert (scaffold.create("my-env", parent_dir=tmp_path).root / "config.json").exists()


def test_a_directory_that_is_not_empty_is_rejected_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "my-env").mkdir()
    (tmp_path / "my-env" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"it has notes\.txt") as caught:
        scaffold.create("my-env", parent_dir=tmp_path)
    assert "--force" in caught.value.details["hint"]
    assert files_below(tmp_path) == {"my-env/notes.txt"}


def test_a_file_in_place_of_the_directory_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "my-env").write_text("mine")
    with pytest.raises(UsageError, match="not a directory"):
        scaffold.create("my-env", parent_dir=tmp_path, force=True)


def test_force_replaces_template_files_and_keeps_others(tmp_path: Path) -> None:
    root = scaffold.create("my-env", parent_dir=tmp_path).root
    (root / "Dockerfile").write_text("changed")
    (root / "src" / "more.py").write_text("mine")
    scaffold.create("my-env", version="2.0.0", parent_dir=tmp_path, force=True)
    assert (root / "Dockerfile").read_text() != "changed"
    assert (root / "src" / "more.py").read_text() == "mine"
    assert manifest.load(root).manifest.version == "2.0.0"
    assert [entry.name for entry in tmp_path.iterdir()] == ["my-env"]


def test_force_does_not_turn_a_file_into_a_directory(tmp_path: Path) -> None:
    (tmp_path / "my-env").mkdir()
    (tmp_path / "my-env" / "src").write_text("mine")
    with pytest.raises(UsageError, match="in the way"):
        scaffold.create("my-env", parent_dir=tmp_path, force=True)
    assert files_below(tmp_path) == {"my-env/src"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_nothing_is_created_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        scaffold.create("my-env", parent_dir=tmp_path)
    tmp_path.chmod(0o700)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("already_there", [False, True])
def test_a_failure_midway_restores_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, already_there: bool
) -> None:
    root = tmp_path / "my-env"
    if already_there:
        root.mkdir()
        (root / "Dockerfile").write_text("mine")
    before = files_below(tmp_path)
    rename, moved = Path.rename, []

    def fail_late(self: Path, target: Path) -> Path:
        moved.append(target)
        if "tests" in target.parts or (len(moved) == 1 and not already_there):
            raise OSError("the disk is full")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_late)
    with pytest.raises(OSError, match="the disk is full"):
        scaffold.create("my-env", parent_dir=tmp_path, force=True)
    assert files_below(tmp_path) == before
    assert not already_there or (len(moved) > 3 and (root / "Dockerfile").read_text() == "mine")
    assert {entry.name for entry in tmp_path.iterdir()} == ({"my-env"} if already_there else set())
    assert not (root / "src").exists()


def test_config_only_adds_one_file(tmp_path: Path) -> None:
    (tmp_path / "my-env").mkdir()
    (tmp_path / "my-env" / "notes.txt").write_text("mine")
    scaffold.create("my-env", parent_dir=tmp_path, config_only=True)
    assert files_below(tmp_path) == {"my-env/notes.txt", "my-env/config.json"}
    assert "$schema" not in json.loads((tmp_path / "my-env" / "config.json").read_text())
    assert manifest.load(tmp_path / "my-env").manifest.service().storage_name == "my-env"


def test_config_only_does_not_replace_a_config_unless_forced(tmp_path: Path) -> None:
    scaffold.create("my-env", parent_dir=tmp_path, config_only=True)
    with pytest.raises(UsageError, match=r"it has config\.json"):
        scaffold.create("my-env", version="2.0.0", parent_dir=tmp_path, config_only=True)
    scaffold.create("my-env", version="2.0.0", parent_dir=tmp_path, config_only=True, force=True)
    assert manifest.load(tmp_path / "my-env").manifest.version == "2.0.0"


def test_compiled_templates_are_not_copied(tmp_path: Path) -> None:
    template = shutil.copytree(Path(scaffold.__file__).parent / "templates" / "default", tmp_path / "template")
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(template)], check=True)
    assert list(template.rglob("*.pyc"))
    assert not [path for path, _ in scaffold.template_files(template) if "__pycache__" in path.parts]
