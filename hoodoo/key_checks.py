"""
Whether rows lie under the record keys and partition paths that their columns make.

Earlier releases made both of the incoming types, and releases of Hudi differ in complex keys of
one field: such a row is not found by its key, and its record may be there twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from hoodoo.assembly import leaves_rows_elsewhere
from timeline.context import TableContext
from timeline.errors import SettingError, UnsupportedTableError
from timeline.model.schema import KEY_COLUMN
from timeline.model.table_config import TableConfig
from timeline.properties.key_settings import key_spec_of
from timeline.properties.options import TABLE_LAYER, PropertySet
from timeline.properties.properties_file import load_config, rows_may_lie_elsewhere
from timeline.properties.settings import WriteSettings
from timeline.reading.snapshot import Snapshot
from timeline.rules.keys import KeyGenerator, KeySpec, addresses, refuse_untyped
from timeline.writing.key_encoding import stored_forms
from timeline.writing.moment_folders import folders_as_stored

__all__ = ["Addresses", "addresses_of", "keys_of_table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Of some rows the keys and partition paths that their columns make, and which differ."""

    keys: pa.Array
    paths: pa.Array
    other_key: pa.Array  # stored otherwise
    other_path: pa.Array  # in another folder

    @property
    def differ(self) -> pa.Array:
        """Rows that lie elsewhere."""
        return pc.or_(self.other_key, self.other_path)


def keys_of_table(
    context: TableContext, snapshot: Snapshot, settings: WriteSettings | None = None
) -> KeySpec:
    """
    How a writer makes the table's keys; where its files hold two forms, the one to rewrite to.

    It has no partition fields where rows may lie in other folders than their columns say.

    The form is the one that ``hoodie.write.complex.keygen.new.encoding`` names, else the longer
    one, which version 9 has.

    Raises:
        UnsupportedTableError: Nobody can make the keys again: rows have none of their own, or a
            class of the table's owner makes them (``keys_of_others``); as ``folders_as_stored``.
    """
    config = context.config
    keys = key_spec_of(settings or _told_by_table(config), config)
    try:
        refuse_untyped(keys)
    except SettingError as error:
        raise UnsupportedTableError(error.message, kind="keys_of_others", feature="keys") from error
    if not (keys.record_key_fields or keys.partition_fields) or _by_strange_class(config):
        raise UnsupportedTableError(
            "keys and folders of this table are not made of its columns by a key generator that "
            "is known here, so they cannot be made again",
            kind="keys_of_others",
            feature="keys made again",
        )
    elsewhere = rows_may_lie_elsewhere(context.world.storage, load_config(context.world.storage))
    elsewhere |= settings is not None and leaves_rows_elsewhere(settings, config)
    # Files name no folder but the one they lie in, or rows may lie in another.
    if config.drop_partition_columns or elsewhere:
        keys = replace(keys, partition_fields=(), partition_types=())
    keys = folders_as_stored(context, snapshot, keys)
    if not keys.has_two_forms:
        return keys
    forms, asked = stored_forms(context, snapshot, keys), keys.prefixes_single_key
    if len(forms) == 1 and asked is None:
        return replace(keys, stored_prefix=next(iter(forms)))
    newest = config.table_version >= 9
    return replace(keys, stored_prefix=True if asked is None or newest else asked)


def addresses_of(rows: pa.Table, partition_path: str | pa.ChunkedArray, keys: KeySpec) -> Addresses:
    """
    Make keys and paths of stored rows again, and compare.

    Args:
        rows: As read, with the meta columns where files have them.
        partition_path: The folder they lie in, of all or of each.
        keys: As of ``keys_of_table``.

    Shapes: rows (n rows) -> arrays (n,).

    Errors: as ``timeline.rules.keys.addresses``.
    """
    made, paths = addresses(rows, keys, rows.schema)
    if not keys.partition_fields:
        told = isinstance(partition_path, str)
        paths = pa.repeat(pa.scalar(partition_path), rows.num_rows) if told else partition_path
    other_path = pc.not_equal(paths, partition_path)
    other_key = pa.repeat(pa.scalar(False), rows.num_rows)
    if keys.stores_keys and not keys.automatic:
        stored = pc.cast(rows.column(KEY_COLUMN), pa.string())
        other_key = pc.fill_null(pc.not_equal(made, stored), True)
    return Addresses(keys=made, paths=paths, other_key=other_key, other_path=other_path)


def _told_by_table(config: TableConfig) -> WriteSettings:
    try:
        return WriteSettings.from_properties(PropertySet().with_layer(TABLE_LAYER, config.raw))
    except SettingError:
        return WriteSettings()


def _by_strange_class(config: TableConfig) -> bool:
    kind = (config.key_generator_type or "").removesuffix("_AVRO")
    if kind:
        return kind not in KeyGenerator.__members__
    return bool(config.raw.get("hoodie.table.keygenerator.class"))
