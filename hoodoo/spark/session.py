"""
Add the format ``hoodoo`` to Spark's reader and writer, on the driver.

Spark's data source interface for Python cannot shuffle rows, prune columns or support every save
mode. So ``install`` puts subclasses in front of the session's reader and writer. They keep their
options, serve the formats of hoodoo and pass all other calls to Spark unchanged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrameReader, DataFrameWriter, SparkSession
from pyspark.sql.catalog import Catalog
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter

from filegroups.settings.read_settings import ReadSettings
from filegroups.writing.write_request import CommitResult
from hoodoo.services import warn_ignored_keys
from hoodoo.spark.executor import SparkExecutor, spark_executor
from hoodoo.spark.formats import (
    FORMAT,
    has_hudi_bundle,
    leave_out_bundle,
    remember_result,
    serves,
)
from hoodoo.spark.options import check_others, layers_for, path_of, paths_of, session_settings
from hoodoo.spark.read import load_dataframe, with_columns_of, with_json_images
from hoodoo.spark.sql.changes import Insertion
from hoodoo.spark.sql.definitions import FIXED_PROPERTIES
from hoodoo.spark.sql.names import (
    NamedTable,
    find_table,
    refresh_view,
    remember_view,
    required_table,
    with_load,
)
from hoodoo.spark.sql.session_sql import run_sql
from hoodoo.spark.sql.statements import name_parts, read_by_name
from hoodoo.spark.sql.table_writes import (
    HoodooWriterV2,
    insert_into,
    new_named_table,
    save_as_table,
    table_of_stream,
)
from hoodoo.spark.stream_sink import StreamSink
from hoodoo.spark.write import save_dataframe
from timeline.errors import InvalidInputError, StorageCapabilityError
from timeline.ports.ports import Ports
from timeline.system import LoggingEvents


def install(spark: Any) -> Any:
    """
    Add ``format("hoodoo")`` to a session, for reads and writes of Hudi tables.

    The formats ``hudi`` and ``org.apache.hudi`` are served too, so existing jobs need no change.
    If a Hudi bundle is on Spark's class path, it keeps its names, and the event
    ``spark.hudi_left_to_bundle`` reports that. Without one, Spark's own catalog takes the place of
    Hudi's. A second call changes nothing. All sessions of this process get the format, because they
    share Spark's classes.

    Args:
        spark: A classic session (not Spark Connect).

    Returns:
        The session.

    Raises:
        StorageCapabilityError: The session is a Spark Connect one.
        SettingError: A setting of the session needs a bundle that is not there
            (``bundle_setting``).
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise StorageCapabilityError(
            "Spark Connect has no driver in this process: use a classic session (local, "
            "standalone, YARN or Kubernetes)",
            kind="spark_connect",
            missing="driver",
        )
    leave_out_bundle(spark)
    _use_this_python(spark)
    frame = type(spark.range(0))
    if not getattr(frame, "_hoodoo_installed", False):
        frame.write = property(HoodooWriter, doc=DataFrameWriter.__doc__)
        frame.writeTo = _write_to
        frame.writeStream = property(HoodooStreamWriter, doc=DataStreamWriter.__doc__)
        SparkSession.read = property(HoodooReader, doc=DataFrameReader.__doc__)
        SparkSession.readStream = property(HoodooStreamReader, doc=DataStreamReader.__doc__)
        _install_sql()
        _install_catalog()
        _install_views(frame)
        frame._hoodoo_installed = True  # noqa: SLF001
    _register(spark)
    return spark


def _install_sql() -> None:
    """Put hoodoo in front of ``SparkSession.sql`` and ``SparkSession.table``."""
    sql, table = SparkSession.sql, SparkSession.table

    def run(self: Any, sqlQuery: str, args: Any = None, **kwargs: Any) -> Any:  # noqa: N803
        return run_sql(self, sqlQuery, args, kwargs, sql)

    def read(self: Any, tableName: str) -> Any:  # noqa: N803
        return read_by_name(self, tableName, lambda name: table(self, name))

    run.__doc__, read.__doc__ = sql.__doc__, table.__doc__
    SparkSession.sql, SparkSession.table = run, read


def _install_views(frame: Any) -> None:
    """Let temporary views remember the loads that they show."""

    def remembered(name: str) -> None:
        by_spark = getattr(frame, name)

        @wraps(by_spark)
        def create(self: Any, name: str) -> None:
            by_spark(self, name)
            remember_view(self, name)

        setattr(frame, name, create)

    remembered("createTempView")
    remembered("createOrReplaceTempView")


def _install_catalog() -> None:
    """Put hoodoo in front of the calls of ``spark.catalog`` that read or create tables."""

    def served(name: str, run: Callable[[Any, Any], Any]) -> None:
        by_spark = getattr(Catalog, name)

        @wraps(by_spark)
        def call(self: Any, tableName: str, *args: Any, **kwargs: Any) -> Any:  # noqa: N803
            spark = self._sparkSession
            parts = name_parts(spark, tableName)
            named = find_table(spark, parts)
            if named is not None:
                return run(spark, named)
            if name == "refreshTable" and refresh_view(spark, parts):
                return None
            return by_spark(self, tableName, *args, **kwargs)

        setattr(Catalog, name, call)

    def refuse(_: Any, named: NamedTable) -> None:
        raise InvalidInputError(
            "spark.catalog.cacheTable is not supported on Hudi tables: call spark.table(name)"
            f".cache(), and use this DataFrame: {named.name}",
            kind="unsupported_spark_call",
            call="cacheTable",
        )

    for name in ("recoverPartitions", "refreshTable", "uncacheTable"):
        served(name, lambda *_: None)  # each read takes the newest table
    served("isCached", lambda *_: False)
    served("cacheTable", refuse)
    create = Catalog.createTable

    @wraps(create)
    def create_table(
        self: Any,
        tableName: str,  # noqa: N803
        path: str | None = None,
        source: str | None = None,
        schema: Any = None,
        *description: str | None,
        **options: Any,
    ) -> Any:
        spark = self._sparkSession
        if source is None or not serves(spark, source):
            return create(self, tableName, path, source, schema, *description, **options)
        options.pop("description", None)
        given = options if path is None else {**options, "path": path}
        new_named_table(spark, tableName, source, given, columns=schema)
        return spark.table(tableName)

    Catalog.createTable = create_table


def local_session(application: str, *, cores: int = 1, heap_mb: int = 768) -> Any:
    """
    Start a session with hoodoo installed.

    Args:
        application: The name of the session's application.
        cores: Number of tasks that run at a time.
        heap_mb: Heap of the session's JVM, MiB.
    """
    settings = {
        "spark.driver.memory": f"{heap_mb}m",
        # A short job ends before the better compiler pays off; this halves the measured CPU time.
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "false",
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName(application)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return install(spark)


def executor_of_this_process(
    ports: Ports, properties: Mapping[str, str], tasks_max: int | None
) -> SparkExecutor:
    """
    Return an executor over this process's session, or over a new one.

    Spark's configuration files and variables configure a new session. Arguments: as
    ``spark_executor``.

    Raises:
        StorageCapabilityError: The session is a Spark Connect one.
    """
    spark = install(SparkSession.builder.appName("hoodoo services").getOrCreate())
    return spark_executor(spark, ports, properties, tasks_max=tasks_max)


class _GivenOptions:
    """The format and options of a reader or writer, kept in addition to Spark's record."""

    _given_format: str | None = None

    def _remember(self, options: Mapping[str, object]) -> None:
        kept: dict[str, object] = self.__dict__.setdefault("_told_options", {})
        for key, value in options.items():
            for known in [known for known in kept if known.lower() == key.lower()]:
                del kept[known]
            if value is not None:
                kept[key] = _text(value)

    def _options(self, more: Mapping[str, object]) -> dict[str, object]:
        self._remember(more)
        return dict(self.__dict__.get("_told_options", {}))

    def format(self, source: str) -> Any:
        self._given_format = source
        return super().format(source)  # type: ignore[misc]

    def option(self, key: str, value: Any) -> Any:
        self._remember({key: value})
        return super().option(key, value)  # type: ignore[misc]

    def options(self, **options: Any) -> Any:
        self._remember(options)
        return super().options(**options)  # type: ignore[misc]


class HoodooWriter(_GivenOptions, DataFrameWriter):
    """Spark's writer; hoodoo does the saves in its format."""

    _given_mode: str | None = None
    _given_partitions: tuple[str, ...] = ()
    _given_unsupported: str | None = None

    def mode(self, saveMode: str | None) -> Any:  # noqa: N803 - Spark's name
        self._given_mode = saveMode
        return super().mode(saveMode)

    def partitionBy(self, *cols: Any) -> Any:  # noqa: N802
        self._given_partitions = _names(cols)
        return super().partitionBy(*cols)

    def bucketBy(self, *args: Any, **kwargs: Any) -> Any:  # noqa: N802
        self._given_unsupported = "bucketBy"
        return super().bucketBy(*args, **kwargs)

    def sortBy(self, *args: Any, **kwargs: Any) -> Any:  # noqa: N802
        self._given_unsupported = "sortBy"
        return super().sortBy(*args, **kwargs)

    def save(
        self,
        path: str | None = None,
        format: str | None = None,  # noqa: A002 - Spark's name
        mode: str | None = None,
        partitionBy: Any = None,  # noqa: N803
        reads: Any = None,
        **options: Any,
    ) -> CommitResult | None:
        """Save as Spark does; hoodoo also takes ``reads=`` and returns the result of the commit."""
        spark = self._df.sparkSession
        if not serves(spark, format or self._given_format):
            if reads is not None:  # an option of another format
                options["reads"] = reads
            super().save(path, format, mode, partitionBy, **options)
            return None
        if self._given_unsupported is not None:
            raise _unsupported(self._given_unsupported)
        given = self._options(options)
        check_others(spark, given)
        result = save_dataframe(
            self._df,
            path_of(path, given, "save()"),
            given,
            mode=mode or self._given_mode,
            partition_by=_names((partitionBy,)) if partitionBy else self._given_partitions,
            reads=reads,
        )
        remember_result(spark, result)
        return result

    def saveAsTable(  # noqa: N802
        self,
        name: str,
        format: str | None = None,  # noqa: A002
        mode: str | None = None,
        partitionBy: Any = None,  # noqa: N803
        **options: Any,
    ) -> None:
        """Save to a table by its name, as Spark does, and keep its entry in Spark's catalog."""
        spark = self._df.sparkSession
        provider = format or self._given_format
        is_known = provider is None and find_table(spark, name_parts(spark, name)) is not None
        if not is_known and not serves(spark, provider):
            super().saveAsTable(name, format, mode, partitionBy, **options)
            return
        if self._given_unsupported is not None:
            raise _unsupported(self._given_unsupported)
        given = self._options(options)
        check_others(spark, given, FIXED_PROPERTIES)
        result = save_as_table(
            self._df,
            name,
            provider or FORMAT,
            given,
            mode=mode or self._given_mode,
            partition_by=_names((partitionBy,)) if partitionBy else self._given_partitions,
        )
        remember_result(spark, result)

    def insertInto(self, tableName: str, overwrite: bool | None = None) -> None:  # noqa: N802, N803, FBT001
        """Insert into a table by its name, as Spark does."""
        overwrites = (
            str(self._given_mode).lower() == "overwrite" if overwrite is None else overwrite
        )
        how = Insertion(overwrites=overwrites)
        # Spark refuses insertInto after partitionBy, with any format.
        is_done = not self._given_partitions and insert_into(
            self._df, tableName, self._options({}), how
        )
        if is_done:
            return
        spark, given = self._spark, self._given_format
        missing = not spark.catalog.tableExists(tableName)
        if missing and given is not None and serves(spark, given):
            required_table(spark, name_parts(spark, tableName))  # Spark 3.5 would name the format
        super().insertInto(tableName, overwrite)


class HoodooReader(_GivenOptions, DataFrameReader):
    """Spark's reader; hoodoo does the loads in its format."""

    _given_schema: Any = None

    def schema(self, schema: Any) -> Any:
        self._given_schema = schema
        return super().schema(schema)

    def load(
        self,
        path: Any = None,
        format: str | None = None,  # noqa: A002
        schema: Any = None,
        **options: Any,
    ) -> Any:
        """Load as Spark does."""
        if not serves(self._spark, format or self._given_format):
            return super().load(path, format, schema, **options)
        paths, given = paths_of(path, self._options(options))
        check_others(self._spark, given)
        chosen = schema if schema is not None else self._given_schema
        load = partial(load_dataframe, self._spark, paths, given, schema=chosen)
        return with_load(load(), partial(load, warns=False))

    def table(self, tableName: str) -> Any:  # noqa: N803
        """Read a table by its name, as Spark does, with the options of a load."""
        given = self._options({})
        named = find_table(self._spark, name_parts(self._spark, tableName)) if given else None
        if named is None:
            return read_by_name(self._spark, tableName, super().table)
        check_others(self._spark, given)
        df = load_dataframe(self._spark, [named.path], {**named.read_options, **given})
        return df.alias(tableName.rpartition(".")[2])


class HoodooStreamWriter(_GivenOptions, DataStreamWriter):
    """Spark's stream writer; each micro-batch in the format of hoodoo is one save."""

    _given_output: str | None = None
    _given_name: str | None = None
    _given_partitions: tuple[str, ...] = ()

    def partitionBy(self, *cols: Any) -> Any:  # noqa: N802
        # Passed to Spark later: its foreachBatch refuses them.
        self._given_partitions = _names(cols)
        return self

    def toTable(  # noqa: N802
        self,
        tableName: str,  # noqa: N803
        format: str | None = None,  # noqa: A002
        outputMode: str | None = None,  # noqa: N803
        partitionBy: Any = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: Any,
    ) -> Any:
        """Start into a table by its name, as Spark does; a missing one is created."""
        partitions = _names((partitionBy,)) if partitionBy else self._given_partitions
        provider, given = format or self._given_format, self._options(options)
        named = table_of_stream(self._df, tableName, provider, given, partitions)
        if named is None:
            self._pass_partitions_on()
            return super().toTable(tableName, format, outputMode, partitionBy, queryName, **options)
        self._remember({**named.options, **given})
        return self.start(named.path, FORMAT, outputMode, partitionBy, queryName, **options)

    def queryName(self, queryName: str) -> Any:  # noqa: N802, N803
        self._given_name = queryName
        return super().queryName(queryName)

    def outputMode(self, outputMode: str) -> Any:  # noqa: N802, N803
        self._given_output = outputMode
        return super().outputMode(outputMode)

    def start(
        self,
        path: str | None = None,
        format: str | None = None,  # noqa: A002
        outputMode: str | None = None,  # noqa: N803
        partitionBy: Any = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: Any,
    ) -> Any:
        """Start as Spark does; a micro-batch repeated after a failure is written once."""
        spark = self._df.sparkSession
        if not serves(spark, format or self._given_format):
            self._pass_partitions_on()
            return super().start(path, format, outputMode, partitionBy, queryName, **options)
        output = outputMode or self._given_output or "append"
        if output.lower() not in ("append", "update"):
            raise _unsupported(f"output mode {output}")
        given = self._options(options)
        check_others(spark, given, FIXED_PROPERTIES)
        target = path_of(path, given, "start()")
        partitions = _names((partitionBy,)) if partitionBy else self._given_partitions

        name = queryName or self._given_name
        sink = StreamSink(spark, target, given, partition_by=partitions, query_name=name)

        def save(batch: Any, number: int) -> None:
            remember_result(spark, sink.save(batch, number))

        self.foreachBatch(save)
        query = super().start(outputMode=outputMode, queryName=queryName, **options)
        sink.follow(query)
        return query

    def _pass_partitions_on(self) -> None:
        if self._given_partitions:
            super().partitionBy(*self._given_partitions)


class HoodooStreamReader(_GivenOptions, DataStreamReader):
    """Spark's stream reader; the format of hoodoo needs Spark 4.0 or later."""

    _given_schema: Any = None

    def schema(self, schema: Any) -> Any:
        self._given_schema = schema
        return super().schema(schema)

    def load(
        self,
        path: str | None = None,
        format: str | None = None,  # noqa: A002
        schema: Any = None,
        **options: Any,
    ) -> Any:
        """Load as Spark does, by the Python data source, which Spark has since 4.0."""
        chosen = schema if schema is not None else self._given_schema
        if not serves(self._spark, format or self._given_format):
            return super().load(path, format, chosen, **options)
        if not hasattr(self._spark, "dataSource"):
            raise _unsupported("readStream before Spark 4.0")
        from hoodoo.spark.datasource import HAS_READ_LIMITS

        given = self._options(options)
        check_others(self._spark, given)
        properties = layers_for(self._spark, given).load()
        settings = ReadSettings.of_stream(properties)
        if settings.has_stream_limit and not HAS_READ_LIMITS:
            raise _unsupported("a limit of micro-batches before Spark 4.2")
        warn_ignored_keys(properties, LoggingEvents())
        # Spark runs the source in processes without a session.
        options = {**session_settings(self._spark), **options}
        if settings.is_cdc:  # by a reader without the given schema, which has texts for images
            reader = DataStreamReader(self._spark).options(**given)
            changes = with_json_images(reader.load(path, FORMAT, **options))
            return with_columns_of(self._spark, changes, chosen)
        return super().load(path, FORMAT, chosen, **options)

    def table(self, tableName: str) -> Any:  # noqa: N803
        """Read the changes of a table by its name, as Spark does."""
        named = find_table(self._spark, name_parts(self._spark, tableName))
        if named is None:
            return super().table(tableName)
        self.options(**{**named.read_options, **self._options({})})
        return self.load(named.path, FORMAT)


def _unsupported(what: str) -> InvalidInputError:
    return InvalidInputError(
        f"this release of the format hoodoo does not support {what}: use write.save(path), "
        "read.load(path) and incremental reads",
        kind="unsupported_spark_call",
        call=what,
    )


def _write_to(df: Any, table: str) -> HoodooWriterV2:
    return HoodooWriterV2(df, table)


def _names(columns: Sequence[Any]) -> tuple[str, ...]:
    if len(columns) == 1 and isinstance(columns[0], list | tuple):
        columns = columns[0]
    return tuple(str(name) for name in columns)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _use_this_python(spark: Any) -> None:
    """Make local workers use this Python; ``python3`` on the path may lack hoodoo."""
    context = spark.sparkContext
    python = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
    if not python and context.master.startswith("local"):
        context.pythonExec = sys.executable


def _register(spark: Any) -> None:
    """Register the data source for SQL's temporary views, if Spark supports it."""
    try:
        from hoodoo.spark.datasource import HUDI_SOURCES, HoodooDataSource
    except ImportError:  # before Spark 4
        return
    ours = () if has_hudi_bundle(spark) else HUDI_SOURCES
    try:
        for source in (HoodooDataSource, *ours):
            spark.dataSource.register(source)
    except AnalysisException as error:
        # Spark loads all data sources first and registers none if one fails to load, such as a
        # bundle for another version of Spark. Saves work without the registration.
        LoggingEvents().emit(
            "spark.register_failed", missing="readStream, SQL views", why=str(error)
        )
