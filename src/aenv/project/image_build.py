"""Build a project's image with the builder of this machine: Docker, Podman or Buildah."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aenv.config import RegistryConfig
from aenv.config import UserBuildConfig as BuildSettings
from aenv.errors import BuildFailed, ConfigError
from aenv.isolation.files.scratch_folders import scratch_folder
from aenv.project import manifest
from aenv.project.manifest import Artifact, Loaded
from aenv.subprocesses import run

BUILDERS = ("docker", "podman", "buildah")
PATIENCE = 15.0
"""Timeout in seconds for checking that a builder works."""
_NAME = re.compile(r"[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]+)?(/[a-z0-9._/-]+)?")

Say = Callable[[str], None]


@dataclass(frozen=True)
class ImageOptions:
    """Image options of the command line; the others come from config.json and the settings."""

    name: str | None = None
    tags: tuple[str, ...] = ()
    registry: str | None = None
    namespace: str | None = None
    platforms: tuple[str, ...] = ()
    dockerfile: str | None = None
    push: bool = False
    context: str | None = None

    @property
    def given(self) -> bool:
        """True if any option was given, which means that an image is requested."""
        return self != ImageOptions()


@dataclass(frozen=True)
class Builder:
    """A working program that builds images."""

    program: str
    kind: str
    variables: dict[str, str]


@dataclass(frozen=True)
class ImagePlan:
    """Inputs and names of an image build."""

    dockerfile: Path
    context: Path
    references: tuple[str, ...]
    args: dict[str, str]
    platforms: tuple[str, ...]


def find_builder(settings: BuildSettings) -> Builder | str:
    """Return the first builder that works, or the reason why there is none."""
    reasons = []
    for kind in BUILDERS:
        program = shutil.which(kind)
        if program is None:
            continue
        builder = Builder(program, kind, _variables(kind, settings))
        question = [program, "version"] if kind == "docker" else [program, "info"]  # both query the daemon or storage
        try:
            done = run(question, env=builder.variables, timeout=PATIENCE)
        except OSError:  # TimeoutError is one, too
            reasons.append(f"{kind} does not answer")
            continue
        if done.ok:
            return builder
        lines = done.tail().splitlines()
        reasons.append(f"{kind} does not work ({lines[-1][:200] if lines else f'exit code {done.code}'})")
    return "; ".join(reasons) or "docker, podman and buildah are not installed"


def _variables(kind: str, settings: BuildSettings) -> dict[str, str]:
    variables = dict(os.environ)
    if kind == "docker" and "socket" in settings.build_args.model_fields_set:
        variables.setdefault("DOCKER_HOST", settings.build_args.socket)
    return variables


def plan(loaded: Loaded, options: ImageOptions, registry: RegistryConfig) -> ImagePlan:
    """Return the build to run. Options override config.json, which overrides the settings.

    Raises:
        ConfigError: a name is invalid, the Dockerfile is missing, or config.json names a folder outside the project.
    """
    root, own = loaded.path.parent.absolute(), loaded.manifest
    wanted = own.build_config
    dockerfile = Path.cwd() / options.dockerfile if options.dockerfile else root / wanted.dockerfile
    context = Path.cwd() / options.context if options.context else root / wanted.context
    if not dockerfile.is_file():
        raise ConfigError(f"no Dockerfile at {dockerfile}", {"hint": "Name it with -f, or in buildConfig."})
    if not context.is_dir():
        raise ConfigError(f"buildConfig.context: no such folder: {context}")
    if not options.context and not context.resolve().is_relative_to(root.resolve()):
        raise ConfigError(
            f"buildConfig.context: {wanted.context} is outside of the project; the builder would get all of it",
            {"hint": f"If you want that, run: aenv build --context {context.resolve()}"},
        )
    host = registry.host if options.registry is None else options.registry
    namespace = registry.namespace if options.namespace is None else options.namespace
    name = options.name or wanted.image_name or own.name
    tags = options.tags or (wanted.image_tag or own.version.replace("+", "-"),)
    place = "/".join(part.strip("/") for part in (host.removeprefix("https://"), namespace, name) if part)
    for what, text, pattern in (
        ("registry", host.removeprefix("https://"), _HOST),
        ("namespace", namespace, _NAME),
        ("image name", name, _NAME),
        *(("tag", tag, _TAG) for tag in tags),
    ):
        if text and not pattern.fullmatch(text):
            raise ConfigError(f"invalid {what} of an image: {text!r}")
    args = {key: manifest.as_text(value) for key, value in wanted.args.items()}
    references = tuple(dict.fromkeys(f"{place}:{tag}" for tag in tags))
    return ImagePlan(dockerfile, context, references, args, options.platforms)


def build(builder: Builder, what: ImagePlan, registry: RegistryConfig, *, push: bool, say: Say) -> None:
    """Build the image with all its tags, and push it if requested. The builder's output goes to ``say``.

    Raises:
        BuildFailed: with the last line of the builder's output.
    """
    with _logged_in(builder, registry) as ready:
        for command in commands(builder, what, push=push):
            _run(command, ready, say)


def commands(builder: Builder, what: ImagePlan, *, push: bool) -> Iterator[list[str]]:
    """Yield the builder's command lines in order."""
    program, several = builder.program, len(what.platforms) > 1
    lists = several and builder.kind != "docker"  # podman and buildah use a manifest list for several platforms
    first, *others = what.references
    names = ["--manifest", first] if lists else [word for each in what.references for word in ("--tag", each)]
    yield [
        program, "build", "--file", str(what.dockerfile), *names,
        *(["--platform", ",".join(what.platforms)] if what.platforms else []),
        *(word for key, value in what.args.items() for word in ("--build-arg", f"{key}={value}")),
        str(what.context),
    ]  # fmt: skip
    if lists:
        yield from ([program, "tag", first, other] for other in others)
    if push:
        verb = ["manifest", "push", "--all"] if lists else ["push"]
        for each in what.references:
            yield [program, *verb, each, *([f"docker://{each}"] if lists else [])]


def record(loaded: Loaded, what: ImagePlan) -> None:
    """Write the image into the artifacts of config.json; other artifacts are kept."""
    own = loaded.manifest
    others = [artifact for artifact in own.artifacts if artifact.type != "image"]
    known = [artifact for artifact in own.artifacts if artifact.type == "image"]
    images = [
        known[number].model_copy(update={"content": each})
        if number < len(known)
        else Artifact(type="image", content=each)
        for number, each in enumerate(what.references)
    ]
    if own.artifacts != [*images, *others]:
        manifest.save(own.model_copy(update={"artifacts": [*images, *others]}), loaded.path)


def _run(command: list[str], builder: Builder, say: Say) -> None:
    last = ""
    with subprocess.Popen(
        command, env=builder.variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace",
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            for line in process.stdout:
                say(line.rstrip())
                last = line.strip() or last
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise BuildFailed(
            f"{builder.kind} {command[1]} ended with exit code {process.returncode}: {last}",
            {"hint": "The bundle needs no image; to build only the bundle, run: aenv build --no-image"},
        )


@contextmanager
def _logged_in(builder: Builder, registry: RegistryConfig) -> Iterator[Builder]:
    """Yield the builder, logged in to the registry with the user of the settings.

    The password is passed in a temporary file, which is removed after the build, and never on a command line.
    """
    if not (registry.username and registry.password):
        yield builder
        return
    key = base64.b64encode(f"{registry.username}:{registry.password}".encode()).decode()
    host = registry.host.removeprefix("https://").partition("/")[0]
    host = "https://index.docker.io/v1/" if host == "docker.io" and builder.kind == "docker" else host
    with scratch_folder("image") as folder:
        known = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
        document = _own_config(known / "config.json") if builder.kind == "docker" else {}
        document["auths"] = {**document.get("auths", {}), host: {"auth": key}}
        document.pop("credsStore", None)  # the credential store has precedence and does not know this user
        file = Path(folder) / "config.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps(document))
        if builder.kind == "docker":
            for entry in known.iterdir() if known.is_dir() else ():
                if entry.name != "config.json":  # plug-ins and contexts
                    (Path(folder) / entry.name).symlink_to(entry)
            more = {"DOCKER_CONFIG": folder}
        else:
            more = {"REGISTRY_AUTH_FILE": str(file)}
        yield replace(builder, variables={**builder.variables, **more})


def _own_config(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
