"""``aenv doctor``: check what this machine can do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from aenv.cli.output import Output, output_option

if TYPE_CHECKING:
    from aenv.adapters.installed import PackageFinding
    from aenv.engines.kubernetes.cluster_report import ClusterFinding
    from aenv.platform.operations.host_audit import HostLeftover
    from aenv.platform.operations.host_report import HostFinding

CANNOT = 3


@click.command(name="doctor")
@click.option("--for", "framework", metavar="FRAMEWORK", help="Check what an adapter needs, such as trl or verl.")
@output_option
def command(framework: str | None, output: Output) -> int:
    """Check what this machine can do, and what is missing.

    Also what servers have left behind on it, and how to fix each. The exit code is 3 where no sandboxes can be made.
    With --for, only the packages of an agent framework or a trainer are checked; the exit code is 3 where one is
    missing or does not fit.
    """
    if framework is not None:
        return _check_framework(framework, output)
    from aenv.client.local_lease import LocalPaths, health
    from aenv.platform.operations.host_audit import HostAudit
    from aenv.platform.operations.host_report import examine

    where = LocalPaths.of_user()
    found, left = examine(), HostAudit(where.runtime).all()
    local = health(where)
    can = found[0].state == "ok"
    said = {
        "native": can,
        "findings": [asdict(each) for each in found],
        "local_platform": {"running": local is not None, "version": (local or {}).get("version")},
        "leftovers": [asdict(each) for each in left],
    }
    output.show(said, lambda: _text(found, left))
    return 0 if can else CANNOT


def _check_framework(name: str, output: Output) -> int:
    from aenv.adapters.installed import examine

    found = examine(name)
    works = all(each.state == "ok" for each in found)
    said = {"for": name, "works": works, "findings": [asdict(each) for each in found]}
    output.show(said, lambda: "\n".join(finding_lines(found)))
    return 0 if works else CANNOT


def finding_lines(found: Sequence[HostFinding | PackageFinding | ClusterFinding]) -> Iterator[str]:
    """Yield a line for each finding, and a second one for what to do."""
    marks = {"ok": click.style("ok     ", fg="green"), "missing": click.style("missing", fg="yellow")}
    for each in found:
        yield f"{marks.get(each.state, click.style('BROKEN ', fg='red'))}  {each.what}: {each.said}"
        if each.hint:
            yield f"         {each.hint}"


def _text(found: list[HostFinding], left: list[HostLeftover]) -> str:
    lines = [*finding_lines(found)]
    if not left:
        lines.append(f"{click.style('ok     ', fg='green')}  leftovers: none")
    for one in left:
        lines += [f"{click.style('LEFT   ', fg='red')}  {one.kind}: {one.what}", f"         {one.hint}"]
    return "\n".join(lines)
