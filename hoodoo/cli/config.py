"""``hoodoo config``: the value of each setting, and its source."""

from __future__ import annotations

import click

from filegroups.writing.row_checks import bucket_range_text
from hoodoo.cli.invocation import PROBLEMS_FOUND, CommandGroup, Invocation, reading
from hoodoo.configuration import (
    EffectiveValue,
    Problem,
    Severity,
    check,
    describe,
    problem_of,
)
from hoodoo.factory import properties_of_table
from hoodoo.services import service_options, services_of
from hoodoo.write_requests import operation_of, write_request_of
from hoodoo.writer import agreement_of, refuse_unshared_lock
from lockproviders.registry import registry_for
from timeline.errors import HoodooError, SettingError
from timeline.properties.options import DEFAULT_LAYER, PropertySet
from timeline.writer_registry import refuse_disagreement


@click.group(cls=CommandGroup)
def config() -> None:
    """Show and check the settings of a writer."""


@config.command()
@click.argument("address", metavar="[TABLE]", required=False)
@click.option("--set-only", is_flag=True, help="Leave out defaults.")
@reading
def show(invocation: Invocation, *, address: str | None, set_only: bool) -> None:
    """
    Show the effective value of each setting.

    'from' is the layer of the value. 'effect' is done, refused, warned (hoodoo does not do it),
    none (by design) or unknown. Secrets are hidden.
    """
    values = describe(_properties(invocation, address), more=service_options())
    if set_only:
        values = tuple(value for value in values if value.layer != DEFAULT_LAYER)
    if invocation.printer.for_people:
        for each in values:
            invocation.printer.line(f"{each.key} = {each.value}", style="bold")
            invocation.printer.text_below(f"from {each.layer}; {_effect_text(each)}")
        return
    invocation.printer.document(
        {
            "values": [
                {
                    "key": each.key,
                    "value": each.value,
                    "layer": each.layer,
                    "default": each.default,
                    "effect": each.effect,
                    "why": each.why,
                }
                for each in values
            ]
        }
    )


def _effect_text(value: EffectiveValue) -> str:
    return f"{value.effect}: {value.why}" if value.why else value.effect


@config.command("check")
@click.argument("address", metavar="[TABLE]", required=False)
@reading
def check_command(invocation: Invocation, *, address: str | None) -> None:
    """
    Check the settings.

    Exit code 5 if a writer would reject them. With a TABLE they must also agree with the
    settings of live writers.
    """
    problems = _problems(invocation, address)
    ok = all(problem.severity is not Severity.ERROR for problem in problems)
    printer = invocation.printer
    if printer.for_people:
        if problems:
            printer.grid(
                ("severity", "kind", "from", "key", "text"),
                [(p.severity.value, p.kind, p.layer, p.key, p.message) for p in problems],
            )
        printer.line("a writer accepts these settings" if ok else "a writer rejects these settings")
    else:
        printer.document(
            {
                "ok": ok,
                "problems": [
                    {
                        "severity": problem.severity.value,
                        "kind": problem.kind,
                        "key": problem.key,
                        "layer": problem.layer,
                        "message": problem.message,
                    }
                    for problem in problems
                ],
            }
        )
    if not ok:
        raise click.exceptions.Exit(PROBLEMS_FOUND)


def _problems(invocation: Invocation, address: str | None) -> tuple[Problem, ...]:
    try:
        properties = _properties(invocation, address)
    except SettingError as error:  # the table differs from the settings
        return (problem_of(error),)
    problems = check(properties, more=service_options(), makes=(services_of,))
    if address is not None and all(one.severity is not Severity.ERROR for one in problems):
        return (*_refused_there(invocation, address), *problems)
    return problems


def _refused_there(invocation: Invocation, address: str) -> tuple[Problem, ...]:
    """Return the problem that a writer with these settings has now; it writes nothing."""
    try:
        with invocation.open_table(address) as opened:
            context, settings = opened.context, opened.settings
            # The checks of each write, with the configured operation.
            write_request_of(settings, opened.config, operation_of(settings))
            refuse_unshared_lock(settings, context.ports.lock, registry_for(opened.properties))
            context.identity.assert_decided_here(context.ports)
            agreement = agreement_of(settings, context.ports, context.zone)
            refuse_disagreement(context, agreement, bucket_range_text(settings))
    except HoodooError as error:
        return (problem_of(error),)
    return ()


def _properties(invocation: Invocation, address: str | None) -> PropertySet:
    if address is None:
        return invocation.layers.load()
    return properties_of_table(address, invocation.layers)[1]
