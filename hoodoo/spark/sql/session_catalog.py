"""
Spark's session catalog, in memory or in a Hive metastore.

An entry of a Hudi table has the input format of Hudi's bundle, which Hive and Trino use. Spark's
client looks for the class when it creates or changes an entry, and uses its name only. Without the
bundle it fails. So it gets a jar with an empty class of each name. The classes are abstract: Spark
cannot read files by them, which would skip Hudi's rules.

Spark itself gives an entry of another format one column for Hive, named ``col``, and keeps the real
columns as properties. Hudi's sync cannot change such an entry, because the metastore refuses to
change the type of ``col``. So an entry is created with its columns, as Java Hudi creates it.
"""

from __future__ import annotations

import struct
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException

from hoodoo.spark.java import java_class
from hoodoo.spark.sql.catalyst import copied, listed_map, listed_seq, option, scala_map, value_of

#: By the type of a table, the format of its snapshot.
INPUT_FORMATS: Final = {
    "COPY_ON_WRITE": "org.apache.hudi.hadoop.HoodieParquetInputFormat",
    "MERGE_ON_READ": "org.apache.hudi.hadoop.realtime.HoodieParquetRealtimeInputFormat",
}
_TEXT_MAX: Final = 4_000  # of a property in the metastore
_PUBLIC_ABSTRACT_CLASS = 0x0421
_JAVA_8 = 52
_KNOWS_FORMATS = "_hoodoo_knows_hive_formats"


def session_catalog(spark: Any) -> Any:
    """Return Spark's session catalog; one in a Hive metastore knows the formats of Hudi's entries."""
    catalog = spark._jsparkSession.sessionState().catalog()  # noqa: SLF001
    if not getattr(spark, _KNOWS_FORMATS, False):
        _name_formats(spark, catalog)
        setattr(spark, _KNOWS_FORMATS, True)
    return catalog


def _client(catalog: Any) -> Any:
    """Return Spark's client of the metastore; None if the session catalog is in memory."""
    external = catalog.externalCatalog().unwrapped()
    is_hive = external.getClass().getSimpleName() == "HiveExternalCatalog"
    return external.client() if is_hive else None


def _name_formats(spark: Any, catalog: Any) -> None:
    """Give the names to the client of the metastore, if the session catalog is in one."""
    client = _client(catalog)
    if client is None:
        return
    loader = client.clientLoader()
    known = loader.classLoader()
    missing = [name for name in INPUT_FORMATS.values() if known.getResource(_file(name)) is None]
    if not missing:
        return
    with tempfile.TemporaryDirectory(prefix="hoodoo-formats-") as folder:
        jar = Path(folder) / "formats.jar"
        with zipfile.ZipFile(jar, "w") as made:
            for name in missing:
                made.writestr(_file(name), _class(name))
        loader.addJar(java_class(spark, "java.io.File")(str(jar)).toURI().toURL())
        for name in missing:  # loads them, so the jar may go
            known.loadClass(name)


def create_in_hive(spark: Any, catalog: Any, entry: Any) -> bool:
    """
    Create an entry with its columns in the metastore.

    Returns:
        False if the session catalog is in memory, or the metastore refuses: Hive may lack a type of
        a column. Spark's own way to create the entry then works, or says what is wrong.
    """
    client = _client(catalog)
    if client is None:
        return False
    schema = str(entry.schema().json())
    parts = [schema[at : at + _TEXT_MAX] for at in range(0, len(schema), _TEXT_MAX)]
    named = {"provider": value_of(entry.provider()), "schema.numParts": len(parts)}
    named |= {f"schema.part.{number}": part for number, part in enumerate(parts)}
    columns = listed_seq(entry.partitionColumnNames())
    if columns:
        named["schema.numPartCols"] = len(columns)
        named |= {f"schema.partCol.{number}": name for number, name in enumerate(columns)}
    properties = {f"spark.sql.sources.{key}": str(value) for key, value in named.items()}
    properties |= {"spark.sql.create.version": str(spark.version)}
    properties |= {key: str(value) for key, value in listed_map(entry.properties()).items()}
    path = java_class(spark, "org.apache.hadoop.fs.Path")(value_of(entry.storage().locationUri()))
    files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
    storage = copied(entry.storage(), locationUri=option(spark, files.makeQualified(path).toUri()))
    made = copied(entry, storage=storage, properties=scala_map(spark, properties))
    try:
        client.createTable(made, False)
    except (AnalysisException, Py4JError):
        return False
    return True


def _file(name: str) -> str:
    return f"{name.replace('.', '/')}.class"


def _class(name: str) -> bytes:
    """Return a class file of an abstract class without members."""
    names = [name.replace(".", "/").encode(), b"java/lang/Object"]
    texts = b"".join(struct.pack(">BH", 1, len(one)) + one for one in names)
    constants = texts + struct.pack(">BHBH", 7, 1, 7, 2)
    head = struct.pack(">IHHH", 0xCAFEBABE, 0, _JAVA_8, 5) + constants
    return head + struct.pack(">7H", _PUBLIC_ABSTRACT_CLASS, 3, 4, 0, 0, 0, 0)
