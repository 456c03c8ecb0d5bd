"""Which files belong to a project."""

import os
import shutil
import subprocess

import pytest

from aenv.errors import ConfigError
from aenv.project.project_files import sources


def make(root, *paths):
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)


def found(root):
    return [source.path for source in sources(root)]


def test_rules_of_every_folder_apply_below_it(tmp_path):
    make(tmp_path, "a.log", "keep.log", "src/a.py", "src/data/big.bin", "src/data/small.txt", "build/x", "src/build/y")
    (tmp_path / ".gitignore").write_text("*.log\n!keep.log\n/build/\n")
    (tmp_path / "src/data/.gitignore").write_text("*.bin\n")
    assert found(tmp_path) == [
        ".gitignore", "keep.log", "src/a.py", "src/build/y", "src/data/.gitignore", "src/data/small.txt",
    ]  # fmt: skip


def test_aenvignore_has_the_last_word(tmp_path):
    make(tmp_path, "weights.bin", "notes.md", "src/a.py")
    (tmp_path / ".gitignore").write_text("*.bin\n")
    (tmp_path / ".aenvignore").write_text("!weights.bin\nnotes.md\n")
    assert found(tmp_path) == [".aenvignore", ".gitignore", "src/a.py", "weights.bin"]


def test_caches_secrets_settings_and_version_control_stay_behind(tmp_path):
    make(
        tmp_path, ".git/config", "src/__pycache__/a.pyc", ".venv/bin/python", ".env", ".env.local", "src/a.py",
        ".aenv/cli_config.json", ".aenv/config.schema.json", "dist/x-1.0.0.aenv.tar", "node_modules/x/y.js",
        "sub/.git/x",
    )  # fmt: skip
    assert found(tmp_path) == [".aenv/config.schema.json", "src/a.py"]


def test_the_usual_rules_can_be_taken_back_but_git_cannot(tmp_path):
    make(tmp_path, ".env", ".git/config")
    (tmp_path / ".aenvignore").write_text("!.env\n!.git/\n")
    assert found(tmp_path) == [".aenvignore", ".env"]


def test_a_bad_line_in_an_ignore_file_is_told(tmp_path):
    (tmp_path / ".gitignore").write_text("!\n")
    with pytest.raises(ConfigError, match=r"\.gitignore"):
        found(tmp_path)


def test_a_pipe_cannot_be_packed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="pipe is neither"):
        found(tmp_path)
    (tmp_path / ".aenvignore").write_text("/pipe\n")
    assert found(tmp_path) == [".aenvignore"]


def test_links_are_not_followed(tmp_path):
    make(tmp_path, "real/a")
    (tmp_path / "link").symlink_to("real")
    assert found(tmp_path) == ["link", "real/a"]


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_rules_are_gits(tmp_path):
    """Whatever git would add is what we take, over a tangle of rules."""
    make(
        tmp_path, "a.txt", "b.txt", "doc/a.txt", "doc/b/c.txt", "doc/b/d.log", "out/x", "src/out/x",
        "src/deep/er/f.log",
        "sp ace.txt", "#hash", "!bang", "foo/bar/baz", "foo/keep/baz", "ünïcode.txt", "w/x1", "w/x2", "w/y1",
    )  # fmt: skip
    (tmp_path / ".gitignore").write_text(
        "*.log\nout/\n!/src/out\ndoc/**/c.txt\n\\#hash\n\\!bang\n# a comment\n\nfoo/*\n!foo/keep/\nw/x[13]\n/b.txt \n"
    )
    (tmp_path / "src/deep/.gitignore").parent.mkdir(exist_ok=True)
    (tmp_path / "src/deep/.gitignore").write_text("!er/*.log\n")
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "HOME": str(tmp_path)}
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, env=env, check=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--exclude-standard"],
        cwd=tmp_path,
        env=env,
        check=True,
        capture_output=True,
    )
    assert found(tmp_path) == sorted(filter(None, listed.stdout.decode().split("\0")))


@pytest.mark.attack("bundles")
def test_folders_nested_deeper_than_a_bundle_takes_are_refused_by_name(tmp_path):
    (tmp_path / "src" / "/".join("d" * 200)).mkdir(parents=True)
    with pytest.raises(ConfigError, match="folders deep"):
        sources(tmp_path)
    (tmp_path / ".aenvignore").write_text("/src/d/\n")
    assert found(tmp_path) == [".aenvignore"]
