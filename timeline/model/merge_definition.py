"""
How a table merges two versions of a record: one frozen value from many properties.

Three generations of Hudi define it in three ways (a payload class, a merger's strategy id, a merge
mode). Newer releases read the older ones by a fixed translation (fmt 1.5, 11.1, 11.2), which is
here. ``filegroups.merge`` applies the value to rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import ClassVar, Final

from timeline.errors import CorruptTableError, UnsafeSetupError, UnsupportedTableError
from timeline.model.commit_metadata import MergeMode
from timeline.ports.merger import RecordMerger

MERGE_STRATEGY_IDS: Final[Mapping[MergeMode, str]] = MappingProxyType(
    {
        MergeMode.EVENT_TIME_ORDERING: "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5",
        MergeMode.COMMIT_TIME_ORDERING: "ce9acb64-bde0-424c-9b91-f6ebba25356d",
        MergeMode.CUSTOM: "1897ef5f-18bc-4557-939c-9d6a8afd1519",
    }
)
PAYLOAD_BASED_STRATEGY_ID: Final = "00000000-0000-0000-0000-000000000000"

MERGE_PROPERTY_PREFIX: Final = "hoodie.record.merge.property."
DELETE_FIELD: Final = "hoodie.payload.delete.field"
DELETE_MARKER: Final = "hoodie.payload.delete.marker"
UNAVAILABLE_VALUE: Final = "hoodie.write.partial.update.unavailable.value"
PARTIAL_UPDATE_MODE: Final = "hoodie.table.partial.update.mode"

_PAYLOAD_OF_MODE: Final = {
    MergeMode.EVENT_TIME_ORDERING: "org.apache.hudi.common.model.DefaultHoodieRecordPayload",
    MergeMode.COMMIT_TIME_ORDERING: "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload",
}
_MODE_OF_STRATEGY_ID: Final = {text: mode for mode, text in MERGE_STRATEGY_IDS.items()}
_FIRST_VERSION_OF_MODES: Final = 8


class PartialUpdateMode(Enum):
    """
    The values that a winning record of the full schema takes from the record it replaces (fmt 7).

    Hudi 1.1 and 1.2 know ``IGNORE_DEFAULTS`` and ``FILL_UNAVAILABLE``. The other two names from
    its plans concern columns that a record lacks. Records of the full schema lack none, so for
    them these are the same as ``NONE``.
    """

    NONE = "NONE"
    KEEP_VALUES = "KEEP_VALUES"
    FILL_DEFAULTS = "FILL_DEFAULTS"
    IGNORE_DEFAULTS = "IGNORE_DEFAULTS"
    """A top-level column that has its Avro default keeps the older value."""
    FILL_UNAVAILABLE = "FILL_UNAVAILABLE"
    """A text or binary column that has the unavailable marker keeps the older value."""


_PARTIAL_MODES: Final = {
    **{mode.value: mode for mode in PartialUpdateMode},
    "IGNORE_MARKERS": PartialUpdateMode.FILL_UNAVAILABLE,  # its name before the release
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeDefinition:
    """
    A table's rules for deciding between two versions of one record.

    A merge follows ``mode``, ``ordering_fields``, the delete marker and the partial mode.
    ``strategy_id`` and ``payload_class`` are the table's own names, for messages.

    Attributes:
        mode: The mode to execute. ``CUSTOM`` if only a plug-in can merge: call ``require_known``
            before merging anything.
        ordering_fields: Compared left to right; used in event-time order only.
        delete_field: A column that marks deletes besides ``_hoodie_is_deleted``; None for none.
        delete_marker: The text in it that means delete, compared with the value's text.
        partial_update_mode: What a winner takes from the loser. Defaults of columns come from the
            Avro schema of the winning record.
        unavailable_marker: The text of ``FILL_UNAVAILABLE``.
        precombines: Logs fold as in version 6, by Java's ``preCombine``. Of two log records the
            one with the greater ordering value stays, also if the mode has another rule for a base
            file's row. Any later record replaces a delete.
        precombine_fields: The fields that this compares, and that deletes in logs contain, if the
            payload class names other ordering fields for a base file's row; else empty.
        deletes_by_order: Of a delete and a record the one with the greater ordering value stays,
            although of two records the newer one does: for payload classes that version 8 keeps.
        late_rows_sign: A late record that fills gaps of a newer row writes its meta columns there,
            as ``PartialUpdateAvroPayload`` does.
        strategy_id: The merger's identifier, None if the table names none.
        payload_class: The payload class, of older or upgraded tables.
        merger: A plug-in's merger for mode ``CUSTOM``; see ``merged_by``.
    """

    #: So that pydantic can send a definition to another process.
    __pydantic_config__: ClassVar = {"arbitrary_types_allowed": True}

    mode: MergeMode
    ordering_fields: tuple[str, ...] = ()
    delete_field: str | None = None
    delete_marker: str | None = None
    partial_update_mode: PartialUpdateMode = PartialUpdateMode.NONE
    unavailable_marker: str | None = None
    strategy_id: str | None = None
    payload_class: str | None = None
    precombines: bool = False
    precombine_fields: tuple[str, ...] = ()
    deletes_by_order: bool = False
    late_rows_sign: bool = False
    merger: RecordMerger | None = None

    @property
    def orders(self) -> bool:
        """Whether ordering values decide; without ordering fields the newer wins (fmt 7)."""
        return self.mode is MergeMode.EVENT_TIME_ORDERING and bool(self.ordering_fields)

    @property
    def updates_partially(self) -> bool:
        """Whether a winner of the full schema takes values from the loser."""
        return self.partial_update_mode in (
            PartialUpdateMode.IGNORE_DEFAULTS,
            PartialUpdateMode.FILL_UNAVAILABLE,
        )

    @property
    def is_plain(self) -> bool:
        """Whether the merge mode alone defines the merge."""
        return self.delete_field is None and self.partial_update_mode is PartialUpdateMode.NONE

    def merged_by(self, mergers: Sequence[RecordMerger]) -> MergeDefinition:
        """
        Return the definition with the plug-in's merger if the mode is ``CUSTOM``.

        Args:
            mergers: Of the plug-ins that the caller allows; the table's strategy id or payload
                class chooses among them.

        Raises:
            UnsafeSetupError: Several match (``duplicate_merger``): a guess could merge rows by the
                wrong one.
        """
        if self.mode is not MergeMode.CUSTOM:
            return self
        fitting = [
            each
            for each in mergers
            if self.strategy_id in each.strategy_ids or self.payload_class in each.class_names
        ]
        if len(fitting) > 1:
            raise UnsafeSetupError(
                "several mergers of the allowed plug-ins fit this table: allow one plug-in only, "
                "or name the Java class of one in "
                "hoodie.write.record.merge.custom.implementation.classes: "
                f"{', '.join(type(each).__name__ for each in fitting)} for {self._merger_text}",
                kind="duplicate_merger",
                strategy_id=self.strategy_id,
                payload_class=self.payload_class,
            )
        return replace(self, merger=fitting[0] if fitting else None)

    def require_known(self) -> None:
        """
        Refuse a merge if neither this release nor an allowed plug-in knows its rules.

        Raises:
            UnsupportedTableError: ``kind`` ``custom_merger``; fields ``strategy_id``,
                ``payload_class``.
        """
        if self.mode is not MergeMode.CUSTOM or self.merger is not None:
            return
        raise UnsupportedTableError(
            "this table merges its rows with a custom class, and no allowed plug-in fits it. "
            "Install a plug-in like examples/record_merger_plugin and allow its distribution with "
            f"hoodoo.plugins.allow, or merge with the engine that has the class: {self._merger_text}",
            kind="custom_merger",
            strategy_id=self.strategy_id,
            payload_class=self.payload_class,
        )

    @property
    def _merger_text(self) -> str:
        """The table's name for its merger."""
        names = (("strategy", self.strategy_id), ("payload class", self.payload_class))
        return ", ".join(f"{what} {name}" for what, name in names if name) or "no name"


_EVENT: Final = MergeDefinition(mode=MergeMode.EVENT_TIME_ORDERING)
_COMMIT: Final = MergeDefinition(mode=MergeMode.COMMIT_TIME_ORDERING)
_DEBEZIUM: Final = replace(_EVENT, delete_field="_change_operation_type", delete_marker="d")
_MODEL: Final = "org.apache.hudi.common.model."

_SIGNING_PAYLOAD: Final = _MODEL + "PartialUpdateAvroPayload"

#: How Hudi 1.1 and later merge for the payload classes that merge modes replaced.
_DEFINITION_OF_PAYLOAD: Final[Mapping[str, MergeDefinition]] = MappingProxyType(
    {
        _MODEL + "DefaultHoodieRecordPayload": _EVENT,
        _MODEL + "EventTimeAvroPayload": _EVENT,
        _MODEL + "OverwriteWithLatestAvroPayload": _COMMIT,
        _MODEL + "PartialUpdateAvroPayload": replace(
            _EVENT, partial_update_mode=PartialUpdateMode.IGNORE_DEFAULTS
        ),
        _MODEL + "OverwriteNonDefaultsWithLatestAvroPayload": replace(
            _COMMIT, partial_update_mode=PartialUpdateMode.IGNORE_DEFAULTS
        ),
        _MODEL + "AWSDmsAvroPayload": replace(_COMMIT, delete_field="Op", delete_marker="D"),
        _MODEL + "debezium.MySqlDebeziumAvroPayload": replace(
            _DEBEZIUM, ordering_fields=("_event_bin_file", "_event_pos")
        ),
        _MODEL + "debezium.PostgresDebeziumAvroPayload": replace(
            _DEBEZIUM,
            ordering_fields=("_event_lsn",),
            partial_update_mode=PartialUpdateMode.FILL_UNAVAILABLE,
            unavailable_marker="__debezium_unavailable_value",
        ),
    }
)


#: Payload classes that moved: the name until Hudi 1.0, and that of later releases.
MOVED_PAYLOADS: Final[Mapping[str, str]] = MappingProxyType(
    {"org.apache.hudi.payload.AWSDmsAvroPayload": _MODEL + "AWSDmsAvroPayload"}
)


def known_payloads() -> Mapping[str, MergeDefinition]:
    """Return the merge definition of each known payload class of Hudi, by full name."""
    return _DEFINITION_OF_PAYLOAD


def definition_of_payload(payload_class: str) -> MergeDefinition | None:
    """Return the merge definition of a payload class of Hudi; None for any other class."""
    name = MOVED_PAYLOADS.get(payload_class, payload_class)
    found = _DEFINITION_OF_PAYLOAD.get(name.replace("com.uber.hoodie.", "org.apache.hudi."))
    return None if found is None else replace(found, payload_class=name)


def merge_definition_of(
    properties: Mapping[str, str], *, table_version: int, path: str = ".hoodie/hoodie.properties"
) -> MergeDefinition:
    """
    Derive the merge definition of a table of version 6, 8 or 9.

    Args:
        properties: All of ``hoodie.properties``.
        table_version: Decides which of several properties counts: the payload class in version 6
            and 9, the strategy id in version 8.
        path: The path that errors name.

    Raises:
        CorruptTableError: A mode is unknown, only one of delete field and marker exists, or
            properties contradict each other (``merge_mode_contradiction``, fields ``stated``,
            ``inferred``).

    Spec: fmt 1.5, 11.1, 11.2.
    """
    payload = properties.get("hoodie.compaction.payload.class") or None
    strategy_id = (
        properties.get("hoodie.record.merge.strategy.id")
        or properties.get("hoodie.compaction.record.merger.strategy")
        or None
    )
    ordering = _names(
        properties.get("hoodie.table.ordering.fields")
        or properties.get("hoodie.table.precombine.field")
        or ""
    )
    mode = _mode(properties, payload, strategy_id, ordering, table_version=table_version, path=path)
    known = definition_of_payload(payload) if payload else None
    rules = MergeDefinition(mode=mode, ordering_fields=ordering)
    # Version 6 writes the id of its only merger for every payload; the payload decides (fmt 11.2).
    by_payload = _by_payload(strategy_id) or table_version < _FIRST_VERSION_OF_MODES
    if known is not None and (mode is not MergeMode.CUSTOM or by_payload):
        rules = replace(
            known,
            ordering_fields=known.ordering_fields or ordering,
            deletes_by_order=table_version == _FIRST_VERSION_OF_MODES and not known.is_plain,
            late_rows_sign=payload == _SIGNING_PAYLOAD and table_version <= _FIRST_VERSION_OF_MODES,
        )
    precombines = table_version < _FIRST_VERSION_OF_MODES
    return _with_merge_properties(
        replace(
            rules,
            strategy_id=strategy_id,
            payload_class=payload or properties.get("hoodie.table.legacy.payload.class") or None,
            precombines=precombines,
            precombine_fields=ordering if precombines and ordering != rules.ordering_fields else (),
        ),
        properties,
        path,
    )


def version_8_merging(definition: MergeDefinition) -> dict[str, str]:
    """
    Return the properties that define the merge in a new table of version 8.

    In version 8 mode, id and payload must agree, and Java fails without them (fmt 1.5, 10). A rule
    that only a payload class defines has mode CUSTOM there, and that payload merges.

    Raises:
        UnsupportedTableError: Only version 9 can define it.
    """
    payload = definition.payload_class
    known = definition_of_payload(payload) if payload is not None else None
    plain = known is None or known.is_plain
    if plain and definition.updates_partially:
        raise UnsupportedTableError(
            "partial updates are a mode of table version 9: create the table with version 9, or "
            f"name a payload class: {definition.partial_update_mode.value}",
            kind="partial_update_mode",
        )
    properties = {
        "hoodie.record.merge.mode": definition.mode.value,
        "hoodie.record.merge.strategy.id": MERGE_STRATEGY_IDS[definition.mode],
        "hoodie.compaction.payload.class": payload or _PAYLOAD_OF_MODE[definition.mode],
    }
    if not plain:
        properties["hoodie.record.merge.mode"] = MergeMode.CUSTOM.value
        properties["hoodie.record.merge.strategy.id"] = PAYLOAD_BASED_STRATEGY_ID
    if definition.ordering_fields:
        properties["hoodie.table.precombine.field"] = definition.ordering_fields[0]
    if plain and definition.delete_field is not None and definition.delete_marker is not None:
        properties[DELETE_FIELD] = definition.delete_field
        properties[DELETE_MARKER] = definition.delete_marker
    return properties


def version_9_merging(definition: MergeDefinition) -> dict[str, str]:
    """Return the properties that define the merge in a new table of version 9 (fmt 11.1)."""
    properties = {"hoodie.record.merge.mode": definition.mode.value}
    optional = {
        "hoodie.table.ordering.fields": ",".join(definition.ordering_fields),
        "hoodie.table.legacy.payload.class": definition.payload_class,
        MERGE_PROPERTY_PREFIX + DELETE_FIELD: definition.delete_field,
        MERGE_PROPERTY_PREFIX + DELETE_MARKER: definition.delete_marker,
        MERGE_PROPERTY_PREFIX + UNAVAILABLE_VALUE: definition.unavailable_marker,
    }
    properties |= {key: text for key, text in optional.items() if text}
    if definition.partial_update_mode is not PartialUpdateMode.NONE:
        properties[PARTIAL_UPDATE_MODE] = definition.partial_update_mode.value
    return properties


def _mode(
    properties: Mapping[str, str],
    payload: str | None,
    strategy_id: str | None,
    ordering: tuple[str, ...],
    *,
    table_version: int,
    path: str,
) -> MergeMode:
    by_payload = _mode_of_payload(payload) if payload else None
    by_id = _MODE_OF_STRATEGY_ID.get(strategy_id, MergeMode.CUSTOM) if strategy_id else None
    if (
        table_version >= _FIRST_VERSION_OF_MODES
        and by_payload is not None
        and by_id not in (None, MergeMode.CUSTOM, by_payload)
    ):
        raise _contradiction(f"payload class {payload}", f"strategy id {strategy_id}", path)
    inferred = (by_id or by_payload) if table_version == 8 else (by_payload or by_id)
    stated = properties.get("hoodie.record.merge.mode")
    if stated and stated not in MergeMode.__members__:
        raise _wrong("hoodie.record.merge.mode", stated, path)
    if inferred is None:
        if stated:
            return MergeMode[stated]
        return MergeMode.EVENT_TIME_ORDERING if ordering else MergeMode.COMMIT_TIME_ORDERING
    known = definition_of_payload(payload) if payload else None
    # Version 9 may also state the mode that replaced a payload class.
    replaced = known.mode if known is not None and table_version > 8 else inferred
    if stated and MergeMode[stated] not in (inferred, replaced):
        raise _contradiction(stated, inferred.value, path)
    return MergeMode[stated] if stated else inferred


def _mode_of_payload(payload: str) -> MergeMode:
    """Infer the mode as Hudi does: a class has one only if a mode defines it completely."""
    known = definition_of_payload(payload)
    return known.mode if known is not None and known.is_plain else MergeMode.CUSTOM


def _by_payload(strategy_id: str | None) -> bool:
    return strategy_id in (None, PAYLOAD_BASED_STRATEGY_ID)


def _with_merge_properties(
    rules: MergeDefinition, properties: Mapping[str, str], path: str
) -> MergeDefinition:
    def value_of(key: str) -> str | None:
        return properties.get(MERGE_PROPERTY_PREFIX + key) or properties.get(key) or None

    field, marker = value_of(DELETE_FIELD), value_of(DELETE_MARKER)
    if (field is None) != (marker is None):
        missing = DELETE_MARKER if marker is None else DELETE_FIELD
        raise CorruptTableError(
            "the column that marks deletes needs its marker, and the marker needs the column: "
            f"restore the missing property: {missing} in {path}",
            kind="table_property_missing",
            path=path,
            key=missing,
        )
    if field is not None:
        rules = replace(rules, delete_field=field, delete_marker=marker)
    mode = properties.get(PARTIAL_UPDATE_MODE)
    if mode:
        if mode not in _PARTIAL_MODES:
            raise _wrong(PARTIAL_UPDATE_MODE, mode, path)
        rules = replace(rules, partial_update_mode=_PARTIAL_MODES[mode])
    unavailable = value_of(UNAVAILABLE_VALUE)
    return replace(rules, unavailable_marker=unavailable or rules.unavailable_marker)


def _names(text: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in text.split(",") if one.strip())


def _wrong(key: str, text: str, path: str) -> CorruptTableError:
    return CorruptTableError(
        f"a table property has a value that it cannot have: restore hoodie.properties from a backup: "
        f"{key}={text!r} in {path}",
        kind="table_property_wrong",
        path=path,
        key=key,
        value=text,
    )


def _contradiction(stated: str, inferred: str, path: str) -> CorruptTableError:
    return CorruptTableError(
        "the merge mode contradicts the merge strategy id or the payload class: correct one of "
        f"them: {stated} against {inferred} in {path}",
        kind="merge_mode_contradiction",
        path=path,
        stated=stated,
        inferred=inferred,
    )
