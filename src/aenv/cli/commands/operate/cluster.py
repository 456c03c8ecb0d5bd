"""``aenv cluster``: look at the Kubernetes cluster that instances run in."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

import click

from aenv.cli.command_group import CommandGroup
from aenv.cli.commands.setup.doctor import CANNOT, finding_lines
from aenv.cli.output import Output, columns, output_option


@click.group(cls=CommandGroup, name="cluster")
def command() -> None:
    """Check a Kubernetes cluster for `aenv serve --engine kubernetes`, and show what runs in it.

    The cluster and the namespace are those of KUBECONFIG and of the AENV_KUBERNETES_ variables.
    """


@command.command()
@output_option
def doctor(output: Output) -> int:
    """Check the connection, the rights and the settings of the engine.

    The exit code is 3 where no instance could be started.
    """
    from aenv.engines.kubernetes.cluster_report import examine
    from aenv.engines.kubernetes.kubernetes_settings import KubernetesSettings

    found = asyncio.run(examine(KubernetesSettings.from_environment()))
    works = all(each.state != "broken" for each in found)
    said = {"works": works, "findings": [asdict(each) for each in found]}
    output.show(said, lambda: "\n".join(finding_lines(found)))
    return 0 if works else CANNOT


@command.command()
@output_option
def status(output: Output) -> None:
    """Show the platform servers that run instances in the namespace, and the phases of their pods."""
    from aenv.engines.kubernetes import cluster_report
    from aenv.engines.kubernetes.kubernetes_settings import KubernetesSettings

    found = asyncio.run(cluster_report.status(KubernetesSettings.from_environment()))
    rows = [
        (each.name, each.renewed, ", ".join(f"{count} {phase}" for phase, count in sorted(each.pods.items())) or "none")
        for each in found
    ]
    output.show(
        [asdict(each) for each in found],
        lambda: columns([("ENGINE", "RENEWED", "PODS"), *rows]) if rows else "no engine runs instances here",
    )
