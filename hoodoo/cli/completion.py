"""``hoodoo completion``: the script by which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """
    Print the completion script of a shell.

    \b
    bash: add   eval "$(hoodoo completion bash)"   to ~/.bashrc
    zsh:  add   eval "$(hoodoo completion zsh)"    to ~/.zshrc
    fish: hoodoo completion fish > ~/.config/fish/completions/hoodoo.fish
    """  # noqa: D301 - click needs the control character
    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"no completion for {shell}")
    # click names the variable after the command.
    click.echo(made(ctx.find_root().command, {}, "hoodoo", "_HOODOO_COMPLETE").source())
