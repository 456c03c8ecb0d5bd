"""Selection of a project's files by ignore rules."""

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


def test_ignore_files_apply_below_their_folder(tmp_path):
    make(tmp_path, "a.log", "keep.log", "src/a.py", "src/data/big.bin", "src/data/small.txt", "build/x", "src/build/y")
    (tmp_path / ".gitignore").write_text("*.log\n!keep.log\n/build/\n")
    (tmp_path / "src/data/.gitignore").write_text("*.bin\n")
    assert found(tmp_path) == [
        ".gitignore", "keep.log", "src/a.py", "src/build/y", "src/data/.gitignore", "src/data/small.txt",
    ]  # fmt: skip


def test_aenvignore_overrides_gitignore(tmp_path):
    make(tmp_path, "weights.bin", "notes.md", "src/a.py")
    (tmp_path / ".gitignore").write_text("*.bin\n")
    (tmp_path / ".aenvignore").write_text("!weights.bin\nnotes.md\n")
    assert found(tmp_path) == [".aenvignore", ".gitignore", "src/a.py", "weights.bin"]


def test_caches_secrets_settings_and_version_control_are_left_out(tmp_path):
    make(
        tmp_path, ".git/config", "src/__pycache__/a.pyc", ".venv/bin/python", ".env", ".env.local", "src/a.py",
        ".aenv/cli_config.json", ".aenv/config.schema.json", "dist/x-1.0.0.aenv.tar", "node_modules/x/y.js",
        "sub/.git/x",
    )  # fmt: skip
    assert found(tmp_path) == [".aenv/config.schema.json", "src/a.py"]


def test_default_patterns_can_be_negated_except_for_git(tmp_path):
    make(tmp_path, ".env", ".git/config")
    (tmp_path / ".aenvignore").write_text("!.env\n!.git/\n")
    assert found(tmp_path) == [".aenvignore", ".env"]


def test_an_invalid_line_of_an_ignore_file_is_reported(tmp_path):
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
def test_ignore_rules_match_git(tmp_path):
    """Compare our selection with the files that git would add, for a complex set of rules."""
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
def test_folders_nested_too_deep_for_a_bundle_are_rejected(tmp_path):
    (tmp_path / "src" / "/".join("d" * 200)).mkdir(parents=True)
    with pytest.raises(ConfigError, match="folders deep"):
        sources(tmp_path)
    (tmp_path / ".aenvignore").write_text("/src/d/\n")
    assert found(tmp_path) == [".aenvignore"]
