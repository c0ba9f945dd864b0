"""The properties of slot stores, and a DynamoDB that does not answer."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from lockproviders.dynamodb.connection import (
    BotoTransport,
    ConditionFailedError,
    MissingTableError,
    TableExistsError,
)
from lockproviders.dynamodb.settings import DynamoSettings
from lockproviders.dynamodb.slots import DynamoSlotStore
from lockproviders.registry import with_slot_store
from lockproviders.sql.database import NoTable, SqliteDatabase
from lockproviders.sql.slots import SqlSlotStore
from tests.unit.timeline.memory import MemoryStorage
from timeline.errors import (
    SettingError,
    StorageUnavailableError,
    UnavailableError,
    UnsafeSetupError,
)
from timeline.model.file_names import SLOTS, slot_path
from timeline.ports.ports import (
    AmbiguousWriteError,
    ObjectExistsError,
    ObjectMissingError,
    Storage,
)
from timeline.properties.options import TABLE_LAYER, PropertySet
from timeline.system import SystemClock, SystemIds

URL = "hoodoo.lock.sql.url"


def chosen(options: Mapping[str, str], layer: str = "code") -> Storage:
    return with_slot_store(
        MemoryStorage("memory://t"),
        PropertySet().with_layer(layer, options),
        clock=SystemClock(),
        ids=SystemIds(),
    )


def test_the_storage_is_the_slot_store_unless_an_option_names_another() -> None:
    assert type(chosen({})) is MemoryStorage
    assert chosen({}).capabilities.slots == "storage"


@pytest.mark.parametrize(
    ("options", "slots"),
    [
        (
            {"hoodoo.slots.backend": "sql", URL: "/var/lib/s.db"},
            "sql:sqlite:/var/lib/s.db#hoodoo_slots#memory://t",
        ),
        (
            {
                "hoodoo.slots.backend": "sql",
                URL: "postgresql://me:secret@db/lake",
                "hoodoo.slots.table": "ours.slots",
                "hoodoo.slots.key": "flights",
            },
            "sql:postgresql://db:5432/lake#ours.slots#flights",
        ),
        (
            {
                "hoodoo.slots.backend": "dynamodb",
                "hoodie.write.lock.dynamodb.region": "eu-west-1",
            },
            "dynamodb:eu-west-1/hoodoo_slots#memory://t",
        ),
    ],
)
def test_a_slot_store_has_a_name_without_secrets(options: dict[str, str], slots: str) -> None:
    assert chosen(options).capabilities.slots == slots
    assert chosen(options).capabilities.atomic_create


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"hoodoo.slots.backend": "etcd"}, "hoodoo.slots.backend"),
        ({"hoodoo.slots.backend": "sql"}, URL),
        (
            {"hoodoo.slots.backend": "sql", URL: "/s.db", "hoodoo.slots.table": "a; drop"},
            "hoodoo.slots.table",
        ),
    ],
)
def test_wrong_settings_are_refused_by_name(options: dict[str, str], named: str) -> None:
    with pytest.raises(SettingError, match=named.replace(".", r"\.")):
        chosen(options)


def test_a_table_does_not_choose_its_slot_store() -> None:
    """SEC11: otherwise a writer of the table's properties could choose the server."""
    options = {"hoodoo.slots.backend": "sql", URL: "/tmp/theirs.db"}
    assert type(chosen(options, layer=TABLE_LAYER)) is MemoryStorage
    properties = PropertySet().with_layer(TABLE_LAYER, {URL: "/theirs.db"})
    properties = properties.with_layer("code", {"hoodoo.slots.backend": "sql"})
    with pytest.raises(UnsafeSetupError):
        with_slot_store(
            MemoryStorage("memory://t"), properties, clock=SystemClock(), ids=SystemIds()
        )


@pytest.mark.spec("SLOT-6")
def test_a_dropped_slot_table_is_not_created_again_by_a_writer(tmp_path: Path) -> None:
    """A writer that does not know the old slots would take each number a second time."""
    options = {
        "hoodoo.slots.backend": "sql",
        URL: str(tmp_path / "slots.db"),
        "hoodoo.lock.sql.create_table": "true",
    }
    storage = chosen(options)
    storage.create(slot_path(1), b"1")
    with closing(sqlite3.connect(tmp_path / "slots.db")) as outside:
        outside.execute("DROP TABLE hoodoo_slots")
    for again in (
        lambda: storage.create(slot_path(1), b"again"),
        lambda: storage.read(slot_path(1)),
        lambda: storage.names(SLOTS),
        lambda: storage.delete(slot_path(1)),
    ):
        with pytest.raises(UnsafeSetupError) as refused:
            again()
        assert refused.value.kind == "slots_lost"


@pytest.mark.spec("SLOT-6")
def test_a_deleted_slot_file_is_detected_at_once(tmp_path: Path) -> None:
    """Otherwise it would decide in a file that no other process can open."""
    options = {
        "hoodoo.slots.backend": "sql",
        URL: str(tmp_path / "slots.db"),
        "hoodoo.lock.sql.create_table": "true",
    }
    storage = chosen(options)
    storage.create(slot_path(1), b"1")
    for file in tmp_path.iterdir():
        file.unlink()
    for _ in range(2):
        with pytest.raises(UnsafeSetupError) as refused:
            storage.create(slot_path(2), b"2")
        assert refused.value.kind == "slots_lost"


@pytest.mark.spec("SLOT-6")
def test_a_missing_table_that_another_thread_creates_meanwhile_is_no_lost_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement was sent before the table existed, so its error is no sign of a loss."""
    database = SqliteDatabase(
        str(tmp_path / "slots.db"), may_create=True, ids=SystemIds(), timeout_ms=3_000, durable=True
    )
    store = SqlSlotStore(database, table="slots", may_create=True)
    insert = store._table.change_once
    others = [lambda: store.create("a/1", b"of another thread")]

    def insert_late(statement: str, values: Sequence[Any] = ()) -> int:
        try:
            return insert(statement, values)
        except NoTable:
            if others:
                others.pop()()
            raise

    monkeypatch.setattr(store._table, "change_once", insert_late)
    with closing(store):
        store.create("a/2", b"late")
        assert store.names("a") == ["1", "2"]


# ------------------------------------------------------------------ DynamoDB


@pytest.mark.spec("SLOT-6")
def test_a_missing_dynamodb_table_that_another_thread_creates_meanwhile_is_no_lost_table() -> None:
    """Both puts were sent before the table existed; it is created once."""
    active = {"Table": {"TableStatus": "ACTIVE"}}

    class CreatedMeanwhile(Answers):
        def call(self, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
            if self.asked:
                return super().call(operation, request)
            self.asked.append(operation)
            store.create("a/1", b"of another thread")
            raise MissingTableError("none")

    answers = CreatedMeanwhile(MissingTableError("none"), {}, active, {}, {})
    store = store_of(answers, create_table=True)
    store.create("a/2", b"late")
    assert answers.asked == [
        *("put_item", "put_item", "create_table", "describe_table", "put_item"),
        "put_item",
    ]


@pytest.mark.parametrize("before", [{}, ConditionFailedError()])
def test_a_dropped_dynamodb_table_is_not_created_again_by_a_writer(before: object) -> None:
    answers = Answers(before, MissingTableError("none"))
    store = store_of(answers, create_table=True)
    with suppress(ObjectExistsError):
        store.create("a/1", b"1")
    with pytest.raises(UnsafeSetupError) as refused:
        store.create("a/2", b"2")
    assert refused.value.kind == "slots_lost"
    assert answers.asked == ["put_item", "put_item"]


class Answers:
    """Gives answers one after the other; errors are raised."""

    def __init__(self, *answers: object) -> None:
        self.left = list(answers)
        self.asked: list[str] = []

    def call(self, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        assert request["TableName"] == "slots"
        self.asked.append(operation)
        answer = self.left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]

    def close(self) -> None:
        """No resource is open."""


def store_of(answers: Answers, *, create_table: bool = False) -> DynamoSlotStore:
    settings = DynamoSettings(
        table="slots",
        key="t",
        region="eu-west-1",
        endpoint=None,
        lease_ms=60_000,
        create_table=create_table,
        creation_timeout_ms=60_000,
        count_holdings=False,
        access_key=None,
        secret_key=None,
        session_token=None,
    )
    return DynamoSlotStore(settings, lambda: answers, clock=SystemClock(), ids=SystemIds())


def unanswered(*, maybe_done: bool) -> UnavailableError:
    return UnavailableError("no answer", maybe_done=maybe_done)


@pytest.mark.parametrize(
    ("answer", "meaning"),
    [
        (ConditionFailedError(), ObjectExistsError),
        (unanswered(maybe_done=True), AmbiguousWriteError),
        (unanswered(maybe_done=False), StorageUnavailableError),
    ],
)
def test_a_put_is_sent_once_and_its_answer_is_raised(
    answer: Exception, meaning: type[Exception]
) -> None:
    """F16: a repeated put would conflict with its own first copy."""
    answers = Answers(answer)
    with pytest.raises(meaning):
        store_of(answers).create("a/1", b"x")
    assert answers.asked == ["put_item"]


def test_a_request_without_effect_is_repeated_once() -> None:
    answers = Answers(unanswered(maybe_done=True), {}, unanswered(maybe_done=True), {})
    store = store_of(answers)
    with pytest.raises(ObjectMissingError):
        store.read("a/1")
    store.delete("a/1")
    assert answers.asked == ["get_item", "get_item", "delete_item", "delete_item"]
    with pytest.raises(StorageUnavailableError):
        store_of(Answers(*[unanswered(maybe_done=True)] * 2)).names("a")


def test_names_are_returned_from_all_pages() -> None:
    pages = [
        {"Items": [{"name": {"S": "2"}}], "LastEvaluatedKey": {"name": {"S": "2"}}},
        {"Items": [{"name": {"S": "1"}}]},
    ]
    assert store_of(Answers(*pages)).names("a") == ["1", "2"]


def test_a_missing_table_is_made_only_on_request() -> None:
    with pytest.raises(UnsafeSetupError, match="hash key 'folder' and the sort key 'name'"):
        store_of(Answers(MissingTableError("none"))).create("a/1", b"x")
    active = {"Table": {"TableStatus": "ACTIVE"}}
    for made in ({}, TableExistsError("faster")):
        answers = Answers(MissingTableError("none"), made, active, {})
        store_of(answers, create_table=True).create("a/1", b"x")
        assert answers.asked == ["put_item", "create_table", "describe_table", "put_item"]


def test_a_table_of_something_else_is_refused_with_advice_about_slots() -> None:
    """The key of a lock table would be wrong for slots."""
    wrong = BotoTransport._schema_error(store_of(Answers()), "no key 'id'")  # type: ignore[arg-type]
    with pytest.raises(UnsafeSetupError, match="no key 'id'") as caught:
        store_of(Answers(wrong)).create("a/1", b"x")
    assert "hash key 'folder' and the sort key 'name'" in caught.value.message
    assert "hoodoo.slots.table" in caught.value.message
    assert "locks" not in caught.value.message


def test_a_denied_client_gets_the_permission_that_the_table_needs() -> None:
    """The permissions of a lock table would name the wrong policy."""
    denied = BotoTransport._denied_error(store_of(Answers()), "query", "not you")  # type: ignore[arg-type]
    with pytest.raises(UnsafeSetupError, match="allow dynamodb:Query on all of its keys") as caught:
        store_of(Answers(denied)).names("a")
    assert caught.value.kind == "slots_denied"
    assert "not you" in caught.value.message
    assert "lock" not in caught.value.message
    denied = BotoTransport._denied_error(store_of(Answers()), "create_table", "")  # type: ignore[arg-type]
    with pytest.raises(UnsafeSetupError, match="allow dynamodb:CreateTable on all"):
        store_of(Answers(MissingTableError("none"), denied), create_table=True).names("a")


def test_a_new_table_that_is_not_visible_everywhere_is_retried() -> None:
    active, gone = {"Table": {"TableStatus": "ACTIVE"}}, MissingTableError("not yet")
    made = [MissingTableError("none"), {}, active, gone]
    with pytest.raises(StorageUnavailableError, match="not active yet"):
        store_of(Answers(*made), create_table=True).create("a/1", b"x")
    answers = Answers(*made, {}, *made, *made)
    assert store_of(answers, create_table=True).names("a") == []
    with pytest.raises(StorageUnavailableError, match="not active yet"):
        store_of(Answers(*made, *made), create_table=True).names("a")
