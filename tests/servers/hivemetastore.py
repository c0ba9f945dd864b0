"""
A real Hive Metastore 2.3.10 as a child process, from the JARs inside PySpark alone.

Its database is Derby (embedded, on disk) or a MariaDB of ``tests/servers/mariadb.py``; both
survive a kill. This metastore does not create its lock tables, so they are created first. A reaper
deletes locks of dead holders after ``timeout_s``; it runs every second, but only if a setting
asks for it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from tests.servers import server_missing
from tests.servers.java import JvmServer, java, listens, spark_jars
from tests.servers.mariadb import MariaDb
from tests.servers.ports import free_port

HOST = "127.0.0.1"
DATABASE = "hive"
USER = "hive"
PASSWORD = "hive-secret"  # the canary of the tests that search for leaked secrets
DRIVERS = ("/usr/share/java/mariadb-java-client.jar",)
OPENED = ("java.lang", "java.net", "java.util", "java.nio", "sun.nio.ch", "java.util.concurrent")

# Hive's own layout of its transaction tables; understood by Derby and by MariaDB.
LOCK_TABLES = (
    """create table TXNS (TXN_ID bigint not null primary key, TXN_STATE char(1) not null,
    TXN_STARTED bigint not null, TXN_LAST_HEARTBEAT bigint not null,
    TXN_USER varchar(128) not null, TXN_HOST varchar(128) not null,
    TXN_AGENT_INFO varchar(128), TXN_META_INFO varchar(128), TXN_HEARTBEAT_COUNT integer)""",
    """create table TXN_COMPONENTS (TC_TXNID bigint, TC_DATABASE varchar(128) not null,
    TC_TABLE varchar(128), TC_PARTITION varchar(767), TC_OPERATION_TYPE char(1) not null)""",
    """create table COMPLETED_TXN_COMPONENTS (CTC_TXNID bigint,
    CTC_DATABASE varchar(128) not null, CTC_TABLE varchar(256), CTC_PARTITION varchar(767))""",
    "create table NEXT_TXN_ID (NTXN_NEXT bigint not null)",
    "insert into NEXT_TXN_ID values (1)",
    """create table HIVE_LOCKS (HL_LOCK_EXT_ID bigint not null, HL_LOCK_INT_ID bigint not null,
    HL_TXNID bigint, HL_DB varchar(128) not null, HL_TABLE varchar(128),
    HL_PARTITION varchar(767), HL_LOCK_STATE char(1) not null, HL_LOCK_TYPE char(1) not null,
    HL_LAST_HEARTBEAT bigint not null, HL_ACQUIRED_AT bigint, HL_USER varchar(128) not null,
    HL_HOST varchar(128) not null, HL_HEARTBEAT_COUNT integer, HL_AGENT_INFO varchar(128),
    HL_BLOCKEDBY_EXT_ID bigint, HL_BLOCKEDBY_INT_ID bigint,
    primary key (HL_LOCK_EXT_ID, HL_LOCK_INT_ID))""",
    "create index HL_TXNID_INDEX on HIVE_LOCKS (HL_TXNID)",
    "create table NEXT_LOCK_ID (NL_NEXT bigint not null)",
    "insert into NEXT_LOCK_ID values (1)",
    """create table COMPACTION_QUEUE (CQ_ID bigint not null primary key,
    CQ_DATABASE varchar(128) not null, CQ_TABLE varchar(128) not null,
    CQ_PARTITION varchar(767), CQ_STATE char(1) not null, CQ_TYPE char(1) not null,
    CQ_TBLPROPERTIES varchar(2048), CQ_WORKER_ID varchar(128), CQ_START bigint,
    CQ_RUN_AS varchar(128), CQ_HIGHEST_TXN_ID bigint, CQ_META_INFO varchar(2048) {bytes},
    CQ_HADOOP_JOB_ID varchar(32))""",
    "create table NEXT_COMPACTION_QUEUE_ID (NCQ_NEXT bigint not null)",
    "insert into NEXT_COMPACTION_QUEUE_ID values (1)",
    """create table COMPLETED_COMPACTIONS (CC_ID bigint not null primary key,
    CC_DATABASE varchar(128) not null, CC_TABLE varchar(128) not null,
    CC_PARTITION varchar(767), CC_STATE char(1) not null, CC_TYPE char(1) not null,
    CC_TBLPROPERTIES varchar(2048), CC_WORKER_ID varchar(128), CC_START bigint, CC_END bigint,
    CC_RUN_AS varchar(128), CC_HIGHEST_TXN_ID bigint, CC_META_INFO varchar(2048) {bytes},
    CC_HADOOP_JOB_ID varchar(32))""",
    """create table AUX_TABLE (MT_KEY1 varchar(128) not null, MT_KEY2 bigint not null,
    MT_COMMENT varchar(255), primary key (MT_KEY1, MT_KEY2))""",
    """create table WRITE_SET (WS_DATABASE varchar(128) not null,
    WS_TABLE varchar(128) not null, WS_PARTITION varchar(767), WS_TXNID bigint not null,
    WS_COMMIT_ID bigint not null, WS_OPERATION_TYPE char(1) not null)""",
)


def needs_mariadb_driver() -> None:
    """Skip the test that asks where no JDBC driver for MariaDB is installed."""
    if _driver() is None:
        server_missing("no mariadb-java-client.jar: install libmariadb-java from the distribution")


def lay_out_lock_tables(database: MariaDb) -> None:
    """The metastore's database and its lock tables, as its administrator makes them."""
    database.create_database(DATABASE, user=USER, password=PASSWORD, charset="latin1")
    database.execute(
        *(statement.replace("{bytes}", "character set binary") for statement in LOCK_TABLES),
        database=DATABASE,
    )


class HiveMetastore(JvmServer):
    """
    One metastore on a free port of 127.0.0.1; ``with HiveMetastore(folder) as server``.

    Args:
        folder: For its configuration, log and Derby database; created.
        mariadb: The database to use instead of Derby, prepared by ``lay_out_lock_tables``.
        timeout_s: hive.txn.timeout, after which the lock of a silent holder is deleted.
        reaper: Whether such locks are deleted at all.
        settings: Further keys of hive-site.xml.
        jvm: Further options of the Java machine.
    """

    def __init__(
        self,
        folder: Path,
        *,
        mariadb: MariaDb | None = None,
        timeout_s: int = 4,
        reaper: bool = True,
        settings: dict[str, str] | None = None,
        jvm: tuple[str, ...] = (),
    ) -> None:
        self.host = HOST
        self.port = free_port()
        self.timeout_ms = timeout_s * 1000
        self._folder = folder
        self._mariadb = mariadb
        driver = [] if mariadb is None else [_driver() or ""]
        super().__init__(
            "metastore",
            folder,
            # The folder of hive-site.xml must be there, or Hive reads one from where it starts.
            class_path=[str(folder / "conf"), *driver, f"{spark_jars()}/*"],
            main=("org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(self.port)),
            is_ready=lambda: listens(self.port),
            options=(
                *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in OPENED),
                f"-Dderby.stream.error.file={folder / 'derby.log'}",
                *jvm,
            ),
        )
        self._configure({**self._basics(timeout_s, reaper), **self._store(), **(settings or {})})
        if mariadb is None:
            self._lay_out_derby()

    @property
    def uri(self) -> str:
        """The address for writers: ``thrift://host:port``."""
        return f"thrift://{self.host}:{self.port}"

    def _configure(self, site: dict[str, str]) -> None:
        rows = "".join(
            f"<property><name>{key}</name><value>{escape(value)}</value></property>"
            for key, value in site.items()
        )
        conf = self._folder / "conf"
        conf.mkdir()
        text = f"<configuration>{rows}</configuration>"
        (conf / "hive-site.xml").write_text(text, encoding="utf-8")

    def _basics(self, timeout_s: int, reaper: bool) -> dict[str, str]:
        settings = {
            "hive.async.log.enabled": "false",
            "datanucleus.connectionPoolingType": "HikariCP",
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.schema.verification": "false",
            "hive.metastore.uris": "",
            "hive.metastore.warehouse.dir": str(self._folder / "warehouse"),
            "hive.txn.manager": "org.apache.hadoop.hive.ql.lockmgr.DbTxnManager",
            "hive.support.concurrency": "true",
            "hive.in.test": "false",
            "hive.txn.timeout": f"{timeout_s}s",
        }
        if reaper:
            settings["hive.compactor.initiator.on"] = "true"
            settings["hive.timedout.txn.reaper.start"] = "1s"
            settings["hive.timedout.txn.reaper.interval"] = "1s"
        return settings

    def _store(self) -> dict[str, str]:
        name = "javax.jdo.option.Connection"
        if self._mariadb is None:
            return {
                name + "URL": f"jdbc:derby:;databaseName={self._derby};create=true",
                name + "DriverName": "org.apache.derby.jdbc.EmbeddedDriver",
            }
        where = f"{self._mariadb.host}:{self._mariadb.port}/{DATABASE}"
        return {
            name + "URL": f"jdbc:mysql://{where}?useMysqlMetadata=true",
            name + "DriverName": "org.mariadb.jdbc.Driver",
            name + "UserName": USER,
            name + "Password": PASSWORD,
        }

    @property
    def _derby(self) -> Path:
        return self._folder / "derby"

    def _lay_out_derby(self) -> None:
        script = self._folder / "lock_tables.sql"
        lines = [f"connect 'jdbc:derby:;databaseName={self._derby};create=true'", *LOCK_TABLES]
        text = ";\n".join(line.replace("{bytes}", "for bit data") for line in lines)
        script.write_text(text + ";\nexit;\n", encoding="utf-8")
        done = subprocess.run(
            [
                *(str(java()), "-Xmx128m", f"-Dderby.stream.error.file={self._folder / 'ij.log'}"),
                *("-cp", f"{spark_jars()}/*", "org.apache.derby.tools.ij", str(script)),
            ],
            check=True,
            capture_output=True,
            text=True,
        )
        if "ERROR" in done.stdout:
            pytest.fail(f"the lock tables could not be made:\n{done.stdout}")


def _driver() -> str | None:
    return next((path for path in DRIVERS if Path(path).exists()), None)
