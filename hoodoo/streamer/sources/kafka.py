"""
A topic of Kafka.

The checkpoint is Hudi's: ``topic,0:5,1:7`` names the next offset of each partition. Offsets are
never taken from the consumer group, unless ``auto.offset.reset=group`` begins with them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from hoodoo.streamer.bad_records import BadRecord, Parse, read_good
from hoodoo.streamer.settings import OffsetReset, StreamerSettings
from hoodoo.streamer.sources.source import SourceBatch, unreadable, wrong_checkpoint
from timeline.errors import SettingError, UnavailableError, counted, needs_extra
from timeline.ports.ports import Clock
from timeline.properties.options import PropertySet

_BYTES_MAX = 256 << 20
_MESSAGES_MAX = 10_000  # of one call of the client
_CHECKPOINT = re.compile(r"[^,:]+(,\d{1,9}:\d{1,19})+")
_OWN: Final = ("hoodie.", "hoodoo.", "spark.", "fs.", "hadoop.")
#: Keys of Java's client, its deserializers and its registry, which this client does not have.
_OF_JAVA: Final = frozenset({"key.deserializer", "value.deserializer", "auto.offset.reset"})
_OF_REGISTRY: Final = ("schema.registry.", "basic.auth.")
_JAAS: Final = re.compile(r'(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')
_GROUP: Final = "hoodoo-streamer"


def client_options(properties: PropertySet) -> dict[str, str]:
    """
    Return the options of the Kafka client: all keys that are not of hoodoo, Hudi or Spark.

    Raises:
        SettingError: ``bootstrap.servers`` is missing.
    """
    given = {
        key: value
        for key, value in properties.items()
        if not key.startswith((*_OWN, *_OF_REGISTRY)) and key not in _OF_JAVA
    }
    if not given.get("bootstrap.servers"):
        raise SettingError(
            "set bootstrap.servers to the brokers, host:9092: a source of Kafka needs it",
            kind="setting_missing",
            key="bootstrap.servers",
            value="",
            layer="default",
            suggestion="host:9092",
        )
    jaas = given.pop("sasl.jaas.config", None)
    if jaas is not None:  # the form of Java's client
        given |= {f"sasl.{name}": value for name, value in _JAAS.findall(jaas)}
    return {
        "group.id": _GROUP,
        **given,
        "enable.auto.commit": "false",
        "enable.partition.eof": "true",
        "auto.offset.reset": "error",  # never skip messages without a word
    }


@dataclass(frozen=True, slots=True)
class _Range:
    """Offsets of one partition to read; ``end`` is left out."""

    begin: int
    end: int


class KafkaSource:
    """
    A source of messages.

    Args:
        settings: Of the streamer; ``kafka_topic`` is set.
        options: Of the client (``client_options``).
        clock: Measures the time without an answer.
        parse: Reads the values of messages.

    Raises:
        MissingExtraError: The client is not installed.
        SettingError: The client does not know an option.
    """

    def __init__(
        self, settings: StreamerSettings, options: Mapping[str, str], clock: Clock, parse: Parse
    ) -> None:
        with needs_extra("a source of Kafka needs confluent-kafka", "kafka"):
            import confluent_kafka
        self._kafka = confluent_kafka
        self._settings = settings
        self._topic = settings.kafka_topic or ""
        self._clock = clock
        self._parse = parse
        self._servers = options["bootstrap.servers"]
        self._errors: list[str] = []
        self._begin: str | None = None
        try:
            self._consumer = confluent_kafka.Consumer(
                {**options, "error_cb": lambda error: self._errors.append(str(error))},
                logger=_Silent(),
            )
        except (confluent_kafka.KafkaException, TypeError, ValueError) as error:
            raise _refused_option(options, error) from None

    @property
    def address(self) -> str:
        return f"kafka:{self._topic}"

    def check(self, checkpoint: str | None) -> None:
        self._ranges(checkpoint)

    def read(self, checkpoint: str | None, schema: pa.Schema | None) -> SourceBatch:
        # The begin of a streamer without a checkpoint must not move before its first commit.
        checkpoint = checkpoint or self._begin
        ranges, has_more = self._limited(self._ranges(checkpoint))
        begin = {one: each.begin for one, each in ranges.items()}
        if checkpoint is None:
            self._begin = self._checkpoint(begin)
            self._tell_left_out(begin)
        else:
            begin = _offsets_in(checkpoint)
        messages, reached = self._consume(ranges)
        ends = {**begin, **reached}
        has_more |= any(ends[one] < each.end for one, each in ranges.items())
        if ends == begin:
            return SourceBatch(rows=None, checkpoint=checkpoint)
        valued = [one for one in messages if one.value() is not None]
        values = [one.value() for one in valued]
        bad: dict[int, str] = {}
        if self._settings.leaves_out_bad:
            rows, bad = read_good(values, schema, self._parse)
        else:
            rows = self._parse(values, schema) if values else pa.table({})
        left = [
            BadRecord(
                position=f"{self.address} {valued[one].partition()}:{valued[one].offset()}",
                record=values[one].decode("utf-8", "replace"),
                reason=reason,
            )
            for one, reason in bad.items()
        ]
        valued = [one for number, one in enumerate(valued) if number not in bad]
        if self._settings.kafka_appends_offsets:
            rows = _with_offsets(rows, valued)
        return SourceBatch(
            rows=rows, checkpoint=self._checkpoint(ends), has_more=has_more, bad=tuple(left)
        )

    def close(self) -> None:
        """Leave the consumer group."""
        self._consumer.close()

    # ---- offsets

    def _checkpoint(self, offsets: Mapping[int, int]) -> str:
        return ",".join([self._topic, *(f"{one}:{at}" for one, at in sorted(offsets.items()))])

    def _ranges(self, checkpoint: str | None) -> dict[int, _Range]:
        """Return the offsets to read of each partition."""
        known = None
        if checkpoint is not None:
            if not _CHECKPOINT.fullmatch(checkpoint):
                raise wrong_checkpoint(self.address, checkpoint, "topic,partition:offset,...")
            if checkpoint.partition(",")[0] != self._topic:
                raise wrong_checkpoint(self.address, checkpoint, f"the topic {self._topic}")
            known = _offsets_in(checkpoint)
        limits = {one: self._limits(one) for one in self._partitions()}
        if known is None:
            return {one: _Range(self._first(one, *each), each[1]) for one, each in limits.items()}
        gone = known.keys() - limits.keys()
        beyond = [one for one in known.keys() & limits.keys() if known[one] > limits[one][1]]
        if gone or beyond:
            wanted = ", ".join(f"{one}:{each[1]}" for one, each in sorted(limits.items()))
            raise wrong_checkpoint(self.address, checkpoint or "", f"these last offsets: {wanted}")
        lost = {one: limits[one][0] for one in known if known[one] < limits[one][0]}
        if lost:
            self._lose(known, lost)
        return {
            one: _Range(max(known.get(one, low), low), high) for one, (low, high) in limits.items()
        }

    def _lose(self, known: Mapping[int, int], lost: Mapping[int, int]) -> None:
        where = ", ".join(f"{one}: {known[one]} to {low}" for one, low in sorted(lost.items()))
        key = StreamerSettings.options["kafka_fails_on_loss"].key
        if self._settings.kafka_fails_on_loss:
            raise unreadable(
                self.address,
                f"because the topic no longer has offsets after the checkpoint ({where}); begin at "
                f"the first ones by --checkpoint, or set {key} to false to continue there",
            )
        warnings.warn(
            f"messages are lost: {self.address} no longer has offsets after the checkpoint, and the "
            f"streamer reads on after them ({where}); {key}=true refuses this",
            stacklevel=2,
        )

    def _partitions(self) -> list[int]:
        found = self._ask(
            lambda seconds: self._consumer.list_topics(self._topic, timeout=seconds)
        ).topics[self._topic]
        if found.error is not None or not found.partitions:
            raise unreadable(
                self.address,
                f"because the brokers at {self._servers} have no such topic; create it or correct "
                f"{StreamerSettings.options['kafka_topic'].key}",
            )
        return sorted(found.partitions)

    def _limits(self, partition: int) -> tuple[int, int]:
        """Return the first offset of a partition and the one after its last."""
        where = self._kafka.TopicPartition(self._topic, partition)
        low, high = self._ask(
            lambda seconds: self._consumer.get_watermark_offsets(where, timeout=seconds)
        )
        return low, high

    def _first(self, partition: int, low: int, high: int) -> int:
        """Return the offset of a streamer without a checkpoint."""
        reset = self._settings.offset_reset
        if reset is OffsetReset.GROUP:
            where = self._kafka.TopicPartition(self._topic, partition)
            [found] = self._ask(lambda seconds: self._consumer.committed([where], timeout=seconds))
            return max(found.offset, low) if found.offset >= 0 else high
        return low if reset is OffsetReset.EARLIEST else high

    def _tell_left_out(self, begin: Mapping[int, int]) -> None:
        """Warn of the messages before the begin of a first run, which it never reads."""
        count = sum(at - self._limits(one)[0] for one, at in begin.items())
        if self._settings.offset_reset is not OffsetReset.LATEST or not count:
            return
        once = (
            "" if self._settings.continuous else "; a run without --continuous reads nothing then"
        )
        warnings.warn(
            f"the streamer has no checkpoint and begins after the last message of {self.address}, as "
            f"in Hudi. It leaves out {counted(count, 'message')}: to read them, set "
            f"{StreamerSettings.options['offset_reset'].key}=earliest{once}",
            stacklevel=2,
        )

    def _limited(self, ranges: Mapping[int, _Range]) -> tuple[dict[int, _Range], bool]:
        """Return fair parts of the ranges that keep the limit, and whether messages are left."""
        left = self._settings.source_limit or self._settings.kafka_messages_max
        open_ones = {one: each.end - each.begin for one, each in ranges.items()}
        taken = dict.fromkeys(ranges, 0)
        while left > 0 and (waiting := [one for one in ranges if taken[one] < open_ones[one]]):
            share = max(1, left // len(waiting))
            for one in waiting:
                more = min(share, open_ones[one] - taken[one], left)
                taken[one] += more
                left -= more
        limited = {one: _Range(r.begin, r.begin + taken[one]) for one, r in ranges.items()}
        return limited, taken != open_ones

    # ---- messages

    def _consume(self, ranges: Mapping[int, _Range]) -> tuple[list[Any], dict[int, int]]:
        """Return the messages of the ranges in the order of their arrival, and where they end."""
        reached = {one: each.begin for one, each in ranges.items() if each.begin < each.end}
        missing = set(reached)
        found: list[Any] = []
        if not missing:
            return found, {}
        kafka, size = self._kafka, 0
        where = [kafka.TopicPartition(self._topic, one, reached[one]) for one in sorted(missing)]
        self._consumer.assign(where)
        heard_ms = self._clock.monotonic_ms()
        while missing and size < _BYTES_MAX:
            batch = self._consumer.consume(_MESSAGES_MAX, timeout=0.5)
            if batch:
                heard_ms = self._clock.monotonic_ms()
            elif self._clock.monotonic_ms() - heard_ms > self._settings.source_timeout_ms:
                raise self._no_answer()
            for message in batch:
                partition, offset = message.partition() or 0, message.offset() or 0
                error = message.error()
                if error is not None and error.code() != kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001
                    if error.retriable():
                        continue
                    raise self._no_answer(str(error))
                if partition not in missing:
                    continue
                # Compaction and transactions leave offsets without a message.
                end = ranges[partition].end
                if error is None and offset < end:
                    found.append(message)
                    size += len(message.value() or b"")
                    reached[partition] = offset + 1
                if offset >= end - (error is None):
                    reached[partition] = end
                    missing.discard(partition)
                    self._consumer.incremental_unassign(
                        [kafka.TopicPartition(self._topic, partition)]
                    )
        self._consumer.unassign()
        return found, reached

    def _ask(self, question: Callable[[float], Any]) -> Any:
        try:
            return question(self._settings.source_timeout_ms / 1000)
        except self._kafka.KafkaException as error:
            raise self._no_answer(str(error.args[0])) from None

    def _no_answer(self, why: str = "") -> UnavailableError:
        causes = [*self._errors[-1:], why]
        self._errors.clear()
        return UnavailableError(
            f"the brokers at {self._servers} do not answer, start them or correct bootstrap.servers: "
            f"{'; '.join(filter(None, causes))[:300]}",
            kind="unreadable_source",
            source=self.address,
        )


class _Silent:
    """Drops the log lines of the client; its errors reach ``error_cb``."""

    def log(self, *_: object) -> None: ...


def _offsets_in(checkpoint: str) -> dict[int, int]:
    pairs = (pair.split(":") for pair in checkpoint.split(",")[1:])
    return {int(partition): int(offset) for partition, offset in pairs}


def _with_offsets(rows: pa.Table, messages: Sequence[Any]) -> pa.Table:
    """Add Hudi's columns with partition, offset, time in ms and key of each message."""
    keys = [None if one.key() is None else one.key().decode("utf-8", "replace") for one in messages]
    columns = {
        "_hoodie_kafka_source_offset": pa.array([one.offset() for one in messages], pa.int64()),
        "_hoodie_kafka_source_partition": pa.array([one.partition() for one in messages], pa.int32()),
        "_hoodie_kafka_source_timestamp": pa.array([one.timestamp()[1] for one in messages], pa.int64()),
        "_hoodie_kafka_source_key": pa.array(keys, pa.string()),
    }  # fmt: skip
    for name, values in columns.items():
        rows = rows.append_column(name, values)
    return rows


def _refused_option(options: Mapping[str, str], error: Exception) -> SettingError:
    """Return the error of an option that the client does not accept; its text names it."""
    text = str(getattr(error.args[0], "str", lambda: error.args[0])()) if error.args else str(error)
    key = next((one for one in options if f'"{one}"' in text), "bootstrap.servers")
    return SettingError(
        f"the Kafka client does not accept this option, correct or remove it: {key}: {text[:200]}",
        kind="setting_value",
        key=key,
        value="",
        layer="default",
        suggestion="an option of librdkafka",
    )
