"""
The least code that takes and releases a lock of each service, by the service's own client.

It is the baseline of our providers: no owner for others to read, no lease, no renewal, no
fencing token, no read-back of lost answers. If a service has no queue of its own, waiting
is ours (the same pauses), so that a ratio compares requests and not sleeping.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

Options = Mapping[str, Any]
POLL_GROWTH = 1.6  # as lockproviders/acquire.py
GIVE_UP_SECONDS = 10.0


class GaveUpError(Exception):
    """The lock was not had in ``GIVE_UP_SECONDS``."""


class Locker(Protocol):
    """One contender's client."""

    def cycle(self) -> None:
        """Wait for the lock, take it, give it back. Raises: ``GaveUpError``."""

    def close(self) -> None:
        """Give up connections."""


class Polling(ABC):
    """A client whose service answers only yes or no."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.me = uuid.uuid4().hex
        self.trouble = "held by others"

    def cycle(self) -> None:
        pause_ms = float(self.options["poll_first_ms"])
        end = time.monotonic() + GIVE_UP_SECONDS
        while not self.take():
            if time.monotonic() > end:
                raise GaveUpError(f"bare: {GIVE_UP_SECONDS:.0f} s; {self.trouble}")
            time.sleep(pause_ms * (0.5 + random.random()) / 1000)
            pause_ms = min(pause_ms * POLL_GROWTH, float(self.options["poll_max_ms"]))
        self.give_back()

    @abstractmethod
    def take(self) -> bool: ...

    @abstractmethod
    def give_back(self) -> None: ...

    def close(self) -> None:  # noqa: B027  most have nothing to give up
        """Nothing by default."""


class ThreadLock:
    """``threading.Lock``."""

    locks: dict[str, threading.Lock] = {}  # noqa: RUF012  one for all threads of the process

    def __init__(self, options: Options) -> None:
        self._lock = self.locks.setdefault(options["key"], threading.Lock())

    def cycle(self) -> None:
        with self._lock:
            pass

    def close(self) -> None:
        """Nothing to give up."""


class Portalocker:
    """portalocker with its own way of waiting: a check each quarter of a second."""

    def __init__(self, options: Options) -> None:
        import portalocker

        self._lock = portalocker.Lock(options["path"], timeout=600)

    def cycle(self) -> None:
        with self._lock:
            pass

    def close(self) -> None:
        """Nothing to give up."""


class KazooRecipe:
    """kazoo's lock recipe; its queue wakes the next one."""

    def __init__(self, options: Options) -> None:
        from kazoo.client import KazooClient

        self._client = KazooClient(f"127.0.0.1:{options['port']}", timeout=60)
        self._client.start(timeout=30)
        self._lock = self._client.Lock("/bench/bare", "bench")

    def cycle(self) -> None:
        with self._lock:
            pass

    def close(self) -> None:
        self._client.stop()
        self._client.close()


class BotoRow(Polling):
    """get, conditional put, conditional delete: the same requests as Java's client."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        import boto3
        from botocore.config import Config

        self._client = boto3.client(
            "dynamodb",
            endpoint_url=f"http://127.0.0.1:{options['port']}",
            region_name=options["region"],
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
            config=Config(retries={"total_max_attempts": 1, "mode": "standard"}),
        )
        self._table = options["table"]
        self._key = {"key": {"S": "bare"}}

    def take(self) -> bool:
        if "Item" in self._client.get_item(
            TableName=self._table, Key=self._key, ConsistentRead=True
        ):
            return False
        try:
            self._client.put_item(
                TableName=self._table,
                Item={**self._key, "owner": {"S": self.me}},
                ConditionExpression="attribute_not_exists(#k)",
                ExpressionAttributeNames={"#k": "key"},
            )
        except self._client.exceptions.ConditionalCheckFailedException:
            return False
        return True

    def give_back(self) -> None:
        self._client.delete_item(
            TableName=self._table,
            Key=self._key,
            ConditionExpression="#o = :me",
            ExpressionAttributeNames={"#o": "owner"},
            ExpressionAttributeValues={":me": {"S": self.me}},
        )

    def close(self) -> None:
        self._client.close()


class ObstoreObject(Polling):
    """Two conditional puts; a get when the object is not the one that this client left."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        from obstore.store import S3Store

        self._store = S3Store(
            options["bucket"],
            endpoint=f"http://127.0.0.1:{options['port']}",
            region=options["region"],
            access_key_id="testing",
            secret_access_key="testing",
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        self._tag: str | None = None  # of the free object this client left

    def take(self) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        if self._tag is None:
            try:
                found = obstore.get(self._store, "bare")
            except FileNotFoundError:
                mode: Any = "create"
            else:
                if found.bytes().to_bytes():
                    return False
                mode = {"e_tag": found.meta["e_tag"]}
        else:
            mode = {"e_tag": self._tag}
        self._tag = None
        try:
            done = obstore.put(self._store, "bare", self.me.encode(), mode=mode)
        except (AlreadyExistsError, PreconditionError):
            return False
        self._held = done["e_tag"]
        return True

    def give_back(self) -> None:
        import obstore

        self._tag = obstore.put(self._store, "bare", b"", mode={"e_tag": self._held})["e_tag"]


class ThriftLock(Polling):
    """
    lock and unlock; a queued request is withdrawn, as Java does.

    After a refusal it checks before it asks again, as ours does. Sixteen clients that only ask keep a
    metastore on Derby so busy with their queue that no client gets the lock for minutes.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        from pymetastore.hive_metastore import ttypes
        from thrift.Thrift import TException

        self._types = ttypes
        self._failures = (TException, OSError)
        self._looks_first = False
        self._connect()

    def take(self) -> bool:
        types = self._types
        try:
            if self._looks_first and self._is_taken():
                return False
            part = types.LockComponent(
                type=types.LockType.EXCLUSIVE,
                level=types.LockLevel.TABLE,
                dbname="default",
                tablename="bare",
            )
            answer = self._service.lock(
                types.LockRequest(
                    component=[part], txnid=0, user="b", hostname="b", agentInfo=self.me
                )
            )
            self._id = answer.lockid
            self._looks_first = answer.state != types.LockState.ACQUIRED
            if self._looks_first:
                self.give_back()
        except self._failures as error:
            self.trouble = f"{type(error).__name__}: {error}"
            # Derby refuses some of many at once; the outcome is read afterwards.
            self._looks_first = True
            self._transport.close()
            self._connect()
        return not self._looks_first

    def give_back(self) -> None:
        self._service.unlock(self._types.UnlockRequest(lockid=self._id))

    def close(self) -> None:
        with contextlib.suppress(*self._failures):
            self._is_taken()
        self._transport.close()

    def _connect(self) -> None:
        from pymetastore.hive_metastore import ThriftHiveMetastore
        from thrift.protocol.TBinaryProtocol import TBinaryProtocol
        from thrift.transport.TSocket import TSocket
        from thrift.transport.TTransport import TBufferedTransport

        end = TSocket("127.0.0.1", self.options["port"])
        end.setTimeout(GIVE_UP_SECONDS * 1000)
        self._transport = TBufferedTransport(end)
        self._transport.open()
        self._service = ThriftHiveMetastore.Client(TBinaryProtocol(self._transport))

    def _is_taken(self) -> bool:
        request = self._types.ShowLocksRequest(dbname="default", tablename="bare")
        others = False
        for row in self._service.show_locks(request).locks or ():
            if row.agentInfo != self.me:
                others = True
                self.trouble = f"held by {row}"
            if row.agentInfo == self.me:
                self._service.unlock(self._types.UnlockRequest(lockid=row.lockid))
        return others


def _mysql(options: Options, *, autocommit: bool) -> Any:
    import pymysql

    return pymysql.connect(
        host="127.0.0.1",
        port=options["port"],
        user=options["user"],
        password=options["password"],
        database=options["database"],
        autocommit=autocommit,
        ssl_disabled=True,
    )


class MetastoreTables(Polling):
    """The statements by which the metastore itself grants a lock, and the one that ends it."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._connection = _mysql(options, autocommit=False)
        self._run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        self._run("INSERT IGNORE INTO AUX_TABLE (MT_KEY1, MT_KEY2) VALUES ('CheckLock', 0)")
        self._connection.commit()

    def take(self) -> bool:
        self._run("SELECT 1 FROM AUX_TABLE WHERE MT_KEY1 = 'CheckLock' FOR UPDATE")
        number = self._run("SELECT NL_NEXT FROM NEXT_LOCK_ID FOR UPDATE")[0][0]
        if self._run("SELECT 1 FROM HIVE_LOCKS WHERE HL_DB = 'default' AND HL_TABLE = 'bare'"):
            self._connection.rollback()
            return False
        self._run("UPDATE NEXT_LOCK_ID SET NL_NEXT = %s", number + 1)
        self._run(
            "INSERT INTO HIVE_LOCKS (HL_LOCK_EXT_ID, HL_LOCK_INT_ID, HL_TXNID, HL_DB, HL_TABLE, "
            "HL_LOCK_STATE, HL_LOCK_TYPE, HL_LAST_HEARTBEAT, HL_USER, HL_HOST) VALUES "
            "(%s, 1, 0, 'default', 'bare', 'a', 'e', 0, 'bench', 'bench')",
            number,
        )
        self._connection.commit()
        self._id = number
        return True

    def give_back(self) -> None:
        self._run("DELETE FROM HIVE_LOCKS WHERE HL_LOCK_EXT_ID = %s", self._id)
        self._connection.commit()

    def close(self) -> None:
        self._connection.close()

    def _run(self, statement: str, *values: int) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())


_TABLE = "CREATE TABLE IF NOT EXISTS bare (name VARCHAR(20) PRIMARY KEY, owner VARCHAR(64))"
_TAKE = "UPDATE bare SET owner = ? WHERE name = 'bare' AND owner IS NULL"
_FREE = "UPDATE bare SET owner = NULL WHERE name = 'bare' AND owner = ?"


class MySqlRow(Polling):
    """Two updates of one row."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._connection = _mysql(options, autocommit=True)
        self._change(_TABLE)
        self._change("INSERT IGNORE INTO bare VALUES ('bare', NULL)")

    def take(self) -> bool:
        return self._change(_TAKE.replace("?", "%s"), self.me) == 1

    def give_back(self) -> None:
        self._change(_FREE.replace("?", "%s"), self.me)

    def close(self) -> None:
        self._connection.close()

    def _change(self, statement: str, *values: str) -> int:
        with self._connection.cursor() as cursor:
            return int(cursor.execute(statement, values or None))


class SqliteRow(Polling):
    """The same in a file, with the same care for power cuts as ours."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._connection = sqlite3.connect(
            options["path"], timeout=30, isolation_level=None, check_same_thread=False
        )
        for statement in (
            *("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", _TABLE),
            "INSERT OR IGNORE INTO bare VALUES ('bare', NULL)",
        ):
            self._connection.execute(statement)

    def take(self) -> bool:
        return self._connection.execute(_TAKE, (self.me,)).rowcount == 1

    def give_back(self) -> None:
        self._connection.execute(_FREE, (self.me,))

    def close(self) -> None:
        self._connection.close()


BARE: Mapping[str, Callable[[Options], Locker]] = {
    "threading.Lock": ThreadLock,
    "portalocker": Portalocker,
    "kazoo's recipe": KazooRecipe,
    "boto3": BotoRow,
    "obstore": ObstoreObject,
    "thrift": ThriftLock,
    "pymysql, metastore tables": MetastoreTables,
    "pymysql": MySqlRow,
    "sqlite3": SqliteRow,
}
