"""``aenv doctor``: check what this machine can do."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from aenv.cli.output import Output, output_option

if TYPE_CHECKING:
    from aenv.platform.operations.host_audit import HostLeftover
    from aenv.platform.operations.host_report import HostFinding

CANNOT = 3


@click.command(name="doctor")
@output_option
def command(output: Output) -> int:
    """Check what this machine can do, and what is missing.

    Also what servers have left behind on it, and how to fix each. The exit code is 3 where no sandboxes can be made.
    """
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


def _text(found: list[HostFinding], left: list[HostLeftover]) -> str:
    marks = {"ok": click.style("ok     ", fg="green"), "missing": click.style("missing", fg="yellow")}
    lines = []
    for each in found:
        lines.append(f"{marks.get(each.state, click.style('BROKEN ', fg='red'))}  {each.what}: {each.said}")
        if each.hint:
            lines.append(f"         {each.hint}")
    if not left:
        lines.append(f"{marks['ok']}  leftovers: none")
    for one in left:
        lines += [f"{click.style('LEFT   ', fg='red')}  {one.kind}: {one.what}", f"         {one.hint}"]
    return "\n".join(lines)
