"""A source of Kafka, on the broker that librdkafka simulates in this process."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer

import hoodoo
from hoodoo.streamer.run import Streamer
from tests.unit.hoodoo.streamer.streams import rows_of, stream
from timeline.errors import HoodooError, InvalidInputError, SettingError, UnavailableError


@dataclass
class Broker:
    """A simulated broker; it lives as long as its producer."""

    producer: Producer = field(
        default_factory=lambda: Producer({"test.mock.num.brokers": "1", "log_level": 0})
    )

    @property
    def address(self) -> str:
        [broker] = self.producer.list_topics(timeout=10).brokers.values()
        return f"{broker.host}:{broker.port}"

    def send(self, topic: str, *values: bytes | None, partitions: int = 4) -> None:
        for number, value in enumerate(values):
            self.producer.produce(topic, value, key=b"k", partition=number % partitions)
        assert self.producer.flush(20) == 0


TARGET = "hoodie.streamer.ingestion.targetBasePath"
NUMBERS = count()


@pytest.fixture(scope="module")
def broker() -> Broker:
    return Broker()


Options = Callable[..., dict[str, str]]


@pytest.fixture
def options(tmp_path: Path, broker: Broker) -> Options:
    topic = f"topic{next(NUMBERS)}"  # made at its first use, with four partitions
    broker.producer.list_topics(topic, timeout=10)

    def made(**more: str) -> dict[str, str]:
        return {
            TARGET: str(tmp_path / "t"),
            "hoodie.datasource.write.recordkey.field": "id",
            "hoodoo.streamer.source.class": "JsonKafkaSource",
            "hoodie.streamer.source.kafka.topic": topic,
            "bootstrap.servers": broker.address,
            "auto.offset.reset": "earliest",
            **{key.replace("__", "."): value for key, value in more.items()},
        }

    return made


def topic_of(options: Options) -> str:
    return options()["hoodie.streamer.source.kafka.topic"]


def messages(*numbers: int, v: str = "a") -> list[bytes]:
    return [b'{"id": %d,\n "v": "%s"}' % (number, v.encode()) for number in numbers]


def test_messages_are_written_and_the_offsets_are_in_the_commit(
    broker: Broker, options: Options
) -> None:
    topic = topic_of(options)
    broker.send(topic, *messages(*range(9)), None)
    report = stream(options())
    assert (report.batches, report.rows, report.checkpoint) == (1, 9, f"{topic},0:3,1:3,2:2,3:2")
    assert stream(options()).batches == 0
    broker.send(topic, *messages(8, 9, v="b"))
    assert stream(options()).checkpoint == f"{topic},0:4,1:4,2:2,3:2"
    assert rows_of(options()[TARGET]) == [(n, "b" if n > 7 else "a") for n in range(10)]


def test_a_limit_splits_all_partitions_fairly(broker: Broker, options: Options) -> None:
    broker.send(topic_of(options), *messages(*range(40)))
    steps: list[str] = []
    with Streamer(options(hoodoo__streamer__source__limit="15")) as streamer:
        report = streamer.run(on_batch=lambda one: steps.append(one.checkpoint.partition(",")[2]))
    assert steps == ["0:4,1:4,2:4,3:3", "0:8,1:8,2:8,3:6", "0:10,1:10,2:10,3:10"]
    assert report.rows == len(rows_of(options()[TARGET])) == 40


def test_a_streamer_that_begins_at_the_end_loses_no_later_message(
    broker: Broker, options: Options
) -> None:
    topic = topic_of(options)
    broker.send(topic, *messages(1, 2))
    with Streamer(options(auto__offset__reset="latest")) as streamer:
        with pytest.warns(
            UserWarning, match=r"leaves out 2 messages: .* auto.offset.reset=earliest"
        ):
            assert streamer.run().batches == 0
        broker.send(topic, *messages(3, 4))
        assert streamer.run().rows == 2
    assert rows_of(options()[TARGET]) == [(3, "a"), (4, "a")]


def test_columns_with_offsets_are_those_of_hudi(broker: Broker, options: Options) -> None:
    broker.send(topic_of(options), *messages(1, 2))
    stream(options(hoodie__streamer__source__kafka__append__offsets="true"))
    with hoodoo.open_table(options()[TARGET]) as table:
        rows = table.to_arrow().sort_by("id").to_pylist()
    assert [row["_hoodie_kafka_source_partition"] for row in rows] == [0, 1]
    assert [row["_hoodie_kafka_source_offset"] for row in rows] == [0, 0]
    assert [row["_hoodie_kafka_source_key"] for row in rows] == ["k", "k"]
    assert all(row["_hoodie_kafka_source_timestamp"] > 1_700_000_000_000 for row in rows)


def test_a_bad_message_goes_to_the_error_table(
    broker: Broker, options: Options, tmp_path: Path
) -> None:
    broker.send(topic_of(options), *messages(1), b"\xff{", *messages(2))
    with pytest.raises(InvalidInputError):
        stream(options())
    bad = options(
        hoodie__errortable__enable="true", hoodie__errortable__base__path=str(tmp_path / "bad")
    )
    assert stream(bad).rows == 2
    with hoodoo.open_table(tmp_path / "bad") as table:
        [row] = table.to_arrow().to_pylist()
    assert row["position"] == f"kafka:{topic_of(options)} 1:0"
    assert row["record"] == "\ufffd{"


@pytest.mark.parametrize(
    ("checkpoint", "text"),
    [
        ("17", "which has topic,partition:offset"),
        ("orders,0:1", "which has the topic"),
        ("{},0:99", "these last offsets: 0:1, 1:1, 2:0, 3:0"),
        ("{},7:0", "these last offsets: 0:1, 1:1, 2:0, 3:0"),
    ],
)
def test_a_checkpoint_of_another_topic_is_refused(
    broker: Broker, options: Options, tmp_path: Path, checkpoint: str, text: str
) -> None:
    topic = topic_of(options)
    broker.send(topic, *messages(1, 2))
    with pytest.raises(InvalidInputError) as caught:
        stream(options(hoodoo__streamer__checkpoint=checkpoint.format(topic)))
    assert caught.value.kind == "streamer_checkpoint"
    assert text in caught.value.message
    assert not (tmp_path / "t").exists()


def test_brokers_that_do_not_answer_are_told(options: Options) -> None:
    wrong = options(bootstrap__servers="127.0.0.1:1", hoodoo__streamer__source__timeout__ms="1000")
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1 do not answer.*correct bootstrap"):
        stream(wrong)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("bootstrap.servers", "", "set bootstrap.servers to the brokers"),
        ("no.such.key", "1", "correct or remove it: no.such.key"),
        ("hoodie.streamer.source.kafka.topic", "", "set hoodie.streamer.source.kafka.topic"),
        ("auto.offset.reset", "none", "one of latest, earliest, group"),
    ],
)
def test_a_wrong_option_of_kafka_is_refused_by_name(
    options: Options, key: str, value: str, text: str
) -> None:
    with pytest.raises(SettingError) as caught:
        Streamer(options() | {key: value})
    assert text in caught.value.message


def test_keys_of_javas_client_are_understood(broker: Broker, options: Options) -> None:
    broker.send(topic_of(options), *messages(1))
    java = {
        "key.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
        "schema.registry.url": "http://127.0.0.1:1",
    }
    assert stream(options() | java).rows == 1
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";'
    secured = {"sasl.jaas.config": login, "security.protocol": "SASL_PLAINTEXT",
               "sasl.mechanism": "PLAIN", "hoodoo.streamer.source.timeout.ms": "500"}  # fmt: skip
    with pytest.raises(HoodooError) as caught:
        stream(options() | secured)
    assert caught.value.kind == "unreadable_source"


# ---- Avro

OLD = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "v", "type": ["null", "string"]}]}


def datum(schema: dict[str, Any], row: dict[str, Any], number: int | None = None) -> bytes:
    made = io.BytesIO()
    fastavro.schemaless_writer(made, schema, row)
    head = b"" if number is None else struct.pack(">bI", 0, number)
    return head + made.getvalue()


def avro(options: Options, **more: str) -> dict[str, str]:
    return options(**more) | {"hoodoo.streamer.source.class": "AvroKafkaSource"}


def test_avro_messages_name_their_schemas_in_a_registry(
    broker: Broker, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def schema_of_id(registry: str, number: int, login: str) -> str:
        assert (registry, login) == ("http://r:8081", "u:p")
        asked.append(number)
        return json.dumps({7: OLD, 8: NEW}[number])

    monkeypatch.setattr("hoodoo.streamer.sources.schema_of_id", schema_of_id)
    values = [
        datum(OLD, {"id": n}, 7) if n % 3 else datum(NEW, {"id": n, "v": "x"}, 8) for n in range(9)
    ]
    broker.send(topic_of(options), *values)
    registry = {
        "schema__registry__url": "http://r:8081",
        "schema__registry__basic__auth__user__info": "u:p",
    }
    assert stream(avro(options, **registry)).rows == 9
    assert rows_of(options()[TARGET]) == [(n, None if n % 3 else "x") for n in range(9)]
    assert sorted(asked) == [7, 8]
    broker.send(topic_of(options), b"\x00\x00", datum(OLD, {"id": 5}, 7))
    with pytest.raises(InvalidInputError, match="it has no number of a schema"):
        stream(avro(options, **registry))
    with pytest.raises(SettingError, match=r"set schema\.registry\.url"):
        stream(avro(options))


def test_bare_avro_messages_have_the_schema_of_the_source(
    broker: Broker, options: Options, tmp_path: Path
) -> None:
    (tmp_path / "s.avsc").write_text(json.dumps(NEW))
    bare = {
        "hoodie__streamer__source__kafka__value__deserializer__class": "org.apache.kafka.common.serialization.ByteArrayDeserializer",
        "hoodie__streamer__schemaprovider__source__schema__file": str(tmp_path / "s.avsc"),
    }
    broker.send(
        topic_of(options), datum(NEW, {"id": 1, "v": None}), datum(NEW, {"id": 2, "v": "y"})
    )
    assert stream(avro(options, **bare)).rows == 2
    assert rows_of(options()[TARGET]) == [(1, None), (2, "y")]
    broker.send(topic_of(options), b"\x02\x02\x7f")
    with pytest.raises(InvalidInputError, match="a message is not Avro of its schema"):
        stream(avro(options, **bare))
