"""``aenv completion``: print a shell completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(name="completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a shell completion script.

    \b
    bash   add to ~/.bashrc:   eval "$(aenv completion bash)"
    zsh    add to ~/.zshrc:    eval "$(aenv completion zsh)"
    fish   run once:           aenv completion fish > ~/.config/fish/completions/aenv.fish
    """
    completion = get_completion_class(shell)
    assert completion is not None
    maker = completion(click.Group(), {}, "aenv", "_AENV_COMPLETE")
    # Not maker.source(): that starts a bash only to look at its version.
    click.echo(maker.source_template % maker.source_vars())
