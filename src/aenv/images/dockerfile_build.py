"""Build a Dockerfile without Docker: each step that changes files is a layer, keyed by a digest of its inputs."""

from __future__ import annotations

import asyncio
import fnmatch
import functools
import hashlib
import io
import os
import posixpath
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import pathspec

from aenv.errors import BuildFailed, ConfigError
from aenv.images import base_roots, docker_cli, layered_images
from aenv.images.box_files import add, add_tree
from aenv.images.dockerfile import BadDockerfile, BuildStep, expand, parse
from aenv.images.layered_images import BoxImage, digest
from aenv.images.oci_layers import BadImage, unpack_tree
from aenv.isolation.files.scratch_folders import scratch_folder
from aenv.isolation.files.tar_limits import BoundedTarInfo
from aenv.tracing.logging import getLogger

log = getLogger("boxes")

MAX_OUTPUT = 3000
"""Characters of a failed step's output in the error message."""
_NO_EFFECT = frozenset(["EXPOSE", "LABEL", "VOLUME", "STOPSIGNAL", "HEALTHCHECK", "MAINTAINER"])
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".txz")


async def build(dockerfile: Path, context: Path, arguments: Mapping[str, str] | None = None) -> BoxImage:
    """Build the image of a Dockerfile; Docker, where installed, builds what cannot be built here.

    Raises:
        ConfigError: the Dockerfile cannot be read or parsed.
        BuildFailed: a step has failed or is unsupported.
    """
    build_args = dict(arguments or {})
    try:
        text = dockerfile.read_text(encoding="utf-8")
        key = await asyncio.to_thread(_key, text, context, build_args) if docker_cli.any_built() else ""
        cached = docker_cli.cached_build(key) if key else None
        return cached or await _build_here(dockerfile, text, context, build_args)
    except (BuildFailed, ConfigError) as error:
        return await _build_with_docker(dockerfile, text, context, build_args, error)
    except OSError as error:
        raise ConfigError(f"{error.filename or dockerfile}: {error.strerror}") from None


async def _build_here(dockerfile: Path, text: str, context: Path, build_args: dict[str, str]) -> BoxImage:
    try:
        return await _Build(context, build_args).run(parse(text))
    except BadDockerfile as error:
        raise ConfigError(f"{dockerfile}: {error}") from None


async def _build_with_docker(
    dockerfile: Path, text: str, context: Path, build_args: dict[str, str], why: BuildFailed | ConfigError
) -> BoxImage:
    """Build with Docker after a build here has failed. Images on top of the host's own system have no such fallback."""
    if base_roots.HOST in text:
        raise why
    engine = await docker_cli.find()
    if isinstance(engine, str):
        hint = f"Docker, where it works, builds what cannot be built here; {engine}."
        raise type(why)(why.message, {"hint": hint, **why.details}) from None
    log.warning(
        "building %s with %s, as building without it failed: %s",
        dockerfile,
        Path(engine.program).name,
        why.message[:500],
    )
    try:
        return await engine.build(
            dockerfile, context, build_args, await asyncio.to_thread(_key, text, context, build_args)
        )
    except BuildFailed as error:
        raise BuildFailed(f"{error.message}\nWithout Docker: {why.message}") from None


def _key(text: str, context: Path, build_args: Mapping[str, str]) -> str:
    """Return a digest of a Dockerfile, its arguments and its whole build context."""
    with scratch_folder("copy") as scratch:
        packed = Path(scratch, "context.tar")
        with tarfile.open(packed, "w") as archive:
            add_tree(archive, context, ".", leave_out=_ignored(context))
        return digest("built", text, _digest_of(packed), sorted(build_args.items()))


@dataclass
class _Stage:
    """Build stage: a FROM and the steps after it."""

    image: BoxImage
    arguments: dict[str, str] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        return {**self.arguments, **self.image.variables}


class _Build:
    def __init__(self, context: Path, build_args: dict[str, str]) -> None:
        self._context = context
        self._build_args = build_args
        self._global_arguments: dict[str, str] = {}  # ARG before the first FROM
        self._stages: dict[str, BoxImage] = {}
        self._ignored = _ignored(context)

    async def run(self, steps: list[BuildStep]) -> BoxImage:
        stage: _Stage | None = None
        name, count = "", 0
        for step in steps:
            if step.name == "FROM":
                if stage is not None:
                    self._stages[name] = self._stages[str(count - 1)] = stage.image
                words = step.words(self._global_arguments)
                stage = _Stage(self._stages.get(words[0].lower()) or await base_roots.base_image(words[0]))
                name = words[2].lower() if len(words) == 3 and words[1].upper() == "AS" else str(count)
                count += 1
            elif stage is None:
                self._global_arguments |= self._argument(step, self._global_arguments)
            else:
                await self._apply(stage, step)
        assert stage is not None
        return stage.image

    def _argument(self, step: BuildStep, variables: Mapping[str, str]) -> dict[str, str]:
        if step.name != "ARG":
            raise BadDockerfile(f"line {step.line}: {step.name} before FROM")
        name, equals, value = step.text.partition("=")
        default = (
            " ".join(BuildStep("ARG", value, step.line).words(variables))
            if equals and value
            else self._global_arguments.get(name, "")
        )
        return {name.strip(): self._build_args.get(name.strip(), default)}

    async def _apply(self, stage: _Stage, step: BuildStep) -> None:
        image = stage.image
        if step.name == "ARG":
            stage.arguments |= self._argument(step, stage.variables)
        elif step.name == "ENV":
            stage.image = replace(image, variables={**image.variables, **step.pairs(stage.variables)})
        elif step.name == "USER":
            stage.image = replace(image, user=expand(step.text, stage.variables))
        elif step.name == "SHELL":
            stage.image = replace(image, shell=tuple(step.json_words or ("/bin/sh", "-c")))
        elif step.name == "CMD":
            stage.image = replace(image, command=tuple(step.json_words or (*image.shell, step.text)))
        elif step.name == "ENTRYPOINT":
            stage.image = replace(image, entrypoint=tuple(step.json_words or (*image.shell, step.text)), command=())
        elif step.name == "WORKDIR":
            cwd = posixpath.normpath(posixpath.join(image.cwd, expand(step.text.strip("\"'"), stage.variables)))
            stage.image = replace(await self._layer(stage, step, ("WORKDIR", cwd), _make_folder(cwd)), cwd=cwd)
        elif step.name == "RUN":
            stage.image = await self._run(stage, step)
        elif step.name in ("COPY", "ADD"):
            stage.image = await self._copy(stage, step)
        elif step.name not in _NO_EFFECT:
            raise BadDockerfile(f"line {step.line}: unsupported instruction {step.name}")

    async def _layer(
        self, stage: _Stage, step: BuildStep, parts: tuple[object, ...], make: Callable[[layered_images.Box], object]
    ) -> BoxImage:
        image = stage.image
        key = digest(image.key, *parts)

        async def fill(state: Path) -> None:
            async with layered_images.box(image, state, network="host") as box:
                await make(box)  # type: ignore[misc]

        return image.with_layer(key, await layered_images.ensure_layer(key, fill))

    async def _run(self, stage: _Stage, step: BuildStep) -> BoxImage:
        image = stage.image
        stdin = b""
        argv = step.json_words
        if step.heredocs and step.text.startswith("<<") and len(step.heredocs) == 1 and step.text.count(" ") == 0:
            heredoc = step.heredocs[0][1]
            argv = [*image.shell, heredoc] if not heredoc.startswith("#!") else None
            if argv is None:  # a script that names its interpreter
                interpreter = heredoc.partition("\n")[0][2:].split()
                argv, stdin = [*interpreter, "/dev/stdin"], heredoc.encode()
        elif step.heredocs:
            argv = [*image.shell, "\n".join([step.text, *(f"{text}{name}" for name, text, _ in step.heredocs)])]
        argv = argv or [*image.shell, step.text]
        variables = stage.variables

        async def run(box: layered_images.Box) -> None:
            log.info("RUN %s", step.text[:200])
            done = await box.exec(
                argv, cwd=image.cwd, env=variables, user=image.user, stdin=stdin, merge_stderr=True, nice=5
            )
            if done.code:
                output = f"{done.output}{done.errors}"[-MAX_OUTPUT:]
                raise BuildFailed(
                    f"line {step.line}: RUN {step.text[:300]} ended with exit code {done.code}:\n{output}"
                )

        parts = ("RUN", argv, stdin, image.cwd, image.user, sorted(variables.items()))
        return await self._layer(stage, step, parts, run)

    async def _copy(self, stage: _Stage, step: BuildStep) -> BoxImage:
        words = step.words(stage.variables)
        flags = {name: expand(value, stage.variables) for name, value in step.flags.items()}
        heredocs = {f"<<{name}": expand(text, stage.variables) if replaced else text
                     for name, text, replaced in step.heredocs}  # fmt: skip
        *sources, target = words
        sources = [word.replace("<<-", "<<").replace('"', "").replace("'", "") for word in sources]
        if not sources:
            raise BadDockerfile(f"line {step.line}: {step.name} needs a source and a target")
        into = target.endswith("/") or target in (".", "..") or len(sources) > 1
        destination = posixpath.normpath(posixpath.join(stage.image.cwd, target))
        mode = int(flags["chmod"], 8) if flags.get("chmod", "").isdigit() else None
        with scratch_folder("copy") as scratch:
            root = self._context
            if "from" in flags:
                root = Path(scratch, "root")
                await self._copy_from_image(flags["from"], sources, root, step)
            packed = Path(scratch, "copy.tar")
            with tarfile.open(packed, "w") as archive:
                for source in sources:
                    if source in heredocs:
                        _add_text(archive, heredocs[source], source[2:], mode)
                        continue
                    if "://" in source or source.startswith("git@"):
                        raise BuildFailed(f"line {step.line}: {step.name} {source}: use RUN curl or RUN git clone here")
                    self._add(archive, root, source, mode, step, filtered="from" not in flags)
            key = await asyncio.to_thread(_digest_of, packed)
            plan = _Copy(packed, destination, into, flags.get("chown", ""), step.name == "ADD")
            parts = ("COPY", key, destination, into, flags.get("chown", ""), step.name)
            return await self._layer(stage, step, parts, plan.apply)

    def _add(
        self, archive: tarfile.TarFile, root: Path, source: str, mode: int | None, step: BuildStep, *, filtered: bool
    ) -> None:
        """Add files as ``file/NAME`` and folders as ``folder/N/...``: see `_Copy`."""
        wanted = _relative(source)
        if any(char in wanted for char in "*?["):
            names = sorted(_matching(root, wanted))
        else:
            names = [wanted] if os.path.lexists(root / wanted) else []
        names = [name for name in names if not (filtered and name and self._ignored(name))]
        if not names:
            raise BuildFailed(f"line {step.line}: {step.name} {source}: no such file in {root}")
        for name in names:
            path = (root / name).resolve()
            if not path.is_relative_to(root.resolve()):
                raise BuildFailed(f"line {step.line}: {step.name} {source}: {name} leads out of {root}")
            if path.is_dir():
                add_tree(
                    archive, path, f"folder/{len(archive.getnames())}", mode=mode,
                    leave_out=functools.partial(self._is_left_out, name) if filtered else lambda below: False,
                )  # fmt: skip
            else:
                add(archive, path, f"file/{os.path.basename(name)}", mode=mode)

    def _is_left_out(self, folder: str, below: str) -> bool:
        return self._ignored(f"{folder}/{below}" if folder else below)

    async def _copy_from_image(self, name: str, sources: list[str], root: Path, step: BuildStep) -> None:
        """Copy files of another stage or image to ``root``."""
        image = self._stages.get(name.lower()) or await base_roots.base_image(name)
        scratch = layered_images.new_state(root.parent / "state")
        async with layered_images.box(image, scratch) as box:
            for index, source in enumerate(sources):
                if any(char in source for char in "*?["):
                    raise BuildFailed(f"line {step.line}: COPY --from does not support patterns here")
                packed = root.parent / f"{index}.tar"
                await box.pack(f"/{_relative(source)}", packed)
                root.mkdir(exist_ok=True)
                with packed.open("rb") as tar:
                    try:
                        await asyncio.to_thread(unpack_tree, tar, root, _relative(source))
                    except BadImage as error:
                        raise BuildFailed(f"line {step.line}: COPY --from={name} {source}: {error}") from None
        await layered_images.remove(scratch)


@dataclass(frozen=True, slots=True)
class _Copy:
    """COPY or ADD step: a tar with members ``file/NAME`` and ``folder/N/...``, and its target."""

    packed: Path
    destination: str
    into: bool
    owner: str
    unpacks: bool

    async def apply(self, box: layered_images.Box) -> None:
        with tarfile.open(self.packed) as archive:
            members = archive.getmembers()
        files = [member.name.partition("/")[2] for member in members if member.name.startswith("file/")]
        into = self.into or len(files) > 1
        if not into and files:
            into = (await box.exec(["test", "-d", self.destination])).code == 0
        folder = self.destination if into or not files else posixpath.dirname(self.destination)
        await box.unpack(lambda target: self._write(target, into), folder, owner=self.owner)

    def _write(self, target: object, into: bool) -> None:
        with (
            tarfile.open(self.packed) as source,
            tarfile.open(fileobj=target, mode="w|") as archive,  # type: ignore[call-overload]
        ):
            for member in source:
                kind, _, rest = member.name.partition("/")
                content = source.extractfile(member) if member.isreg() else None
                if kind == "file":
                    member.name = rest if into else posixpath.basename(self.destination)
                    if self.unpacks and rest.endswith(_ARCHIVES) and content is not None:
                        _copy_members(content, rest, archive)
                        continue
                else:
                    member.name = rest.partition("/")[2] or "."
                    if member.name == ".":
                        continue  # an existing target folder keeps its mode
                archive.addfile(member, content)


def _copy_members(source: IO[bytes], name: str, archive: tarfile.TarFile) -> None:
    """Copy the members of an untrusted archive to the tar of an ADD, which is unpacked in a box."""
    try:
        with tarfile.open(fileobj=source, tarinfo=BoundedTarInfo) as inner:
            for each in inner:
                archive.addfile(each, inner.extractfile(each) if each.isreg() else None)
    except (tarfile.TarError, EOFError, ValueError, ArithmeticError, LookupError, RecursionError, zlib.error) as error:
        raise BuildFailed(f"ADD {name}: cannot be unpacked: {error}") from None


def _make_folder(path: str) -> Callable[[layered_images.Box], object]:
    async def make(box: layered_images.Box) -> None:
        await box.unpack(lambda target: tarfile.open(fileobj=target, mode="w|").close(), path)

    return make


def _add_text(archive: tarfile.TarFile, text: str, name: str, mode: int | None) -> None:
    member = tarfile.TarInfo(f"file/{name}")
    member.size, member.mode = len(text.encode()), mode or 0o644
    archive.addfile(member, io.BytesIO(text.encode()))


def _relative(path: str) -> str:
    """Normalize a path to one relative to a root. ``normpath`` would keep two leading slashes."""
    return posixpath.normpath("/" + path.lstrip("/"))[1:]


def _matching(root: Path, pattern: str) -> list[str]:
    """Return the paths that match a pattern; a star does not match slashes."""
    matches = [""]
    for part in pattern.split("/"):
        matched = []
        for folder in matches:
            parent = root / folder
            if parent.is_dir():
                names = [name for name in os.listdir(parent) if fnmatch.fnmatchcase(name, part)]
                matched += [f"{folder}/{name}" if folder else name for name in names]
        matches = matched
    return matches


def _ignored(context: Path) -> Callable[[str], bool]:
    try:
        lines = (context / ".dockerignore").read_text().splitlines()
    except OSError:
        return lambda name: False
    anchored = [
        line if line[:1] in "!#/" or line.startswith("**") else f"/{line}" for line in map(str.strip, lines) if line
    ]
    spec = pathspec.GitIgnoreSpec.from_lines(anchored)
    return spec.match_file


def _digest_of(packed: Path) -> str:
    """Return a digest of a tar's names, modes and contents, without times."""
    seen = hashlib.sha256()
    with tarfile.open(packed) as archive:
        for member in archive:
            seen.update(f"{member.name}\0{member.mode}\0{member.type!r}\0{member.linkname}\0{member.size}\0".encode())
            content = archive.extractfile(member) if member.isreg() else None
            while content is not None and (data := content.read(1 << 20)):
                seen.update(data)
    return seen.hexdigest()
