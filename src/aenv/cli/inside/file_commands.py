"""``aenv instance files``: list, show, write, remove and watch the files of an instance."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aenv.cli.command_group import CommandGroup
from aenv.cli.inside import text
from aenv.cli.inside.access import with_instance
from aenv.cli.output import Output, columns, output_option
from aenv.cli.platform_address import platform_options
from aenv.errors import UsageError

if TYPE_CHECKING:
    from aenv.schema.inside import FileEvent, FileInfo
    from aenv.sdk.environment import Environment


@click.group(cls=CommandGroup, name="files")
def files() -> None:
    """List, show, write, remove and watch the files of an instance. 'aenv instance cp' copies folders."""


@files.command()
@click.argument("id")
@click.argument("path", default=".")
@click.option("-r", "--recursive", is_flag=True, help="List folders inside of it, too.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=10_000, show_default=True, help="Maximum of entries.")
@platform_options
@output_option
def ls(
    id: str, path: str, recursive: bool, limit: int, system_url: str | None, api_key: str | None, output: Output
) -> None:
    """List a folder."""

    async def work(env: Environment) -> list[FileInfo]:
        return await env.files.list(path, depth=64 if recursive else 1, limit=limit)

    found = with_instance(id, system_url, api_key, work)
    output.show([each.model_dump(exclude_none=True) for each in found], lambda: _listing(found))


@files.command()
@click.argument("id")
@click.argument("path")
@platform_options
@output_option
def stat(id: str, path: str, system_url: str | None, api_key: str | None, output: Output) -> None:
    """Show the type, size, permissions and time of a file or folder."""

    async def work(env: Environment) -> FileInfo:
        return await env.files.stat(path)

    found = with_instance(id, system_url, api_key, work)
    output.show(found.model_dump(exclude_none=True), lambda: _listing([found]))


@files.command()
@click.argument("id")
@click.argument("path")
@platform_options
def cat(id: str, path: str, system_url: str | None, api_key: str | None) -> None:
    """Print a file."""

    async def work(env: Environment) -> bytes:
        return await env.files.read(path)

    data = with_instance(id, system_url, api_key, work)
    text.stdout(data, data.decode(errors="replace"))


@files.command()
@click.argument("id")
@click.argument("path")
@click.argument("source", default="-")
@platform_options
def put(id: str, path: str, source: str, system_url: str | None, api_key: str | None) -> None:
    """Write a file from SOURCE, by default from standard input."""
    if source != "-" and not Path(source).exists():
        raise UsageError(f"{source} does not exist")
    data: bytes | Path = sys.stdin.buffer.read() if source == "-" else Path(source)

    async def work(env: Environment) -> None:
        await env.files.write(path, data)

    with_instance(id, system_url, api_key, work)


@files.command()
@click.argument("id")
@click.argument("path")
@click.argument("target")
@click.option("--timeout", type=float, default=3600.0, show_default=True, help="Timeout in seconds.")
@platform_options
def get(id: str, path: str, target: str, timeout: float, system_url: str | None, api_key: str | None) -> None:
    """Copy a file or folder to TARGET on this machine; the same as 'aenv instance cp ID:PATH TARGET'."""

    async def work(env: Environment) -> None:
        await env.download_to(path, Path(target), timeout)

    with_instance(id, system_url, api_key, work)


@files.command()
@click.argument("id")
@click.argument("path")
@click.option("-r", "--recursive", is_flag=True, help="Remove a folder and all that is in it.")
@platform_options
def rm(id: str, path: str, recursive: bool, system_url: str | None, api_key: str | None) -> None:
    """Remove a file, a link or an empty folder."""

    async def work(env: Environment) -> None:
        await env.files.remove(path, recursive=recursive)

    with_instance(id, system_url, api_key, work)


@files.command()
@click.argument("id")
@click.argument("path")
@platform_options
def mkdir(id: str, path: str, system_url: str | None, api_key: str | None) -> None:
    """Make a folder, and those above it."""

    async def work(env: Environment) -> None:
        await env.files.make_folder(path)

    with_instance(id, system_url, api_key, work)


@files.command()
@click.argument("id")
@click.argument("path", default=".")
@click.option("-r", "--recursive", is_flag=True, help="Watch folders inside of it, too.")
@platform_options
@output_option
def watch(id: str, path: str, recursive: bool, system_url: str | None, api_key: str | None, output: Output) -> None:
    """Print changes of a file or folder until Ctrl-C; with --output json, one JSON object per line."""

    async def work(env: Environment) -> None:
        async with env.files.watch(path, recursive=recursive) as changes:
            async for change in changes:
                _show_change(change, output)

    with_instance(id, system_url, api_key, work)


def _show_change(change: FileEvent, output: Output) -> None:
    if output is Output.JSON:
        click.echo(json.dumps(change.model_dump()))
    else:
        click.echo(text.printable(f"{change.type:8}  {change.path}"))
    sys.stdout.flush()


def _listing(found: list[FileInfo]) -> str:
    if not found:
        return "empty"
    rows = []
    for each in found:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(each.modified_at))
        name = each.path + ("/" if each.type == "folder" else f" -> {each.target}" if each.target else "")
        rows.append((each.type, each.mode.rjust(4), str(each.size).rjust(9), moment, text.printable(name)))
    return columns(rows, indent="")
