"""
Combine the layers of the configuration into one set of properties.

A later layer overrides an earlier one. The order is: built-in default, ``hudi-defaults.conf``,
``hoodie.properties`` of the table, ``--props`` files, ``--hoodie-conf k=v``, the Spark session's
``spark.hoodie.*``, options in code.

Only this module reads configuration files and their environment variables. All other code gets a
``PropertySet``, which knows the layer of each value.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

from filegroups.settings.known_keys import (
    effect_of_value,
    hudi_keys,
    key_warnings,
    unsupported_keys,
)
from filegroups.settings.metadata_settings import MetadataTableSettings
from filegroups.settings.read_settings import ReadSettings
from filegroups.settings.settings import WriteSettings, fill_from_preset, keys_of_writes_and_reads
from filegroups.settings.time_settings import TimeSettings
from hoodoo.streamer.settings import StreamerSettings
from lockproviders.hookspecs import LockContext
from lockproviders.registry import (
    SlotSettings,
    provider_options,
    registry_for,
    with_slot_store,
    without_table_properties,
)
from lockproviders.settings import LockSettings
from timeline.errors import CorruptTableError, HoodooError, SettingError, UnsafeSetupError
from timeline.model.slot import SlotSigning, TamperEvidence
from timeline.properties.options import (
    CODE_LAYER,
    DEFAULT_LAYER,
    TABLE_LAYER,
    Option,
    PropertySet,
    read_option,
)
from timeline.properties.properties_file import parse_properties
from timeline.redaction import redact
from timeline.rules.conflicts import SIMPLE, STRATEGIES, ConflictStrategy, find_strategy
from timeline.storage.local import LocalStorage
from timeline.storage.object_client import ObjectSettings
from timeline.system import SystemClock, SystemIds

COMMAND_LINE_LAYER: Final = "--hoodie-conf"
SESSION_LAYER: Final = "spark session"

CONF_FOLDER_VARIABLE: Final = "HUDI_CONF_DIR"
CONF_FILE: Final = "hudi-defaults.conf"
CONF_FOLDER: Final = Path("/etc/hudi/conf")  # Hudi's default folder; optional
_INCLUDE: Final = re.compile(r"^[ \t]*include[ \t]*[=:][ \t]*(\S[^\r\n]*)", re.MULTILINE)
_INCLUDES_MAX: Final = 20  # one inside the other
FILE_BYTES_MAX: Final = 1 << 20  # SEC14; real files have a few hundred lines

#: Spellings of the options that a table's own file cannot set, in lower case.
_CALLERS_ALONE: Final = frozenset(
    text.casefold()
    for settings in (WriteSettings, ReadSettings, LockSettings)
    for option in settings.options.values()
    if option.caller_only
    for text in option.spellings
)
_SESSION_PREFIXES: Final = ("spark.hoodie.", "spark.hoodoo.")
_SESSION_STORES: Final = "spark.hadoop.fs."  # the session's options of object stores

PropertySource: TypeAlias = str | os.PathLike[str] | Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveValue:
    """One line of ``hoodoo config show``; ``value`` is redacted (SEC5)."""

    key: str
    value: str | None
    layer: str
    default: str | None
    effect: str  # of ``Effect``, with this value
    why: str


class Severity(Enum):
    """The effect of a problem: an error stops a write, a warning does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One finding of ``hoodoo config check``."""

    severity: Severity
    kind: str
    key: str
    layer: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Layers:
    """
    The sources of a caller's properties, without the table's own.

    Args:
        props: Properties files or mappings, later ones win; a mapping is the layer ``code``.
        hoodie_conf: Texts ``key=value`` from the command line.
        session: The Spark session's configuration. Only ``spark.hoodie.*`` and
            ``spark.hoodoo.*`` count, without ``spark.``, and ``spark.hadoop.fs.*`` (options of
            object stores), without ``spark.hadoop.``.
        code: Options given in code; an enum member counts as its value.
        environment: Holds ``HUDI_CONF_DIR``; None for the environment of the process.
        warns: Whether opening warns of keys without effect.
    """

    props: tuple[PropertySource, ...] = ()
    hoodie_conf: tuple[str, ...] = ()
    session: Mapping[str, str] | None = None
    code: Mapping[str, object] | None = None
    environment: Mapping[str, str] | None = None
    warns: bool = True

    def with_code(self, code: Mapping[str, object]) -> Layers:
        """Return these layers with further options of the layer ``code``."""
        return replace(self, code={**(self.code or {}), **code})

    def load(self, table: Mapping[str, str] | None = None) -> PropertySet:
        """
        Combine all layers; the table's layer is between the defaults and the caller's.

        Args:
            table: Content of the table's ``hoodie.properties``.

        Raises:
            SettingError: A file is missing, unreadable or damaged, a text is no ``key=value``,
                the command line holds a secret (SEC5), or a layer contradicts itself.

        Outside: reads ``hudi-defaults.conf`` and each file of ``props`` once.
        """
        properties = PropertySet()
        defaults = _defaults_file(self.environment)
        if defaults is not None:
            properties = properties.with_layer(str(defaults), _read_file(defaults))
        if table is not None:
            own = {key: text for key, text in table.items() if not _is_callers_alone(key)}
            properties = properties.with_layer(TABLE_LAYER, own)
        for source in self.props:
            if isinstance(source, Mapping):
                properties = properties.with_layer(CODE_LAYER, source)
            else:
                path = Path(source)
                properties = properties.with_layer(str(path), _read_file(path))
        if self.hoodie_conf:
            properties = properties.with_layer(COMMAND_LINE_LAYER, _command_line(self.hoodie_conf))
        if self.session is not None:
            properties = properties.with_layer(SESSION_LAYER, _session(self.session))
        if self.code is not None:
            code = {
                key: value.value if isinstance(value, Enum) else value
                for key, value in self.code.items()
            }
            properties = properties.with_layer(CODE_LAYER, code)
        return properties


def _is_callers_alone(key: str) -> bool:
    """Return whether a table's own file cannot set the key: its authors could loosen it (SEC4)."""
    return key.strip().casefold() in _CALLERS_ALONE


def describe(properties: PropertySet, *, more: Iterable[Option] = ()) -> tuple[EffectiveValue, ...]:
    """
    Return each effective value and default with its layer, sorted by key.

    Args:
        properties: All layers.
        more: Options that services and plug-ins declare.

    Raises:
        SettingError: A layer spells one option twice with different values.
    """
    rows: dict[str, EffectiveValue] = {}
    spelled: set[str] = set()
    declared = _declared(_options(properties, more))
    of_preset = _of_preset(properties)
    for option in _options(properties, more):
        found = properties.find(option)
        value, layer = of_preset.get(option.key, (option.default, DEFAULT_LAYER))
        if found is not None:
            value, layer = found[1], found[2]
        spelled.update(text.casefold() for text in option.spellings)
        becomes = effect_of_value(option.key, value or "", declared)
        rows[option.key] = EffectiveValue(
            key=option.key,
            value=None if value is None else redact(option.key, value),
            layer=layer,
            default=option.default,
            effect=becomes.effect.value,
            why=becomes.why,
        )
    for key, value in properties.items():
        if key.casefold() not in spelled:
            known = hudi_keys().get(key.casefold())
            layer = properties.layer_of(key)
            becomes = effect_of_value(key, value, declared)
            rows[key] = EffectiveValue(
                key=key,
                value=redact(key, value),
                layer=layer,
                default=None if known is None else known.default,
                effect="of the table" if layer == TABLE_LAYER else becomes.effect.value,
                why="" if layer == TABLE_LAYER else becomes.why,
            )
    return tuple(rows[key] for key in sorted(rows))


def _of_preset(properties: PropertySet) -> dict[str, tuple[str | None, str]]:
    """Return by key the values and layer of a retry preset; ``check`` reports a wrong preset."""
    option = WriteSettings.options["retry_preset"]
    found = properties.find(option)
    name = "" if found is None else found[1].strip().casefold()
    if name not in (option.choices or ()):
        return {}
    values: dict[str, Any] = {"retry_preset": name}
    origins: dict[str, str] = {}
    fill_from_preset(values, origins)
    return {
        WriteSettings.options[field].key: (str(values[field]), layer)
        for field, layer in origins.items()
    }


def check(
    properties: PropertySet,
    *,
    more: Iterable[Option] = (),
    makes: Iterable[Callable[[PropertySet], object]] = (),
) -> tuple[Problem, ...]:
    """
    Return each problem of a configuration, errors first; empty if a write may use it.

    Args:
        properties: All layers.
        more: Options that services and plug-ins declare.
        makes: Further builders, which refuse properties that contradict each other.
    """
    options = _options(properties, more)
    errors: dict[tuple[str, str], Problem] = {}

    def note(error: HoodooError) -> None:
        problem = problem_of(error)
        errors.setdefault((problem.kind, problem.key), problem)

    for option in options:
        try:
            read_option(properties, option)
        except SettingError as error:
            note(error)
    for refused in unsupported_keys(properties):
        errors.setdefault(
            ("unsupported_setting", refused.key),
            Problem(
                severity=Severity.ERROR,
                kind="unsupported_setting",
                key=refused.key,
                layer=refused.layer,
                message=refused.reason,
            ),
        )
    builds: tuple[Callable[[PropertySet], object], ...] = (
        WriteSettings.from_properties,
        ReadSettings.from_properties,
        MetadataTableSettings.from_properties,
        LockSettings.from_properties,
        slot_signing_of,
        *TRIALS,
        *makes,
    )
    for build in builds:
        try:
            build(properties)
        except HoodooError as error:
            note(error)
    warnings = [
        Problem(
            severity=Severity.WARNING, kind="setting_ignored", key="", layer="", message=message
        )
        for message in key_warnings(properties, _declared(options))
    ]
    return (*errors.values(), *warnings)


def problem_of(error: HoodooError) -> Problem:
    """Return an error as a problem of the settings; ``key`` has all keys that it names."""
    named = error.fields.get("differences") or {error.fields.get("key", ""): ""}
    return Problem(
        severity=Severity.ERROR,
        kind=error.kind,
        key=",".join(str(key) for key in named),
        layer=str(error.fields.get("layer", "")),
        message=error.message,
    )


def declared_keys(more: Iterable[Option] = ()) -> frozenset[str]:
    """Return all spellings of the options that hoodoo reads, in lower case."""
    return _declared(_options(PropertySet(), more))


def _declared(options: Iterable[Option]) -> frozenset[str]:
    """Return all spellings that hoodoo reads, in lower case, of all lock providers."""
    known = (*options, *provider_options())
    spellings = (text.casefold() for option in known for text in option.spellings)
    return keys_of_writes_and_reads().union(spellings)


def _options(properties: PropertySet, more: Iterable[Option]) -> tuple[Option, ...]:
    """Return each declared option once, in a fixed order; of lock providers only the named one."""
    provider = properties.get_option(LockSettings.options["provider"])
    everything = (
        *provider_options(provider or ""),
        *WriteSettings.options.values(),
        *ReadSettings.options.values(),
        *MetadataTableSettings.options.values(),
        *TimeSettings.options.values(),
        *ObjectSettings.options.values(),
        *SlotSettings.options.values(),
        *LockSettings.options.values(),
        *StreamerSettings.options.values(),
        *more,
    )
    return tuple({option.key: option for option in everything}.values())


def _defaults_file(environment: Mapping[str, str] | None) -> Path | None:
    if environment is None:
        environment = os.environ  # noqa: TID251 - this module is where the environment comes in
    folder = environment.get(CONF_FOLDER_VARIABLE, "")
    if folder:
        # The user names the folder, so a missing file is an error.
        return Path(folder) / CONF_FILE
    usual = CONF_FOLDER / CONF_FILE
    return usual if usual.is_file() else None


def local_path(path: str | Path) -> Path:
    """Return the path of a local file, which may be given as ``file:///path``."""
    text = str(path)
    return Path(text.removeprefix("file:") if text.startswith("file:/") else text)


def _read_file(path: Path, including: tuple[Path, ...] = ()) -> dict[str, str]:
    """Return the keys of a file and of those that its ``include`` lines name; its own keys win."""
    path = local_path(path)
    if path.resolve() in including or len(including) > _INCLUDES_MAX:
        _refuse_file(path, "the file includes itself, remove the include line", None)
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        _refuse_file(path, "the properties file does not exist, correct the path", error)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        _refuse_file(path, f"the properties file cannot be read, {reason.lower()}", error)
    if len(content) > FILE_BYTES_MAX:
        _refuse_file(path, f"a properties file has at most {FILE_BYTES_MAX} bytes", None)
    try:
        # The format is ISO-8859-1 and users write UTF-8: escape all other characters.
        text = content.decode("utf-8-sig")
        ascii_text = content if content.isascii() else _escape(text)
        found = parse_properties(ascii_text, path=str(path), bytes_max=8 * FILE_BYTES_MAX)
    except (UnicodeDecodeError, CorruptTableError) as error:
        _refuse_file(path, "the properties file is damaged, write it as key=value lines", error)
    found.pop("include", None)
    included: dict[str, str] = {}
    for name in _INCLUDE.findall(text):
        included |= _read_file(path.parent / name.strip(), (*including, path.resolve()))
    return included | found


def _escape(text: str) -> bytes:
    units = text.encode("utf-16-be")
    characters = []
    for high, low in zip(units[::2], units[1::2], strict=True):
        unit = high << 8 | low
        characters.append(chr(unit) if unit < 128 else f"\\u{unit:04x}")
    return "".join(characters).encode("ascii")


def _command_line(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise SettingError(
                f"write it as key=value: {redact(text, text)}",
                kind="setting_form",
                key=key,
                value="",
                layer=COMMAND_LINE_LAYER,
                suggestion="key=value",
            )
        if redact(key, value) != value:
            raise SettingError(
                "every user of this host can read a secret on the command line: put it into a "
                f"properties file: {key}",
                kind="secret_on_command_line",
                key=key,
                value="***",
                layer=COMMAND_LINE_LAYER,
                suggestion="a properties file with mode 0600",
            )
        found[key] = value
    return found


def _session(session: Mapping[str, str]) -> dict[str, str]:
    found = {
        key[len("spark.") :]: value
        for key, value in session.items()
        if key.casefold().startswith(_SESSION_PREFIXES)
    }
    stores = {
        key[len("spark.hadoop.") :]: value
        for key, value in session.items()
        if key.casefold().startswith(_SESSION_STORES)
    }
    return {**stores, **found}


def _refuse_file(path: Path, message: str, cause: Exception | None) -> NoReturn:
    raise SettingError(
        f"{message}: {path}",
        kind="settings_file",
        key="",
        value=str(path),
        layer=str(path),
        suggestion=message,
    ) from cause


# ---- Checks of settings that a first write would refuse, without a table and without a server
# Each check builds the lock, slot store or conflict strategy of a table on a local disk and drops
# it. Errors that need the table or a server show later.


def _strategy(properties: PropertySet) -> None:
    conflict_strategy(WriteSettings.from_properties(properties), properties)


def _lock(properties: PropertySet) -> None:
    own = without_table_properties(properties)
    provider = LockSettings.from_properties(own).provider
    if not provider:
        return  # the table's storage chooses the provider
    entry = registry_for(properties).find(provider)
    if entry.name in _AT_THE_TABLE:
        return
    if own.keys().isdisjoint(_TABLE_NAMES):  # the table gives its name
        own = own.with_layer(TABLE_LAYER, {_TABLE_NAMES[0]: "table"})
    entry.factory(_context(own)).close()


_TABLE_NAMES = ("hoodie.table.name", "hoodie.datasource.write.table.name")
#: Lock providers that need the table's own address.
_AT_THE_TABLE = frozenset({"storage_based"})


def _context(properties: Mapping[str, str]) -> LockContext:
    return LockContext(
        properties=properties,
        table_identity="file:/table",
        table_address="file:/table",
        table_folder="/table",
        clock=SystemClock(),
        ids=SystemIds(),
    )


def _slots(properties: PropertySet) -> None:
    with_slot_store(LocalStorage("/table"), properties, clock=SystemClock(), ids=SystemIds())


#: Each check raises a ``HoodooError``.
TRIALS: tuple[Callable[[PropertySet], None], ...] = (_strategy, _lock, _slots)


# ----------------------------------------------------------------
# The conflict strategy that properties name: a built-in one, or one of a plug-in that the caller
# allows. Only a name that is not built in loads plug-ins.


def conflict_strategy(settings: WriteSettings, properties: PropertySet) -> ConflictStrategy:
    """
    Return the strategy of this name; plug-ins are loaded for a name that is not built in.

    Raises:
        SettingError: No strategy has this name.
        UnsafeSetupError: An allowed plug-in cannot be used.
    """
    name = settings.conflict_strategy
    if name in SIMPLE.class_names:
        return SIMPLE
    found = find_strategy(name)
    if found is not None:
        return found
    offered = registry_for(properties).offers("conflict_strategies")
    found = find_strategy(name, offered)
    if found is None:
        known = ", ".join(each.name for each in (*STRATEGIES, *offered))
        settings.refuse(
            "conflict_strategy",
            "this conflict strategy is unknown",
            f"use one of {known}, or allow the plug-in that has it (hoodoo.plugins.allow)",
            "setting_value",
        )
    return found


# ---- Signing of slots, from properties: the tamper evidence and the signing keys (SLOT-7)
# Keys come from a file that only its owner may read, or from the environment. They are never a
# property, because tables, logs and command lines show properties. The table's own layer does not
# count: a user with write access to the table's folder could switch signing off.

KEY_VARIABLE: Final = "HOODOO_TAMPER_KEY"
_KEY_CHARACTERS_MIN: Final = 32
_FILE_BYTES_MAX: Final = 64 * 1024
_KEY_FILE: Final = SlotSettings.options["tamper_key_file"]


def slot_signing_of(
    properties: PropertySet, *, environment: Mapping[str, str] | None = None
) -> SlotSigning:
    """
    Return the tamper evidence that a process adds to its slots, and its keys.

    Args:
        properties: All layers; the table's own does not count.
        environment: Holds the key if no file is named; None for the environment of the process.

    Raises:
        SettingError: The option asks for signatures, and no key is given.
        UnsafeSetupError: The key is not readable, readable by other users, or too short.

    Outside: reads the key file once.
    """
    own = properties.without_layer(TABLE_LAYER)
    option = SlotSettings.options["tamper_evidence"]
    evidence = TamperEvidence(read_option(own, option) or option.default)  # empty: not set
    file = read_option(own, _KEY_FILE)
    if environment is None:
        environment = os.environ  # noqa: TID251 - a secret that no property may hold
    if file:
        keys = _keys_in(_content_of(Path(str(file))), f"{_KEY_FILE.key}={file}")
    else:
        keys = _keys_in(environment.get(KEY_VARIABLE, ""), KEY_VARIABLE)
    if evidence is TamperEvidence.HMAC and not keys:
        why = (
            f"slots cannot be signed without a key: name a file with {_KEY_FILE.key}, or set "
            f"{KEY_VARIABLE}"
        )
        raise SlotSettings.refusal(
            own, "tamper_evidence", why, _KEY_FILE.key, kind="setting_contradiction"
        )
    return SlotSigning(evidence=evidence, keys=keys)


def _keys_in(text: str, where: str) -> tuple[bytes, ...]:
    """Return the keys, one a line; the first one signs, the others are older keys."""
    keys = [line.strip() for line in text.splitlines() if line.strip()]
    if any(len(key) < _KEY_CHARACTERS_MIN for key in keys):
        raise _key_error(f"a key has at least {_KEY_CHARACTERS_MIN} characters", where)
    return tuple(key.encode() for key in keys)


def _content_of(path: Path) -> str:
    where = f"{_KEY_FILE.key}={path}"
    try:
        with path.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.read(_FILE_BYTES_MAX).decode("utf-8")
    except (OSError, ValueError) as error:
        raise _key_error(f"it cannot be read ({type(error).__name__})", where) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise _key_error("other users may read it: take their rights away (chmod 600)", where)
    if not text.strip():
        raise _key_error("it is empty: it must contain one key a line", where)
    return text


def _key_error(what: str, where: str) -> UnsafeSetupError:
    return UnsafeSetupError(
        f"the key that signs slots cannot be used: {what}. Correct the file: {where}",
        kind="tamper_key",
        where=where,
    )
