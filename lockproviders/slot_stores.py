"""
Where commit slots are decided, from properties: on the table's storage, or in a database (SLOT-6).

Beside the lock providers because it asks the same question, who may publish now, of the same
servers: the connection is theirs, only the table is another. The default needs none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lockproviders.dynamodb.connection import BotoTransport, check_extra, region_of_machine
from lockproviders.dynamodb.settings import DynamoSettings
from lockproviders.dynamodb.slots import DynamoSlotStore
from lockproviders.sql.settings import TABLE_NAME, SqlSettings
from lockproviders.sql.slots import SqlSlotStore
from timeline.errors import SettingError
from timeline.model.sealing import TamperEvidence
from timeline.ports.clock import Clock
from timeline.ports.ids import Ids
from timeline.ports.storage import Storage
from timeline.properties.options import (
    TABLE_LAYER,
    Option,
    OptionKind,
    PropertySet,
    as_property_set,
    read_option,
)
from timeline.storage.decided import DecidedStorage

__all__ = ["SLOT_OPTIONS", "decides_elsewhere", "with_slot_store"]

SLOT_OPTIONS: Mapping[str, Option] = {
    "backend": Option(
        key="hoodoo.slots.backend",
        default="storage",
        kind=OptionKind.ENUM,
        choices=("storage", "sql", "dynamodb"),
        doc="What decides commit slots; equal for all writers of a table, for ever. Other than "
        "storage is for stores without an atomic create; connection as of the lock of that name.",
    ),
    "table": Option(
        key="hoodoo.slots.table",
        default="hoodoo_slots",
        doc="Table of the database, or of DynamoDB, that holds the slots of all tables.",
    ),
    "key": Option(
        key="hoodoo.slots.key",
        doc="Name of this table there; by default its address, which must then be the same for "
        "all writers.",
    ),
    "tamper_evidence": Option(
        key="hoodoo.slots.tamper.evidence",
        default="none",
        kind=OptionKind.ENUM,
        choices=tuple(each.value for each in TamperEvidence),
        doc="What this process adds to its slots so that `hoodoo table verify` sees later edits: "
        "the digest of the slot before and of the completed file (hash), signed with a key (hmac). "
        "For verify: what it demands of the chain.",
    ),
    "tamper_key_file": Option(
        key="hoodoo.slots.tamper.key.file",
        doc="File with mode 0600 that holds the keys, one a line of 32 characters or more: the "
        "first signs, all verify. Without it HOODOO_TAMPER_KEY in the environment.",
    ),
}


def decides_elsewhere(properties: Mapping[str, str]) -> bool:
    """Whether a caller's properties name another place for slots than the table's storage."""
    backend = SLOT_OPTIONS["backend"]
    return read_option(as_property_set(properties), backend) != backend.default


def with_slot_store(
    storage: Storage, properties: PropertySet, *, clock: Clock, ids: Ids
) -> Storage:
    """
    The storage that a table's writers and readers use: itself, or decided by a slot store.

    Nothing is asked of a database yet.

    Args:
        storage: Where the table lies.
        properties: All layers; a table itself has no say in it (SEC11).
        clock: Waits for a table that is being created.
        ids: Tells the process, makes identities.

    Raises:
        SettingError: A value is wrong or missing.
        UnsafeSetupError: A package is missing, or the table names the server.
    """
    own = properties.without_layer(TABLE_LAYER)
    if not decides_elsewhere(own):
        return storage
    said = {name: read_option(own, option) for name, option in SLOT_OPTIONS.items()}
    backend, table = str(said["backend"]), str(said["table"])
    key = str(said["key"] or storage.base_uri)
    store: SqlSlotStore | DynamoSlotStore
    if backend == "sql":
        if not TABLE_NAME.fullmatch(table):
            raise SettingError(
                f"letters, digits and _ only, 63 at most: {SLOT_OPTIONS['table'].key}={table!a}",
                kind="setting_value",
                key=SLOT_OPTIONS["table"].key,
                value=table,
                suggestion=SLOT_OPTIONS["table"].default,
            )
        sql = SqlSettings.from_properties(properties)
        store = SqlSlotStore(
            sql.database(ids, durable=True), table=table, may_create=sql.create_table
        )
    else:
        check_extra()
        dynamo = replace(
            DynamoSettings.from_properties(
                properties, implicit_key=key, machine_region=region_of_machine
            ),
            table=table,
        )
        store = DynamoSlotStore(dynamo, lambda: BotoTransport(dynamo), clock=clock, ids=ids)
    return DecidedStorage(storage, store, where=store.identity, key=key, ids=ids)
