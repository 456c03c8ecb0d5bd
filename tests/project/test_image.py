"""Image builds, with a fake builder on PATH that records its command lines and fails on request."""

import json
import sys

import pytest

from aenv.config import RegistryConfig
from aenv.config import UserBuildConfig as BuildSettings
from aenv.errors import BuildFailed, ConfigError
from aenv.project import image_build, manifest, scaffold
from aenv.project.builder import build
from aenv.project.image_build import Builder, ImageOptions

FAKE = """#!{python}
import json, os, sys
with open({log!r}, "a") as log:
    auth = os.environ.get("REGISTRY_AUTH_FILE") or os.environ.get("DOCKER_CONFIG", "/nowhere") + "/config.json"
    output = open(auth).read() if os.path.exists(auth) else ""
    log.write(json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], output]) + "\\n")
print("STEP 1: working", flush=True)
if sys.argv[1] in {broken!r}:
    print("it went wrong", file=sys.stderr)
    sys.exit(7)
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Install fake builders and read their recorded calls."""
    folder, log = tmp_path / "bin", tmp_path / "calls"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))

    class Fakes:
        def add(self, name, broken=()):
            (folder / name).write_text(FAKE.format(python=sys.executable, log=str(log), broken=list(broken)))
            (folder / name).chmod(0o755)

        def calls(self):
            return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

        def commands(self):
            return [args for name, args, _ in self.calls() if args[0] not in ("version", "info")]

    return Fakes()


@pytest.fixture
def project(tmp_path):
    return scaffold.create("hello", parent_dir=tmp_path).root


def change(project, **build_config):
    path = project / "config.json"
    config = json.loads(path.read_text())
    config["buildConfig"].update(build_config)
    path.write_text(json.dumps(config))


def run(project, options=ImageOptions(), want_image=True, settings=None):  # noqa: B008
    output = []
    return build(project, options, settings or BuildSettings(), want_image=want_image, say=output.append), output


def artifacts(project):
    return json.loads((project / "config.json").read_text())["artifacts"]


def test_the_image_is_named_after_the_project(fake, project):
    fake.add("docker")
    built, output = run(project)
    reference = "docker.io/aenv/hello:1.0.0"
    assert fake.commands() == [["build", "--file", f"{project}/Dockerfile", "--tag", reference, str(project)]]
    assert built.images == (reference,)
    assert "STEP 1: working" in output
    assert artifacts(project) == [{"type": "image", "content": reference}]
    assert built.packed.bundle.config["artifacts"] == artifacts(project)


def test_the_build_config_is_honoured(fake, project):
    fake.add("podman")
    (project / "docker").mkdir()
    (project / "docker/My.Dockerfile").write_text("FROM scratch\n")
    change(
        project, dockerfile="docker/My.Dockerfile", context="src", image_name="team/other", image_tag="v9",
        args={"BASE_IMAGE": "python:3.13", "N": 3, "FLAG": True},
    )  # fmt: skip
    run(project)
    assert fake.commands() == [
        ["build", "--file", f"{project}/docker/My.Dockerfile", "--tag", "docker.io/aenv/team/other:v9", "--build-arg",
         "BASE_IMAGE=python:3.13", "--build-arg", "N=3", "--build-arg", "FLAG=true", f"{project}/src"],
    ]  # fmt: skip


def test_options_override_the_build_config(fake, project, monkeypatch):
    fake.add("buildah")
    change(project, image_name="ignored", image_tag="ignored", dockerfile="ignored")
    monkeypatch.chdir(project)
    options = ImageOptions(
        "mine", ("v1", "latest"), "registry.example.com:5000", "", ("linux/arm64",), "Dockerfile", True
    )
    built, _ = run(project, options)
    one, two = "registry.example.com:5000/mine:v1", "registry.example.com:5000/mine:latest"
    assert fake.commands() == [
        [
            "build",
            "--file",
            f"{project}/Dockerfile",
            "--tag",
            one,
            "--tag",
            two,
            "--platform",
            "linux/arm64",
            str(project),
        ],
        ["push", one],
        ["push", two],
    ]
    assert [each["content"] for each in artifacts(project)] == [one, two] == list(built.images)


def test_several_platforms_are_one_manifest_list_for_podman(fake, project):
    fake.add("podman")
    options = ImageOptions(tags=("a", "b"), platforms=("linux/amd64", "linux/arm64"), push=True)
    run(project, options)
    a, b = "docker.io/aenv/hello:a", "docker.io/aenv/hello:b"
    assert fake.commands() == [
        [
            "build",
            "--file",
            f"{project}/Dockerfile",
            "--manifest",
            a,
            "--platform",
            "linux/amd64,linux/arm64",
            str(project),
        ],
        ["tag", a, b],
        ["manifest", "push", "--all", a, f"docker://{a}"],
        ["manifest", "push", "--all", b, f"docker://{b}"],
    ]


def test_a_builder_that_does_not_work_is_skipped(fake, project):
    fake.add("docker", broken=["version"])
    fake.add("buildah")
    run(project)
    assert {name for name, args, _ in fake.calls() if args[0] == "build"} == {"buildah"}


def test_only_the_bundle_is_built_without_an_image_builder(fake, project):
    built, _ = run(project, want_image=None)
    assert built.no_image == "docker, podman and buildah are not installed"
    assert built.file.is_file()
    assert artifacts(project) == []
    with pytest.raises(BuildFailed, match="docker, podman and buildah are not installed"):
        run(project)


def test_a_failing_builder_fails_the_build_only_if_an_image_was_requested(fake, project):
    fake.add("docker", broken=["build"])
    with pytest.raises(BuildFailed, match="docker build ended with exit code 7: it went wrong"):
        run(project)
    built, _ = run(project, want_image=None)
    assert "it went wrong" in built.no_image
    assert built.file.is_file()
    assert artifacts(project) == []


def test_an_image_that_was_not_pushed_is_not_recorded(fake, project):
    fake.add("docker", broken=["push"])
    with pytest.raises(BuildFailed, match="docker push"):
        run(project, ImageOptions(push=True))
    assert artifacts(project) == []


@pytest.mark.parametrize("builder", ["docker", "podman"])
def test_the_registry_password_is_never_on_a_command_line_or_left_in_a_file(fake, project, builder, tmp_path):
    fake.add(builder)
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/config.json").write_text('{"auths": {"other": {"auth": "x"}}, "credsStore": "desktop"}')
    settings = BuildSettings(registry=RegistryConfig(host="reg.example.com", username="me", password="s3cret"))
    run(project, ImageOptions(push=True), settings=settings)
    auths = [json.loads(auth)["auths"] for _, args, auth in fake.calls() if args[0] in ("build", "push")]
    assert [each["reg.example.com"]["auth"] for each in auths] == ["bWU6czNjcmV0"] * 2
    assert ("other" in auths[0]) == (builder == "docker")
    assert "s3cret" not in json.dumps([args for _, args, _ in fake.calls()])
    assert "reg.example.com" not in (tmp_path / "docker/config.json").read_text()


def test_other_artifacts_and_ids_are_kept(fake, project):
    fake.add("docker")
    path = project / "config.json"
    config = json.loads(path.read_text())
    config["artifacts"] = [{"type": "dataset", "content": "d"}, {"id": "7", "type": "image", "content": "old:1"}]
    path.write_text(json.dumps(config))
    run(project)
    assert artifacts(project) == [
        {"id": "7", "type": "image", "content": "docker.io/aenv/hello:1.0.0"},
        {"type": "dataset", "content": "d"},
    ]


@pytest.mark.parametrize(
    "options",
    [ImageOptions(name="--privileged"), ImageOptions(tags=("a b",)), ImageOptions(registry="a;b"),
     ImageOptions(namespace="A"), ImageOptions(dockerfile="nowhere")],
)  # fmt: skip
def test_an_invalid_name_never_reaches_the_builder(fake, project, options):
    fake.add("docker")
    with pytest.raises(ConfigError):
        run(project, options)
    assert fake.commands() == []


def test_template_images_start_the_runtime_as_an_ordinary_user():
    for template in scaffold.TEMPLATES:
        text = (scaffold.resources.files("aenv.project") / "templates" / template / "Dockerfile").read_text()
        lines = text.splitlines()
        command = json.loads(next(line for line in lines if line.startswith("CMD")).removeprefix("CMD "))
        assert command[:3] == ["python", "-m", "aenv.main"]
        user = next(line for line in lines if line.startswith("USER")).split()[1]
        assert user.isdigit()
        assert int(user) > 0


def test_planning_a_build_needs_no_builder(project):
    plan = image_build.plan(manifest.load(project), ImageOptions(), RegistryConfig())
    (line,) = image_build.commands(Builder("docker", "docker", {}), plan, push=False)
    assert line[:2] == ["docker", "build"]


@pytest.mark.attack("build")
@pytest.mark.parametrize("context", ["..", "../..", "/", "/etc", "link", "src/../.."])
def test_a_build_context_outside_of_the_project_is_rejected(fake, project, context):
    fake.add("docker")
    (project / "link").symlink_to("/etc")
    change(project, context=context)
    with pytest.raises(ConfigError, match="outside of the project") as caught:
        run(project)
    assert "--context" in caught.value.details["hint"]
    assert fake.commands() == []


def test_the_user_may_choose_any_build_context(fake, project, monkeypatch):
    fake.add("docker")
    monkeypatch.chdir(project)
    run(project, ImageOptions(context=".."))
    assert [command[-1] for command in fake.commands()] == [f"{project}/.."]
