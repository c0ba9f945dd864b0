"""
A real Hive Metastore 2.3.10 as a child process, from the JARs inside PySpark alone.

Its database is Derby (embedded, on disk) or a MariaDB of ``tests/servers/mariadb.py``; both
survive a kill. The lock tables, which this metastore does not make by itself, are laid out
first. Locks of dead holders are taken away after ``timeout_s`` by a reaper that looks every
second, which a metastore does only when told so.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self
from xml.sax.saxutils import escape

import pytest

from tests.servers.mariadb import MariaDb, free_port

__all__ = ["HiveMetastore", "lay_out_lock_tables", "needs_mariadb_driver", "needs_metastore"]

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
START_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 20.0
DATABASE = "hive"
USER = "hive"
PASSWORD = "hive-secret"  # the canary of the tests that look for leaked secrets
DRIVERS = ("/usr/share/java/mariadb-java-client.jar",)
JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
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


def needs_metastore() -> None:
    """Skip the test that asks where there is no PySpark or no Java."""
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("no pyspark, whose jars hold the metastore")
    try:
        _java()
    except FileNotFoundError:
        pytest.skip("no java 17 or 21 on this machine")


def needs_mariadb_driver() -> None:
    """Skip the test that asks where no JDBC driver for MariaDB is installed."""
    if _driver() is None:
        pytest.skip("no mariadb-java-client.jar: install libmariadb-java from the distribution")


def lay_out_lock_tables(database: MariaDb) -> None:
    """The metastore's database and its lock tables, as its administrator makes them."""
    database.create_database(DATABASE, user=USER, password=PASSWORD, charset="latin1")
    # The metastore's pool resolves localhost as well as the address.
    database.execute(
        *(statement.replace("{bytes}", "character set binary") for statement in LOCK_TABLES),
        database=DATABASE,
    )


class HiveMetastore:
    """
    One metastore on a free port of 127.0.0.1; ``with HiveMetastore(folder) as server``.

    Args:
        folder: Where its configuration, log and Derby database lie.
        mariadb: The database to use instead of Derby, laid out by ``lay_out_lock_tables``.
        timeout_s: hive.txn.timeout, after which the lock of a silent holder is taken away.
        reaper: Whether that is done at all.
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
        self._jvm = jvm
        self._process: subprocess.Popen[bytes] | None = None
        self._site = {**self._basics(timeout_s, reaper), **self._store(), **(settings or {})}

    @property
    def uri(self) -> str:
        """What writers are told: ``thrift://host:port``."""
        return f"thrift://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The running server's process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Start and wait until it listens; the first time on a new folder after its layout."""
        needs_metastore()
        if not self._folder.exists():
            self._folder.mkdir(parents=True)
            if self._mariadb is None:
                self._lay_out_derby()
        (self._folder / "conf").mkdir(exist_ok=True)
        rows = "".join(
            f"<property><name>{key}</name><value>{escape(value)}</value></property>"
            for key, value in self._site.items()
        )
        site = self._folder / "conf" / "hive-site.xml"
        site.write_text(f"<configuration>{rows}</configuration>", encoding="utf-8")
        driver = [] if self._mariadb is None else [_driver() or ""]
        class_path = os.pathsep.join([str(site.parent), *driver, f"{_jars()}/*"])
        with (self._folder / "metastore.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(_java(), *JVM, *self._jvm),
                    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in OPENED),
                    f"-Dderby.stream.error.file={self._folder / 'derby.log'}",
                    *("-cp", class_path, "org.apache.hadoop.hive.metastore.HiveMetaStore"),
                    *("-p", str(self.port)),
                ],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._await_answer()
        return self

    def stop(self) -> None:
        """Ask it to end. Twice is no error."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9; the database stays."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start again on the same port and database, after ``kill`` or while it runs."""
        self._end(signal.SIGTERM)
        self.start()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _basics(self, timeout_s: int, reaper: bool) -> dict[str, str]:
        told = {
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
            told["hive.compactor.initiator.on"] = "true"
            told["hive.timedout.txn.reaper.start"] = "1s"
            told["hive.timedout.txn.reaper.interval"] = "1s"
        return told

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
        # Embedded users without a name of their own work in the schema APP, as Hive does.
        script.write_text(text + ";\nexit;\n", encoding="utf-8")
        done = subprocess.run(
            [
                *(_java(), *JVM, f"-Dderby.stream.error.file={self._folder / 'ij.log'}"),
                *("-cp", f"{_jars()}/*", "org.apache.derby.tools.ij", str(script)),
            ],
            check=True,
            capture_output=True,
            text=True,
        )
        if "ERROR" in done.stdout:
            pytest.fail(f"the lock tables could not be made:\n{done.stdout}")

    def _await_answer(self) -> None:
        end = time.monotonic() + START_SECONDS_MAX
        while True:
            assert self._process is not None
            if self._process.poll() is not None:
                pytest.fail(f"the metastore ended at once:\n{self.log_end()}")
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex((self.host, self.port)) == 0:
                    return
            if time.monotonic() > end:
                pytest.fail(f"the metastore does not listen:\n{self.log_end()}")
            time.sleep(0.05)

    def log_end(self) -> str:
        """The last lines it wrote."""
        return (self._folder / "metastore.log").read_text(errors="replace")[-3000:]

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS_MAX)


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    if not home:
        command = [sys.executable, str(ROOT / "tools" / "with_java.py")]
        home = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    found = shutil.which("java", path=f"{home}/bin") if home else None
    if found is None:
        raise FileNotFoundError("java")
    return found


def _jars() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "jars"


def _driver() -> str | None:
    return next((path for path in DRIVERS if Path(path).exists()), None)
