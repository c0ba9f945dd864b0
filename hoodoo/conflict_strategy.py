"""
The conflict strategy that properties ask for: one of ours, or of a plug-in that the caller allows.

Its own file, because a name that is not ours loads plug-ins, and nothing else here does.
"""

from __future__ import annotations

from filegroups.settings.settings import WriteSettings
from lockproviders.registry import registry_for
from timeline.errors import SettingError
from timeline.properties.options import PropertySet
from timeline.rules.conflicts import STRATEGIES, ConflictStrategy, find_strategy

__all__ = ["conflict_strategy"]


def conflict_strategy(settings: WriteSettings, properties: PropertySet) -> ConflictStrategy:
    """
    Who yields where both may; a plug-in is heard for a name that is not ours.

    Raises:
        SettingError: Nobody has the strategy.
        UnsafeSetupError: An allowed plug-in cannot be used.
    """
    name = settings.conflict_strategy
    found = find_strategy(name)
    if found is not None:
        return found
    offered = registry_for(properties).offers("conflict_strategies")
    found = find_strategy(name, offered)
    if found is not None:
        return found
    option = WriteSettings.options["conflict_strategy"]
    known = ", ".join(each.name for each in (*STRATEGIES, *offered))
    layer = settings.origin("conflict_strategy")
    raise SettingError(
        f"no such conflict strategy, use one of {known}, or allow the plug-in that has it "
        f"(hoodoo.plugins.allow): {option.key}={name[:200]} (from {layer})",
        kind="setting_value",
        key=option.key,
        value=name,
        layer=layer,
        suggestion=known,
    )
