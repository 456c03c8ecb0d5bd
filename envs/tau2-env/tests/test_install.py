"""The installer takes the very data that everybody else is graded with, and nothing else."""

import importlib.util
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("install", Path(__file__).parents[1] / "install.py")
install = importlib.util.module_from_spec(spec)
spec.loader.exec_module(install)


def test_a_checkout_without_data_is_refused_and_both_ways_are_said(tmp_path):
    with pytest.raises(SystemExit, match="AENV_TAU2_SOURCE") as refused:
        install.check(tmp_path)
    assert install.URL in str(refused.value)


def test_data_of_another_commit_is_refused(tmp_path):
    file = tmp_path / "data/tau2/domains" / next(iter(install.HASHES))
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    with pytest.raises(SystemExit, match=f"not that of commit {install.COMMIT}"):
        install.check(tmp_path)


def test_the_package_of_that_name_on_the_index_is_refused(tmp_path, monkeypatch):
    (tmp_path / "tau2-2.4.0.dist-info").mkdir()
    (tmp_path / "tau2-2.4.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: tau2\nVersion: 2.4.0\nSummary: magnetic relaxation rates\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit, match=r"magnetic relaxation rates\): pip uninstall tau2"):
        install.refuse_the_other_one()


def test_a_wheel_has_code_and_data_but_nothing_for_voice(tmp_path):
    for name in (
        "src/tau2/__init__.py",
        "data/tau2/domains/mock/tasks.json",
        "data/tau2/domains/mock/tasks_voice.json",
        "LICENSE",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.0.1"\ndependencies = ["litellm"]\n')
    import zipfile

    names = zipfile.ZipFile(install.pack(tmp_path, tmp_path)).namelist()
    assert {"tau2/__init__.py", "tau2_bench_data/tau2/domains/mock/tasks.json"} <= set(names)
    assert not [name for name in names if "voice" in name]
