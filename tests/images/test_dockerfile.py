"""Dockerfiles, parsed and built in boxes on the host's own system, so that nothing is downloaded."""

from __future__ import annotations

import asyncio
import os
import re
import tarfile
from pathlib import Path

import pytest

from aenv.errors import BuildFailed, ConfigError, Unavailable
from aenv.images import base_roots, container, docker_cli, layered_images
from aenv.images.box import Box
from aenv.images.dockerfile import BadDockerfile, expand, parse
from aenv.images.dockerfile_build import build
from aenv.images.layered_images import BoxImage
from tests.bench.debian import a_debian
from tests.conftest import run

__all__ = ["a_debian"]

# --- parsing


def test_the_parser_joins_lines_skips_comments_and_reads_flags() -> None:
    steps = parse(
        "# syntax=docker/dockerfile:1\nFROM a AS b\n\nRUN one && \\\n  # why\n\n  two\ncopy --chown=1:2 --link x y\n"
    )
    assert [(step.name, step.text, step.line) for step in steps] == [
        ("FROM", "a AS b", 2), ("RUN", "one &&    two", 4), ("COPY", "x y", 8),
    ]  # fmt: skip
    assert steps[2].flags == {"chown": "1:2", "link": ""}


def test_heredocs_are_kept_verbatim() -> None:
    steps = parse("FROM a\nRUN <<EOF\necho $x\n  # not a comment\nEOF\nCOPY <<-'END' /f\n\tone\n\tEND\n")
    assert steps[1].heredocs == (("EOF", "echo $x\n  # not a comment\n", True),)
    assert steps[2].heredocs == (("END", "one\n", False),)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$a/${b}", "1/"), ("${b:-x$a}", "x1"), ("${a:+yes}${b:+no}", "yes"), (r"\$a", "$a"), ("${empty-x}", ""),
        ("${empty:-x}", "x"),
    ],
)  # fmt: skip
def test_variables_are_expanded_like_docker_does(text: str, value: str) -> None:
    assert expand(text, {"a": "1", "empty": ""}) == value


def test_env_pairs_have_two_syntaxes() -> None:
    new, old = parse('FROM a\nENV A=1 B="two words" C=$X\nENV D and so on\n')[1:]
    assert new.pairs({"X": "x"}) == {"A": "1", "B": "two words", "C": "x"}
    assert old.pairs({}) == {"D": "and so on"}


@pytest.mark.parametrize("text", ["RUN x", "FROM a\nFLY x", "FROM a\nRUN <<EOF\nnever", "FROM a\nRUN"])
def test_an_invalid_dockerfile_is_refused(text: str) -> None:
    with pytest.raises(BadDockerfile):
        parse(text)


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("ubuntu:24.04", base_roots.OfficialImage("bookworm")),
        ("debian:13-slim", base_roots.OfficialImage("trixie")),
        ("debian:bullseye", base_roots.OfficialImage("bullseye")),
        ("docker.io/library/python:3.13-slim-bookworm", base_roots.OfficialImage("bookworm", "3.13")),
        ("python:3.11", base_roots.OfficialImage("bookworm", "3.11", full=True)),
        ("python:3.12-alpine", None),
        ("nginx:1", None),
    ],
)
def test_official_image_names_map_to_a_debian_release(name: str, origin: base_roots.OfficialImage | None) -> None:
    assert base_roots.parse_official_name(name) == origin


# --- building


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sandboxes: None) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "context"
    (folder / "src/deep").mkdir(parents=True)
    (folder / "src/a.txt").write_text("a\n")
    (folder / "src/deep/b.txt").write_text("b\n")
    (folder / "src/secret.key").write_text("k\n")
    (folder / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "run.sh").chmod(0o755)
    with tarfile.open(folder / "more.tar.gz", "w:gz") as archive:
        archive.add(folder / "run.sh", "inner/run.sh")
    (folder / ".dockerignore").write_text("# not these\n**/*.key\n!src/deep\n")
    return folder


async def output_of(image: BoxImage, place: Path, command: str) -> str:
    """Return the output of a command in a new box of an image."""
    async with layered_images.box(image, layered_images.new_state(place)) as box:
        done = await box.exec(command, cwd=image.cwd, user=image.user, merge_stderr=True)
    await layered_images.remove(place)
    return done.output


WANTED = """/app/sub
a.txt from-heredoc.txt listed.txt renamed.txt run.sh script.sh shell.txt
/all /all/.dockerignore /all/Dockerfile /all/more.tar.gz /all/run.sh /all/src /all/src/a.txt /all/src/deep
/all/src/deep/b.txt /tree /tree/link /tree/two.txt /tree/x /tree/x/file
a echo hello you hello you listed bash
600 755 ran ran x hello you"""


@pytest.mark.long
def test_a_dockerfile_build_runs_all_its_steps(context: Path, tmp_path: Path) -> None:
    (context / "Dockerfile").write_text(
        """ARG BASE=aenv/host
FROM ${BASE} AS maker
WORKDIR /made
RUN mkdir -p tree/x && echo made > tree/x/file && ln -s x tree/link && echo one > one.txt
FROM $BASE
ARG WHO=world
ENV GREETING="hello $WHO" \\
    OTHER=2
WORKDIR /app
WORKDIR sub
COPY . /all/
COPY src/*.txt run.sh ./
COPY --chmod=600 /src/../src/a.txt renamed.txt
COPY --from=maker /made/tree /tree
COPY --from=0 /made/one.txt /tree/two.txt
ADD more.tar.gz /unpacked/
COPY <<EOF script.sh
echo $GREETING
EOF
RUN <<EOF
set -e
echo "$GREETING" > from-heredoc.txt
EOF
RUN ["sh", "-c", "echo listed > listed.txt"]
SHELL ["/bin/bash", "-c"]
RUN [[ $OTHER == 2 ]] && echo bash > shell.txt
EXPOSE 80
CMD ["sleep", "1"]
"""
    )

    async def main() -> tuple[BoxImage, str]:
        image = await build(context / "Dockerfile", context, {"WHO": "you"})
        commands = (
            "pwd; ls; find /all /tree | sort; cat renamed.txt script.sh from-heredoc.txt listed.txt shell.txt; "
            "stat -c %a renamed.txt run.sh; ./run.sh; sh /unpacked/inner/run.sh; readlink /tree/link; echo $GREETING"
        )
        return image, await output_of(image, tmp_path / "state", commands)

    image, output = run(main())
    assert output.split() == WANTED.split()
    assert image.command == ("sleep", "1")
    assert not Path("/made").exists()
    assert image.variables["OTHER"] == "2"


def test_a_layer_is_cached_until_its_inputs_change(context: Path, tmp_path: Path) -> None:
    (context / "Dockerfile").write_text(
        "FROM aenv/host\nRUN cat /proc/sys/kernel/random/uuid > /first\nCOPY src/a.txt /\n"
        "RUN cat /proc/sys/kernel/random/uuid > /second\n"
    )

    async def main() -> list[list[str]]:
        found = []
        for text in ("a\n", "a\n", "changed\n"):
            (context / "src/a.txt").write_text(text)
            os.utime(context / "src/a.txt", (0, 0))
            image = await build(context / "Dockerfile", context)
            found.append((await output_of(image, tmp_path / "state", "cat /first /second")).split())
        return found

    one, two, three = run(main())
    assert one == two
    assert (three[0], three[1] != one[1]) == (one[0], True)


def test_concurrent_builds_create_a_layer_once(context: Path) -> None:
    (context / "Dockerfile").write_text("FROM aenv/host\nRUN sleep 0.3; cat /proc/sys/kernel/random/uuid > /once\n")

    async def main() -> None:
        made = await asyncio.gather(*(build(context / "Dockerfile", context) for _ in range(4)))
        assert len({image.key for image in made}) == 1
        assert not list(layered_images.layer_folder("unfinished").glob("*/upper"))

    run(main())


def test_a_build_that_cannot_succeed_says_why(context: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_cli, "PROGRAMS", ())
    (context / "passwd").symlink_to("/etc/passwd")
    (context / "broken.tar.gz").write_bytes(b"\x1f\x8b\x08 this is no archive")
    for text, why in (
        ("FROM aenv/host\nRUN echo begun; false\n", "line 2: RUN echo begun; false ended with exit code 1:\nbegun"),
        ("FROM aenv/host\nCOPY nothing /\n", "line 2: COPY nothing: no such file"),
        ("FROM aenv/host\nCOPY src/secret.key /\n", "no such file"),
        ("FROM aenv/host\nCOPY passwd /\n", "passwd leads out of"),
        ("FROM aenv/host\nCOPY /etc/hostname /\n", "no such file"),
        ("FROM aenv/host\nCOPY ../../../../etc/hostname /\n", "no such file"),
        ("FROM aenv/host\nADD https://example.com/x /\n", "use RUN curl"),
        ("FROM aenv/host\nADD broken.tar.gz /\n", "ADD broken.tar.gz: cannot be unpacked"),
        ("FROM scratch\nCOPY run.sh /\n", "FROM scratch"),
    ):
        (context / "Dockerfile").write_text(text)
        with pytest.raises(BuildFailed, match=re.escape(why)):
            run(build(context / "Dockerfile", context))
    (context / "Dockerfile").write_text("FROM aenv/host\nONBUILD RUN x\n")
    with pytest.raises(ConfigError, match="line 2: unsupported instruction ONBUILD"):
        run(build(context / "Dockerfile", context))
    (context / "Dockerfile").write_text("FROM debian:12\nONBUILD RUN x\n")
    with pytest.raises(ConfigError, match="line 2: unsupported instruction ONBUILD") as raised:
        run(build(context / "Dockerfile", context))
    assert raised.value.details["hint"].endswith("built here; Docker is not installed.")


# --- boxes


def test_programs_of_a_box_share_a_pid_namespace_and_end_with_it(context: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with layered_images.box(layered_images.host_image(), layered_images.new_state(tmp_path / "state")) as box:
            await box.exec("sleep 1000 > /dev/null 2>&1 & echo begun")
            assert "sleep 1000" in (await box.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).output
            slow = await box.exec("echo partly; sleep 1000", timeout=0.5)
            assert (slow.code, slow.timed_out, slow.output) == (124, True, "partly\n")
            missing = await box.exec(["no-such-program"])
            assert missing.code == 127
            assert "No such file" in missing.errors
            lots = await box.exec("head -c 5000000 /dev/zero | tr '\\0' x; echo end")
            assert len(lots.output) < 1_100_000
            assert "bytes left out" in lots.output
            assert lots.output.endswith("xend\n")
            assert (await box.exec("cat", stdin=b"given")).output == "given"
            ended = asyncio.create_task(_killed(box))
            await ended
        with pytest.raises(Unavailable):
            await box.exec("true")

    run(main())


async def _killed(box: Box) -> None:
    """A program that kills every process it may does not end the box."""
    await box.exec("kill -9 -1")
    assert (await box.exec("echo still here")).output == "still here\n"


def test_a_box_cannot_reach_the_host(context: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("a secret\n")
    tries = {
        f"cat {tmp_path}/mine": "No such file",
        "cat /etc/shadow": "No such file",
        "mount -t tmpfs x /tmp": "denied",
        "unshare -m true": "not permitted",
        "cat /proc/1/environ": "denied",
        "echo 1 > /proc/sys/kernel/panic": "Read-only",
        "echo 1 > /proc/sys/net/ipv4/ip_forward": "Read-only",
        "echo 1 > /proc/sys/kernel/shmmax": "Read-only",
        "touch /usr/bin/x": "Read-only",
    }

    async def main() -> None:
        async with layered_images.box(layered_images.host_image(), layered_images.new_state(tmp_path / "state")) as box:
            assert (await box.exec("id -u")).output == "0\n"
            for command, refusal in tries.items():
                done = await box.exec(["bash", "-c", command], merge_stderr=True)
                assert done.code != 0, command
                assert refusal in done.output, command
            assert (await box.exec("mknod /disk b 8 0 && head -c 1 /disk")).code != 0
            for name in ("cmdline", "config.gz", "interrupts", "kallsyms", "keys", "modules"):
                assert (await box.exec(f"cat /proc/{name}")).output == "", name
            assert int((await box.exec("wc -l < /proc/meminfo")).output) > 10

    run(main())


@pytest.mark.long
@pytest.mark.usefixtures("a_debian")
@pytest.mark.timeout(600)
def test_a_debian_image_can_install_packages(tmp_path: Path) -> None:
    """The image stays in the user's cache: it is bootstrapped once per machine."""
    (tmp_path / "Dockerfile").write_text("FROM debian:bookworm-slim\nRUN dpkg --list | grep -c '^ii' > /count\n")

    async def main() -> str:
        image = await build(tmp_path / "Dockerfile", tmp_path)
        return await output_of(
            image, tmp_path / "state", "cat /count; . /etc/os-release; echo $VERSION_ID; id -u nobody"
        )

    count, version, nobody = run_long(main()).split()
    assert int(count) > 50
    assert (version, nobody) == ("12", "65534")


def run_long(work: object) -> str:
    return asyncio.run(work)  # type: ignore[arg-type, no-any-return]


def test_a_user_without_a_subuid_range_is_told_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "has_user_range", lambda: False)
    reason = base_roots.bootstrap_problem()
    assert reason is not None
    assert "subuid" in reason or "mmdebstrap" in reason or "keyring" in reason
