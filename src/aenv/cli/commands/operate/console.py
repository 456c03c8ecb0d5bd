"""``aenv console``: the web console for the local platform, or for another one."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from aenv.cli import interrupts
from aenv.cli.output import Output, note, output_option
from aenv.cli.platform_address import chosen, platform_options
from aenv.errors import NotFound, UsageError


@click.command(name="console")
@click.option(
    "-p", "--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1.  [default: a free one]"
)
@click.option("--open", "opens", is_flag=True, help="Open the link in a browser, too.")
@click.option("--model", help="Model of the chat: [API:]NAME[@URL], or FILE.py:NAME of a script.  [default: no chat]")
@click.option(
    "--trace-url",
    envvar="AENV_TRACE_URL",
    default="",
    help="Where links to traces lead, as in https://jaeger.example/trace/{trace}.  [default: no links]",
)
@click.option(
    "--static",
    "static_dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write a run as static pages to this folder, and serve nothing.",
)
@click.option("--run", help="With --static: the run.  [default: the newest]")
@platform_options
@output_option
def command(
    port: int,
    opens: bool,
    model: str | None,
    trace_url: str,
    static_dir: Path | None,
    run: str | None,
    system_url: str | None,
    api_key: str | None,
    output: Output,
) -> int:
    """Show what runs, what was recorded and what environments can do, in a browser, until Ctrl-C.

    It prints a link that works once. Without --system-url or AENV_SYSTEM_URL it is for the local platform.
    """
    url, key = chosen(system_url, api_key)
    if static_dir is not None:
        return _write(static_dir, run, url, key, output)
    if run is not None:
        raise UsageError("--run is for --static")
    if trace_url and (not trace_url.startswith(("http://", "https://")) or "{trace}" not in trace_url):
        raise UsageError(f"--trace-url {trace_url}: expected an address like https://jaeger.example/trace/{{trace}}")
    pages = contextlib.ExitStack()

    def tell(link: str) -> None:
        output.show({"url": link, "platform": url or "local"}, lambda: link)
        sys.stdout.flush()
        note(f"The link logs one browser in, within ten minutes, to {url or 'the local platform'}. Stop: Ctrl-C")
        if opens:
            click.launch(_page_to(link, pages.enter_context(tempfile.TemporaryDirectory(prefix="aenv-console-"))))

    with pages:
        return interrupts.run(_serve(url, key, port, model, trace_url, tell))


def _page_to(link: str, folder: str) -> str:
    """Write a page that leads to the link, for this user alone; return its path.

    The link itself must not be on a browser's command line, which every user of the machine can read.
    """
    page = Path(folder, "console.html")
    page.write_text(f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={link}">')
    return str(page)


async def _serve(
    url: str | None, key: str | None, port: int, model: str | None, trace_url: str, tell: Callable[[str], None]
) -> int:
    from aenv.console.local_api import LocalApi
    from aenv.console.private_console import PrivateConsole
    from aenv.console.remote_api import RemoteApi
    from aenv.rollout.endpoint import find_model

    chatting = find_model(model)
    api = LocalApi() if url is None else RemoteApi(url, key)
    console = PrivateConsole(api.answer, chatting, trace_url)
    try:
        try:
            await console.listen(port)
        except OSError as error:
            problem = f"cannot listen on 127.0.0.1:{port}: {error.strerror or error}"
            raise UsageError(problem, {"hint": "Choose another port with --port."}) from error
        tell(console.new_link())
        await asyncio.Event().wait()
    finally:
        await console.close()
        await api.close()
    return 0


def _write(target: Path, run: str | None, url: str | None, key: str | None, output: Output) -> int:
    from aenv.console.static_site import write_site
    from aenv.trajectory.platform_trajectories import PlatformTrajectories
    from aenv.trajectory.store import TrajectoryStore

    with TrajectoryStore.open() if url is None else PlatformTrajectories(url, key) as store:
        newest = store.runs(limit=1) if run is None else []
        if run is None and not newest:
            raise NotFound("no run was recorded")
        name = run or newest[0].id
        count = write_site(target, store, name)
    result = {"path": str(target), "run": name, "episodes": count}
    output.show(result, lambda: f"{count} episodes in {target}; look: python3 -m http.server --directory {target}")
    return 0
