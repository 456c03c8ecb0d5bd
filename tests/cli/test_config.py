"""``aenv config``."""

import json
import os
import stat

import pytest


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def config(aenv, home, tmp_path):
    def run(*args, env=None, code=0, cwd=None):
        done = aenv("config", *args, env={"HOME": str(home), **(env or {})}, cwd=cwd)
        assert done.returncode == code, done.stderr
        return done

    return run


def file(home):
    return home / ".aenv/cli_config.json"


def test_nothing_is_written_until_something_is_set(config, home):
    assert config("path").stdout.strip() == str(file(home))
    assert config("get", "hub_backend").stdout == "\n"
    assert json.loads(config("show", "--format", "json").stdout)["build_config"]["registry"]["host"] == "docker.io"
    assert not file(home).exists()


def test_the_file_is_for_its_owner_alone(config, home):
    config("set", "hub_config.api_key", "s3cret")
    assert stat.S_IMODE(file(home).stat().st_mode) == 0o600
    file(home).chmod(0o644)
    config("set", "owner", "me")
    assert stat.S_IMODE(file(home).stat().st_mode) == 0o600
    assert json.loads(file(home).read_text()) == {"hub_config": {"api_key": "s3cret"}, "owner": "me"}


@pytest.mark.parametrize(
    ("key", "full"),
    [("hub_backend", "hub_config.hub_backend"), ("hub", "hub_config.hub_backend"), ("token", "hub_config.api_key"),
     ("build.registry.host", "build_config.registry.host"), ("registry.username", "build_config.registry.username"),
     ("namespace", "build_config.registry.namespace"), ("system_url", "system_url"),
     ("prefix", "storage_config.custom.prefix")],
)  # fmt: skip
def test_short_names(config, key, full):
    config("set", key, "http://x.example")
    assert config("get", full).stdout == "http://x.example\n"
    assert config("get", key).stdout == "http://x.example\n"


def test_a_text_stays_a_text_and_a_number_becomes_one(config, home):
    config("set", "api_key", "0123")
    config("set", "hub.timeout", "12.5")
    config("set", "logging.console", "false")
    kept = json.loads(file(home).read_text())
    assert kept["hub_config"] == {"api_key": "0123", "timeout": 12.5}
    assert kept["logging_config"] == {"console": False}


@pytest.mark.parametrize(
    ("key", "value", "code", "said"),
    [("nope", "1", 2, "unknown setting"), ("hub_backnd", "x", 2, "Did you mean hub_backend?"),
     ("type", "x", 2, "is ambiguous"), ("timeout", "soon", 3, "number"), ("timeout", "-1", 3, "greater than 0"),
     ("global_mode", "cloud", 3, "local"), ("hub", "not-a-url", 3, "'not-a-url' is not an address"),
     ("system_url", "nonsense", 3, "expected something like http://host:8080")],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_changes_nothing(config, home, key, value, code, said):
    assert said in config("set", key, value, code=code).stderr
    assert not file(home).exists()


@pytest.mark.parametrize(
    "address", ["http://hub", "https://hub.example/aenv", "unix:/run/hub.sock", "localhost", "hub:8080", "10.0.0.1", ""]
)
def test_an_address_may_be_written_in_several_ways(config, address):
    config("set", "hub", address)
    assert config("get", "hub_backend").stdout == f"{address}\n"


@pytest.mark.parametrize("text", ["{ not json", "[]", '{"hub_config": {"timeout": "x", "api_key": "s3cret"}}', ""])
def test_an_invalid_file_is_reported_and_never_overwritten(config, home, text, tmp_path):
    file(home).parent.mkdir()
    file(home).write_text(text)
    (tmp_path / "other.json").write_text("{}")
    for command in (
        ["set", "owner", "me"], ["get", "owner"], ["show"], ["init"], ["reset"], ["load", str(tmp_path / "other.json")],
        ["export"],
    ):  # fmt: skip
        done = config(*command, code=3)
        assert str(file(home)) in done.stderr
        assert "s3cret" not in done.stderr
        assert file(home).read_text() == text
    config("reset", "--force")
    assert (home / ".aenv/cli_config.json.bak").read_text() == text
    assert json.loads(file(home).read_text())["global_mode"] == "local"


def test_the_advice_at_a_question_works_as_printed(config, home):
    config("set", "owner", "me")
    asked = config("reset", code=130)  # stdin is empty
    assert "Pass --yes to run without questions" in asked.stderr
    assert config("get", "owner").stdout == "me\n"
    config("reset", "--yes")
    assert config("get", "owner").stdout == "\n"


def test_variables_win(config):
    config("set", "hub", "http://file.example")
    assert config("get", "hub", env={"HUB_BACKEND": "http://old.example"}).stdout == "http://old.example\n"
    both = {"HUB_BACKEND": "http://old.example", "AENV_HUB_URL": "http://new.example"}
    assert config("get", "hub", env=both).stdout == "http://new.example\n"
    assert config("get", "token", env={"AENV_API_KEY": "t"}).stdout == "t\n"
    assert "AENV_HUB_URL is set" in config("set", "hub", "http://x", env={"AENV_HUB_URL": "http://y"}).stderr


def test_secrets_are_not_shown(config, aenv, home):
    done = config("set", "password", "s3cret")
    assert "s3cret" not in done.stdout + done.stderr
    for command in (["show"], ["show", "-f", "json"], ["show", "--key", "build_config"], ["show", "--key", "password"]):
        said = config(*command).stdout
        assert "s3cret" not in said
        assert "********" in said


def test_export_and_load_carry_everything_to_another_place(config, home, tmp_path):
    config("set", "token", "s3cret")
    config("set", "owner", "me")
    target = tmp_path / "settings.json"
    config("export", "--output", str(target))
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    other = tmp_path / "other"
    other.mkdir()
    config("load", str(target), env={"HOME": str(other)})
    assert config("get", "token", env={"HOME": str(other)}).stdout == "s3cret\n"
    assert json.loads(config("export").stdout)["owner"] == "me"


def test_init_makes_defaults_and_keeps_what_is_there(config, home, tmp_path):
    config("init")
    assert json.loads(file(home).read_text())["storage_config"]["custom"]["prefix"] == "~/.aenv/envs"
    config("set", "owner", "me")
    assert "exists already" in config("init").stderr
    assert config("get", "owner").stdout == "me\n"
    config("init", "--path", str(tmp_path / "x/y.json"))
    assert (tmp_path / "x/y.json").is_file()


def test_a_file_of_the_project_counts_when_the_user_has_none(config, home, tmp_path):
    (tmp_path / "p/.aenv").mkdir(parents=True)
    (tmp_path / "p/.aenv/cli_config.json").write_text('{"owner": "project"}')
    assert config("get", "owner", cwd=tmp_path / "p").stdout == "project\n"
    file(home).parent.mkdir()
    file(home).write_text('{"owner": "mine"}')
    assert config("get", "owner", cwd=tmp_path / "p").stdout == "mine\n"
    named = tmp_path / "named.json"
    named.write_text('{"owner": "named"}')
    assert config("get", "owner", env={"AENV_CONFIG": str(named)}).stdout == "named\n"


def test_keys_of_others_stay(config, home):
    file(home).parent.mkdir()
    file(home).write_text('{"theirs": {"a": 1}, "hub_config": {"more": [1]}}')
    config("set", "hub", "http://x")
    assert json.loads(file(home).read_text()) == {
        "theirs": {"a": 1},
        "hub_config": {"more": [1], "hub_backend": "http://x"},
    }


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_file_that_may_not_be_read_is_reported(config, home):
    file(home).parent.mkdir()
    file(home).write_text("{}")
    file(home).chmod(0)
    assert "cannot be read" in config("get", "owner", code=3).stderr


EARLIER = {
    "global_mode": "local",
    "build_config": {
        "type": "local",
        "build_args": {"socket": "unix:///var/run/docker.sock"},
        "registry": {"host": "docker.io", "username": "", "password": "", "namespace": "aenv"},
    },
    "storage_config": {"type": "local", "custom": {"prefix": "~/.aenv/envs"}},
    "logging_config": {
        "level": "INFO",
        "format": "%(asctime)s - %(name)s - %(levelname)s - %(message)s",
        "file": None,
        "console": True,
    },
    "hub_config": {"hub_backend": "https://localhost:8080", "api_key": "", "timeout": 30},
    "system_url": None,
    "owner": None,
}
"""The file that version 0.1.7 writes on first use."""


def test_the_file_of_the_earlier_cli_is_taken_over_once_and_its_default_hub_is_not_asked(config, aenv, home):
    file(home).parent.mkdir()
    original = json.dumps(EARLIER)
    file(home).write_text(original)
    first = aenv("list", env={"HOME": str(home)})
    assert first.returncode == 0, first.stderr
    assert "took over the settings of the earlier aenv" in first.stderr
    assert (home / ".aenv/cli_config.json.0.1.bak").read_text() == original
    assert aenv("list", env={"HOME": str(home)}).stderr == ""
    assert config("get", "hub_backend").stdout == "\n"
    config("set", "hub_backend", "https://localhost:8080")
    assert config("get", "hub_backend").stdout == "https://localhost:8080\n"


def test_what_the_user_of_the_earlier_cli_had_set_is_kept(config, home):
    file(home).parent.mkdir()
    hub = {"hub_backend": "http://hub.example:8083", "api_key": "k", "timeout": 5}
    file(home).write_text(json.dumps({**EARLIER, "hub_config": hub, "owner": "me"}))
    assert config("get", "hub_backend").stdout == "http://hub.example:8083\n"
    assert config("get", "api_key").stdout == "k\n"
    assert config("get", "owner").stdout == "me\n"


def test_the_sdk_reads_the_file_of_the_earlier_cli_and_leaves_it_alone(home, monkeypatch):
    from aenv import config as settings

    for name in ("AENV_CONFIG", "AENV_HUB_URL", "HUB_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    file(home).parent.mkdir()
    file(home).write_text(json.dumps(EARLIER))
    assert settings.load().hub_config.hub_backend == ""
    assert json.loads(file(home).read_text()) == EARLIER


def test_a_null_in_the_file_means_that_a_setting_is_not_made(config, home):
    file(home).parent.mkdir()
    file(home).write_text('{"hub_config": {"timeout": null, "more": null}, "global_mode": null}')
    assert config("get", "timeout").stdout in ("30\n", "30.0\n")
