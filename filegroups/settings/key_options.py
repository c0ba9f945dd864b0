"""
Options of keys, partitions and merging.

They are facts of a table: fixed when it is created, stored in its properties, equal for all
writers. Data only; part of ``filegroups.settings.option_table``.
``filegroups.settings.key_settings`` makes values of them.
"""

from __future__ import annotations

from typing import Final

from timeline.properties.options import Option, OptionKind

__all__ = ["KEY_OPTIONS", "TIME_OPTIONS"]

_BOOL, _ENUM, _LIST, _TEXT = OptionKind.BOOL, OptionKind.ENUM, OptionKind.LIST, OptionKind.TEXT


def _option(
    key: str,
    default: str | None,
    kind: OptionKind,
    doc: str,
    *,
    aliases: tuple[str, ...] = (),
    choices: tuple[str, ...] = (),
) -> Option:
    return Option(key=key, default=default, kind=kind, doc=doc, aliases=aliases, choices=choices)


# By the field of WriteSettings that the option sets or contributes to.
KEY_OPTIONS: Final[dict[str, Option]] = {
    "record_key_fields": _option(
        "hoodie.datasource.write.recordkey.field",
        None,
        _LIST,
        "Fields that identify a row; none for rows that are only ever appended.",
        aliases=("hoodie.table.recordkey.fields",),
    ),
    "partition_fields": _option(
        "hoodie.datasource.write.partitionpath.field",
        None,
        _LIST,
        "Fields that choose the folder of a row; none for a table without partitions. With key "
        "generator CUSTOM each with its type: region:SIMPLE,ts:TIMESTAMP.",
        aliases=("hoodie.table.partition.fields",),
    ),
    "ordering_fields": _option(
        "hoodie.datasource.write.precombine.field",
        None,
        _LIST,
        "Fields whose larger value wins between two rows of one key.",
        aliases=(
            "hoodie.table.ordering.fields",
            "hoodie.table.precombine.field",
            "hoodie.payload.ordering.field",
        ),
    ),
    "hive_style_partitioning": _option(
        "hoodie.datasource.write.hive_style_partitioning",
        "false",
        _BOOL,
        "Folders are named field=value.",
    ),
    "url_encode_partitioning": _option(
        "hoodie.datasource.write.partitionpath.urlencode",
        "false",
        _BOOL,
        "Partition values are percent-encoded in folder names.",
    ),
    "partition_metafile_base_format": _option(
        "hoodie.partition.metafile.use.base.format",
        "false",
        _BOOL,
        "Whether a partition's metadata file is one of Parquet instead of a text.",
    ),
    "drop_partition_columns": _option(
        "hoodie.datasource.write.drop.partition.columns",
        "false",
        _BOOL,
        "Files leave partition columns out; reads show them as text, from the folder's name.",
    ),
    "change_logs": _option(
        "hoodie.table.cdc.enabled",
        "false",
        _BOOL,
        "Keep a log of the changes beside each base file that is written anew.",
    ),
    "change_log_mode": _option(
        "hoodie.table.cdc.supplemental.logging.mode",
        "DATA_BEFORE_AFTER",
        _ENUM,
        "What change logs hold beside operation and key; readers look up what they lack.",
        choices=("OP_KEY_ONLY", "DATA_BEFORE", "DATA_BEFORE_AFTER"),
    ),
    "populate_meta_fields": _option(
        "hoodie.populate.meta.fields",
        "true",
        _BOOL,
        "Whether files store keys; without, keys are computed anew from the key fields, and "
        "incremental reads are not possible.",
    ),
    "key_generator_type": _option(
        "hoodie.datasource.write.keygenerator.type",
        None,
        _TEXT,
        "How key and partition path are built; chosen from the fields when not said. One of "
        "SIMPLE, COMPLEX, NON_PARTITION, TIMESTAMP, CUSTOM, GLOBAL_DELETE.",
        aliases=("hoodie.table.keygenerator.type",),
    ),
    "key_generator_class": _option(
        "hoodie.datasource.write.keygenerator.class",
        None,
        _TEXT,
        "The same as a Java class name; known names are translated, no class is loaded.",
        aliases=("hoodie.table.keygenerator.class",),
    ),
    "complex_key_bare": _option(
        "hoodie.write.complex.keygen.new.encoding",
        None,
        _BOOL,
        "In new tables of version 8, a complex key of one field is the bare value (true, as Hudi "
        "0.14.1 to 1.0.2 write it, and when not said) or field:value (false, as 0.14.0 and "
        "older). Version 9 has the latter only. The stored keys of a table decide; the other "
        "form is refused.",
    ),
    "merge_mode": _option(
        "hoodie.write.record.merge.mode",
        None,
        _ENUM,
        "What decides between two rows of one key; event time when ordering fields are given.",
        aliases=("hoodie.record.merge.mode",),
        choices=("COMMIT_TIME_ORDERING", "EVENT_TIME_ORDERING", "CUSTOM"),
    ),
    "payload_class": _option(
        "hoodie.datasource.write.payload.class",
        None,
        _TEXT,
        "The older way to say the merge mode, as a Java class name.",
        aliases=("hoodie.compaction.payload.class",),
    ),
    "merge_strategy_id": _option(
        "hoodie.write.record.merge.strategy.id",
        None,
        _TEXT,
        "The same as an identifier; must fit the merge mode.",
        aliases=(
            "hoodie.record.merge.strategy.id",
            "hoodie.datasource.write.record.merger.strategy",
            "hoodie.compaction.record.merger.strategy",
        ),
    ),
    "merger_classes": _option(
        "hoodie.write.record.merge.custom.implementation.classes",
        None,
        OptionKind.LIST,
        "Java classes of mergers, which choose among allowed plug-ins that answer to one table "
        "(hoodoo.plugins.allow); no class is loaded.",
        aliases=("hoodie.datasource.write.record.merger.impls",),
    ),
    "delete_field": _option(
        "hoodie.payload.delete.field",
        None,
        _TEXT,
        "A column that marks deletes; needs the marker.",
        aliases=("hoodie.record.merge.property.hoodie.payload.delete.field",),
    ),
    "delete_marker": _option(
        "hoodie.payload.delete.marker",
        None,
        _TEXT,
        "The value of that column that means delete.",
        aliases=("hoodie.record.merge.property.hoodie.payload.delete.marker",),
    ),
    "partial_update_mode": _option(
        "hoodie.table.partial.update.mode",
        None,
        _ENUM,
        "What a newer row leaves alone: columns with their default, or with the marker "
        "hoodie.write.partial.update.unavailable.value.",
        choices=("NONE", "IGNORE_DEFAULTS", "FILL_UNAVAILABLE"),
    ),
    "partial_update_schema": _option(
        "hoodie.write.partial.update.schema",
        None,
        _TEXT,
        "An Avro schema with the columns that upserts change; records keep all others. Beside "
        "them rows need key, partition and ordering fields only.",
    ),
    "unavailable_marker": _option(
        "hoodie.write.partial.update.unavailable.value",
        None,
        _TEXT,
        "The text of FILL_UNAVAILABLE that means: keep the older value.",
        aliases=("hoodie.record.merge.property.hoodie.write.partial.update.unavailable.value",),
    ),
}


def _time_option(
    name: str, default: str | None, doc: str, kind: OptionKind = _TEXT, choices: str = ""
) -> Option:
    return _option(
        f"hoodie.keygen.timebased.{name}",
        default,
        kind,
        doc,
        aliases=(f"hoodie.deltastreamer.keygen.timebased.{name}",),
        choices=tuple(choices.split()),
    )


# Folders of times: for key generator TIMESTAMP, and for fields of that type of CUSTOM.
TIME_OPTIONS: Final[dict[str, Option]] = {
    "kind": _time_option(
        "timestamp.type",
        None,
        "What the partition field holds.",
        _ENUM,
        "UNIX_TIMESTAMP EPOCHMILLISECONDS EPOCHMICROSECONDS SCALAR DATE_STRING MIXED",
    ),
    "scalar_unit": _time_option(
        "timestamp.scalar.time.unit",
        "SECONDS",
        "The unit of a SCALAR.",
        _ENUM,
        "NANOSECONDS MICROSECONDS MILLISECONDS SECONDS MINUTES HOURS DAYS",
    ),
    "input_formats": _time_option(
        "input.dateformat", None, "Patterns of texts (Joda-Time); the first that fits counts."
    ),
    "input_delimiter": _time_option(
        "input.dateformat.list.delimiter.regex", ",", "What stands between several patterns."
    ),
    "input_zone": _time_option(
        "input.timezone", None, "Zone of texts that name none; UTC when not said (Hudi: the JVM's)."
    ),
    "output_format": _time_option(
        "output.dateformat", None, "Pattern of the folder; a slash in it makes levels."
    ),
    "output_zone": _time_option(
        "output.timezone", None, "Zone of the folder; UTC when not said (Hudi: the JVM's)."
    ),
    "zone": _time_option("timezone", None, "Both zones at once; counts before the two."),
    "parser_class": _time_option(
        "datetime.parser.class", None, "Only Hudi's own parser is known; no class is loaded."
    ),
}
