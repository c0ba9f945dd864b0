"""The entries of a real Hive Metastore as JSON, read by its own Thrift client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pymetastore.hive_metastore import ThriftHiveMetastore
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

from tests.servers.hivemetastore import HiveMetastore

#: Facts of one run, and one that hoodoo leaves out: it is not a version of Hudi.
VARYING = {"createTime", "transient_lastDdlTime", "dbName", "hudi_writer_version"}
#: The metastore's own figures of the files, which depend on the Parquet library's version.
STATISTICS = {"totalSize", "numFiles"}


@contextmanager
def client(server: HiveMetastore) -> Iterator[Any]:
    """An open client of the server."""
    transport = TBufferedTransport(TSocket(server.host, server.port))
    transport.open()
    try:
        yield ThriftHiveMetastore.Client(TBinaryProtocol(transport))
    finally:
        transport.close()


def plain(value: Any) -> Any:
    """The same as JSON; what is not set is left out."""
    if hasattr(value, "__dict__"):
        value = {key: one for key, one in vars(value).items() if one is not None}
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def entries(server: HiveMetastore, database: str) -> dict[str, Any]:
    """Each entry of a database by its name, with its partitions in order."""
    with client(server) as metastore:
        return {
            name: {
                "table": plain(metastore.get_table(database, name)),
                "partitions": sorted(
                    (plain(one) for one in metastore.get_partitions(database, name, -1)),
                    key=lambda one: one["values"],
                ),
            }
            for name in sorted(metastore.get_all_tables(database))
        }


def comparable(value: Any, folder: str) -> Any:
    """The facts that two syncs of one table have in common, with ``TABLES`` for the folder."""
    if isinstance(value, dict):
        left_out = VARYING | STATISTICS
        return {
            key: "SYNCED" if key.endswith("_time_sync") else comparable(one, folder)
            for key, one in value.items()
            if key not in left_out
        }
    if isinstance(value, list):
        return [comparable(one, folder) for one in value]
    return value.replace(folder, "TABLES") if isinstance(value, str) else value


def partitions(server: HiveMetastore, database: str, name: str) -> dict[tuple[str, ...], str]:
    """The location of each partition by its values."""
    found = entries(server, database)[name]["partitions"]
    return {tuple(one["values"]): one["sd"]["location"] for one in found}
