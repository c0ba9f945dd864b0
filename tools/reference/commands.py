"""The page of the command line, from the commands' own help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from hoodoo.cli.app import main

HEAD = """# Command line

Made by `python -m tools.reference` from the code; do not edit by hand.

`hoodoo COMMAND --help` prints the same texts. [JSON](json.md) describes the output for programs.

"""
#: Options that nearly every command has are listed once.
SHARED = ("--props", "--hoodie-conf", "--output", "--quiet", "--debug")
CHANGING = ("--dry-run", "--yes")


def walk(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Yield each command with its full name, a group before its members."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name)
        for member in command.list_commands(context):
            found = command.get_command(context, member)
            assert found is not None
            yield from walk(found, f"{name} {member}")


def cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def spelled(option: click.Option) -> str:
    """Return an option with its forms and its value, as a cell."""
    value = ""
    if not option.is_flag:
        if isinstance(option.type, click.Choice):
            value = " " + "\\|".join(str(one) for one in option.type.choices)
        else:
            value = f" {option.make_metavar(click.Context(main))}"
    return f"`{', '.join(sorted(option.opts, key=len))}{value}`"


def meaning(option: click.Option) -> str:
    """Return the help of an option with its default, as a cell."""
    text = cell(option.help or "")
    default = option.default
    if isinstance(default, int | float | str) and not option.is_flag and "Default" not in text:
        text += f" Default: `{default}`."
    if option.required:
        text += " Required."
    return text


def options_of(command: click.Command) -> list[click.Option]:
    """Return the options of a command that its section lists."""
    return [
        one
        for one in command.params
        if isinstance(one, click.Option) and not one.hidden and "--help" not in one.opts
    ]


def table(options: list[click.Option]) -> str:
    """Return a table of options."""
    rows = "".join(f"| {spelled(one)} | {meaning(one)} |\n" for one in options)
    return f"\n| Option | Meaning |\n|---|---|\n{rows}"


def paragraphs(text: str) -> str:
    """Return the help of a command as Markdown; a part that keeps its lines becomes a block."""
    parts = []
    for part in inspect.cleandoc(text).split("\n\n"):
        if part.startswith("\b"):
            parts.append("```text\n" + part.removeprefix("\b").strip("\n") + "\n```")
        else:
            parts.append(cell(re.sub(r"(?<![\w`])(--[a-z][a-z-]+)(?![\w`])", r"`\1`", part)))
    return "\n\n".join(parts) + "\n"


def section(name: str, command: click.Command) -> str:
    """Return the section of one command."""
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)]).replace("[OPTIONS] ", "")
    text = f"\n## {name}\n\n{paragraphs(command.help or '')}\n"
    text += f"```text\n{usage.replace(' [OPTIONS]', '')}\n```\n"
    listed = options_of(command)
    shared = [one for one in listed if set(one.opts) & set(SHARED)]
    changing = [one for one in listed if set(one.opts) & set(CHANGING)]
    own = [one for one in listed if one not in shared and one not in changing]
    if own:
        text += table(own)
    if shared:
        also = " and of [commands that change a table](#options-of-most-commands)"
        text += f"\nAlso the [options of most commands](#options-of-most-commands){also if changing else ''}.\n"
    return text


def page() -> str:
    """Return the page."""
    found = {name: one for name, one in walk(main, "hoodoo") if not isinstance(one, click.Group)}
    by_form = {
        form: one for command in found.values() for one in options_of(command) for form in one.opts
    }
    contents = "- [Exit codes and names of instants](#exit-codes-and-names-of-instants)\n"
    contents += "- [Options of most commands](#options-of-most-commands)\n"
    contents += "".join(f"- [{name}](#{name.replace(' ', '-')})\n" for name in found)
    head = "\n## Exit codes and names of instants\n\n" + paragraphs(main.help or "")
    common = "\n## Options of most commands\n" + table([by_form[one] for one in SHARED])
    common += "\nCommands that change a table also have these:\n"
    common += table([by_form[one] for one in CHANGING])
    return HEAD + contents + head + common + "".join(section(*one) for one in found.items())
