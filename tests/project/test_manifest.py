import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.errors import ConfigError
from aenv.project import manifest
from aenv.schema.duration import Duration

REPO = Path(__file__).parents[2]
SMALLEST: dict[str, Any] = {"name": "my-env", "version": "1.0.0"}


def parse(**keys: Any) -> manifest.Manifest:
    return manifest.parse(json.dumps(SMALLEST | keys))


def refused(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        manifest.parse(text)
    assert caught.value.exit_code == 3
    return caught.value.message.splitlines()


def refusals(**keys: Any) -> list[str]:
    return refused(json.dumps(SMALLEST | keys))


# --- loading -------------------------------------------------------------------------------------------------


def test_a_name_and_a_version_are_enough() -> None:
    smallest = parse()
    assert smallest.build_config.dockerfile == "./Dockerfile"
    assert smallest.test_config.script == ""
    assert smallest.ttl() is None
    assert smallest.image() is None


def test_the_documented_file_is_read_without_a_warning(tmp_path: Path) -> None:
    document = {
        "name": "aenv",
        "version": "1.0.0",
        "description": "an example",
        "tags": ["linux"],
        "status": "Ready",
        "codeUrl": "",
        "artifacts": [{"id": "", "type": "image", "content": "reg.example.com/swe/image:1"}],
        "buildConfig": {"dockerfile": "./Dockerfile", "context": ".", "image_name": "hello", "image_tag": "latest"},
        "testConfig": {"script": ""},
        "deployConfig": {
            "cpu": "2",
            "memory": "4Gi",
            "os": "linux",
            "ephemeralStorage": "5Gi",
            "imagePrefix": "registry.example.com/envs",
            "podTemplate": "Default",
            "ttl": "1h30m",
            "environmentVariables": {"MODEL_PATH": "/models/llm"},
            "service": {
                "replicas": 1,
                "port": 8081,
                "enableStorage": False,
                "storageName": "my-env",
                "storageSize": "10Gi",
                "mountPath": "/home/admin/data",
            },
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(document))
    loaded = manifest.load(tmp_path)
    assert loaded.warnings == ()
    assert loaded.manifest.image() == "reg.example.com/swe/image:1"
    assert loaded.manifest.ttl() == Duration(5400 * 10**9)


def test_keys_that_servers_write_into_deploy_config_are_known(tmp_path: Path) -> None:
    injected = {
        "environment_variables": {"A": "2"},
        "arguments": ["--x"],
        "ttl": "30m",
        "owner": "me",
        "labels": {"experiment": "e1"},
        "secondImageName": "image",
        "dataSource": "task-1",
        "replicas": 1,
        "serviceName": "s",
        "pvcName": "p",
        "mountPath": "/data",
        "storageSize": "1Gi",
        "port": 8080,
        "cpuRequest": "1",
    }
    (tmp_path / "config.json").write_text(json.dumps(SMALLEST | {"deployConfig": injected}))
    assert manifest.load(tmp_path).warnings == ()


def test_an_unknown_key_gives_a_warning_with_the_probable_key(tmp_path: Path) -> None:
    document = SMALLEST | {
        "memory": "2Gi",
        "zebra": 1,
        "deployConfig": {"Memory": "2Gi", "templateType": "x", "fokr": 1, "service": {"replica": 3}},
        "artifacts": [{"type": "image", "content": "i", "digest": "d"}],
    }
    (tmp_path / "config.json").write_text(json.dumps(document))
    warnings = manifest.load(tmp_path).warnings
    suggestions = {line.split(": ")[1]: line.partition("did you mean ")[2] for line in warnings}
    assert suggestions == {
        "memory": "deployConfig.memory?",
        "zebra": "",
        "deployConfig.Memory": "memory?",
        "deployConfig.templateType": "deployConfig.podTemplate?",
        "deployConfig.fokr": "fork?",
        "deployConfig.service.replica": "replicas?",
        "artifacts[0].digest": "",
    }


def test_a_schema_reference_and_a_byte_order_mark_are_accepted(tmp_path: Path) -> None:
    text = json.dumps({"$schema": "./x.json", **SMALLEST})
    (tmp_path / "config.json").write_text(text, encoding="utf-8-sig")
    assert manifest.load(tmp_path).warnings == ()


# --- rejecting -----------------------------------------------------------------------------------------------


def test_all_problems_are_reported_at_once_with_path_and_advice() -> None:
    lines = refusals(
        name="Bad_Name",
        version="latest",
        tags="linux",
        status="Done",
        artifacts=[{"type": 3}],
        buildConfig=None,
        deployConfig={
            "cpu": True,
            "memory": "2 gigs",
            "os": "Linux",
            "ttl": 30,
            "environmentVariables": {"A=": 1, "B": None},
            "service": {"replicas": "3", "port": 0, "enableStorage": 1, "mountPath": "data"},
        },
    )
    assert lines[:7] == [
        "config.json: name: 'Bad_Name' is not a name; use small letters, digits and dashes, like bad-name",
        "config.json: version: 'latest' is not a version; write it like 1.0.0",
        "config.json: tags: 'linux' is not a list; write it in [ ]",
        "config.json: status: invalid status 'Done'; expected one of Init, Pending, Creating, Created, Testing, "
        "Verified, Ready, Released, Failed",
        "config.json: artifacts[0].type: 3 is not text; put it in quotes",
        "config.json: artifacts[0].content: this key is required",
        "config.json: buildConfig: null is not an object; write it in { }",
    ]
    assert {line.split(": ")[1] for line in lines[7:]} == {
        "deployConfig.cpu",
        "deployConfig.memory",
        "deployConfig.os",
        "deployConfig.ttl",
        "deployConfig.environmentVariables.A=",
        "deployConfig.environmentVariables.B",
        "deployConfig.service.replicas",
        "deployConfig.service.port",
        "deployConfig.service.enableStorage",
        "deployConfig.service.mountPath",
    }
    assert "config.json: deployConfig.memory: '2 gigs' is not a size; write it like 2Gi" in lines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n  "name": 1 2\n}', "line 2, column 13: not valid JSON"),
        ('{"name": "a" // why\n}', "JSON does not allow comments"),
        ("", "the file is empty"),
        ("[]", "must be an object"),
        ('{"name": "a", "name": "b"}', "'name' is written twice"),
        ('{"x": NaN}', "NaN is not JSON"),
        ('{"x": 1e999}', "too large"),
        ('{"x": ' + "9" * 5000 + "}", "5000 digits"),
        ("[" * 200_000, "nested too deeply"),
    ],
)
def test_invalid_json_is_rejected_with_its_place(text: str, message: str) -> None:
    (line,) = refused(text)
    assert line.startswith("config.json: ")
    assert message in line


def test_a_trailing_comma_is_pointed_out() -> None:
    (line,) = refused('{"name": "a",}')
    assert "comma" in line


def test_a_missing_config_is_reported_with_how_to_create_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json") as caught:
        manifest.load(tmp_path)
    assert "aenv init" in caught.value.details["hint"]


def test_a_file_that_is_not_text_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b'{"name": "\xff"}')
    with pytest.raises(ConfigError, match="not UTF-8"):
        manifest.load(tmp_path)


def test_a_request_above_the_limit_is_rejected() -> None:
    (line,) = refusals(deployConfig={"cpuRequest": "2", "cpuLimit": "1"})
    assert "cpuRequest (2) exceeds cpuLimit (1)" in line


@pytest.mark.parametrize(
    ("service", "message"),
    [
        ({"enableStorage": True}, "needs a storageSize"),
        ({"enableStorage": True, "storageSize": "1Gi", "replicas": 3}, "1 replica"),
    ],
)
def test_storage_needs_a_size_and_a_single_replica(service: dict[str, Any], message: str) -> None:
    (line,) = refusals(deployConfig={"service": service})
    assert message in line


@pytest.mark.parametrize("name", ["a", "0", "my-env", "a" * 253])
def test_valid_names_are_accepted(name: str) -> None:
    assert parse(name=name).name == name


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a.b", "a/b", "é", "a\n", "a" * 254])
def test_invalid_names_are_rejected(name: str) -> None:
    assert len(refusals(name=name)) == 1


@pytest.mark.parametrize("version", ["1", "1.0.0", "0.1.0rc1", "1.0.0-v3", "1.0.0+build.5"])
def test_valid_versions_are_accepted(version: str) -> None:
    assert parse(version=version).version == version


@pytest.mark.parametrize("version", ["", "v1", "latest", "1..0", "1.0/2", "1 0", "1" * 200, "1" + "a" * 100 + "!"])
def test_invalid_versions_are_rejected(version: str) -> None:
    assert len(refusals(version=version)) == 1


# --- merged values -------------------------------------------------------------------------------------------


def test_resources_have_defaults() -> None:
    resources = parse().resources()
    assert resources.cpu == manifest.Amount("1", "1")
    assert resources.memory == manifest.Amount("2Gi", "2Gi")
    assert resources.ephemeral_storage == manifest.Amount("5Gi", "5Gi")


def test_deprecated_keys_override_the_common_key_and_old_spellings_are_accepted() -> None:
    deploy = {"cpu": "2C", "cpuRequest": "500m", "memory": "2G", "memoryLimit": "4Gi", "ephemeralStorageLimit": "9Gi"}
    resources = parse(deployConfig=deploy).resources()
    assert resources.cpu == manifest.Amount("500m", "2")
    assert resources.memory == manifest.Amount("2G", "4Gi")
    assert resources.ephemeral_storage == manifest.Amount("9Gi", "9Gi")


def test_the_service_block_overrides_the_flat_keys() -> None:
    service = parse(deployConfig={"port": 9000, "replicas": 5, "service": {"replicas": 2}}).service()
    assert (service.port, service.replicas) == (9000, 2)
    assert service.storage_name == "my-env"
    assert service.mount_path == "/home/admin/data"


def test_variables_become_strings_and_those_of_an_instance_override_others() -> None:
    deploy = {"environmentVariables": {"A": 1, "B": True, "C": "x"}, "environment_variables": {"C": "y"}}
    assert parse(deployConfig=deploy).variables() == {"A": "1", "B": "true", "C": "y"}


@pytest.mark.parametrize(
    ("given_name", "stored"),
    [("DualContainer", "dualContainer"), ("Default", "singleContainer"), (None, "singleContainer"), ("mine", "mine")],
)
def test_pod_template_names_are_case_insensitive(given_name: str | None, stored: str) -> None:
    assert parse(deployConfig={"podTemplate": given_name}).pod_template() == stored


def test_an_empty_ttl_means_the_default() -> None:
    assert parse(deployConfig={"ttl": ""}).ttl() is None


# --- saving --------------------------------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8
)
durations = st.integers(1, 10**15).map(lambda nanoseconds: str(Duration(nanoseconds)))
sizes = st.tuples(st.integers(1, 999), st.sampled_from(["Mi", "Gi", "G"])).map(lambda pair: f"{pair[0]}{pair[1]}")
variable_values = st.text().filter(lambda text: "\0" not in text)
deploy_configs = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from(["1", "500m", "1C", 2, 0.5]),
        "memory": sizes,
        "ttl": durations,
        "environmentVariables": st.dictionaries(st.sampled_from("ABC"), variable_values),
        "service": st.fixed_dictionaries({}, optional={"port": st.integers(1, 65535), "extra": values}),
    },
)
documents = st.fixed_dictionaries(
    {"name": st.from_regex(r"[a-z0-9]{1,9}", fullmatch=True), "version": st.just("1.0.0")},
    optional={
        "tags": st.lists(st.text()),
        "deployConfig": st.tuples(deploy_configs, st.dictionaries(st.text(), values, max_size=2)).map(
            lambda pair: {**{f"x-{key}": value for key, value in pair[1].items()}, **pair[0]}
        ),
        "artifacts": st.lists(st.fixed_dictionaries({"content": st.text(), "type": st.text()}), max_size=2),
        "mine": values,
        "model_config": values,
        "_order": values,
    },
)


@given(documents, st.randoms(use_true_random=False))
def test_saving_a_loaded_manifest_keeps_all_keys_values_and_their_order(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any], random: Any
) -> None:
    keys = list(document)
    random.shuffle(keys)
    text = json.dumps({key: document[key] for key in keys})
    path = tmp_path_factory.mktemp("project") / "config.json"
    path.write_text(text)
    manifest.save(manifest.load(path).manifest, path)
    assert json.dumps(json.loads(path.read_text())) == text


known_keys = st.sampled_from(sorted(field.alias or name for name, field in manifest.Manifest.model_fields.items()))
deploy_keys = st.sampled_from(sorted(field.alias or name for name, field in manifest.DeployConfig.model_fields.items()))


@given(st.dictionaries(known_keys, values), st.dictionaries(deploy_keys, values))
def test_any_document_is_kept_unchanged_or_rejected_with_a_message(top: dict[str, Any], deploy: dict[str, Any]) -> None:
    document = SMALLEST | top | {"deployConfig": deploy}
    try:
        read = manifest.parse(json.dumps(document))
    except ConfigError as error:
        message = error.message
    else:
        message = "config.json: fine"
        assert read.document() == document
        for meaning in (read.resources, read.service, read.variables, read.ttl, read.pod_template, read.image):
            meaning()  # an accepted document can be interpreted
    assert message.startswith("config.json: ")


def test_a_changed_value_stays_in_place_and_a_new_key_goes_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"zeta": 1, "version": "1.0.0", "name": "my-env"}')
    path.chmod(0o600)
    loaded = manifest.load(path).manifest
    image = manifest.Artifact(type="image", content="i:1")
    manifest.save(loaded.model_copy(update={"version": "1.0.1", "artifacts": [image]}), path)
    written = json.loads(path.read_text())
    assert list(written.items()) == [
        ("zeta", 1),
        ("version", "1.0.1"),
        ("name", "my-env"),
        ("artifacts", [{"type": "image", "content": "i:1"}]),
    ]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["config.json"]


# --- for editors ---------------------------------------------------------------------------------------------


def test_the_published_schema_matches_the_model() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "aenv.project.manifest"], capture_output=True, text=True, check=True
    ).stdout
    published = (REPO / "docs" / "reference" / "config.schema.json").read_text()
    assert published == printed, "run: python -m aenv.project.manifest > docs/reference/config.schema.json"


def test_every_key_of_the_schema_has_a_description() -> None:
    schema = manifest.schema()
    for block in (schema, *schema["$defs"].values()):
        for key, field in block["properties"].items():
            referred = schema["$defs"].get(field.get("$ref", "").rpartition("/")[2], {})
            assert field.get("description") or referred.get("description"), f"{block['title']}.{key}"


def test_the_schema_and_the_model_agree_about_examples() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    check = jsonschema.Draft202012Validator(manifest.schema()).is_valid
    good = SMALLEST | {"deployConfig": {"cpu": "1C", "memory": "2Gi", "ttl": "1h30m"}, "mine": 1}
    assert check(good)
    for bad in ({"memory": "2 gigs"}, {"cpu": "two"}, {"ttl": "1d"}, {"os": "windows"}, {"service": {"port": 0}}):
        assert not check(SMALLEST | {"deployConfig": bad})
        assert refusals(deployConfig=bad)


def test_a_wrong_failure_reward_or_flag_is_one_plain_problem(tmp_path: Path) -> None:
    document = SMALLEST | {"failureReward": "lots", "deployConfig": {"fork": 0}}
    (tmp_path / "config.json").write_text(json.dumps(document))
    with pytest.raises(ConfigError) as raised:
        manifest.load(tmp_path)
    assert sorted(raised.value.message.splitlines()) == [
        "config.json: deployConfig.fork: 0 is not true or false",
        "config.json: failureReward: 'lots' is not a number or an object",
    ]
