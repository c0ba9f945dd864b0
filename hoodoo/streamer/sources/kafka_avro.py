"""Messages of Avro: with the number of a schema in a Confluent registry, or bare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pyarrow as pa

from filegroups.files.avro_columns import decode_datums
from hoodoo.streamer.bad_records import Parse
from timeline.errors import CorruptTableError, HoodooError, InvalidInputError

_HEAD_BYTES = 5  # a zero, then the number of the schema, big-endian


def parse_numbered(topic: str, schema_of: Callable[[int], str]) -> Parse:
    """
    Return the function that reads messages in the form of Confluent's serializers.

    Args:
        topic: For messages.
        schema_of: Returns the Avro JSON of a schema by its number; asked once for each.
    """
    known = cache(schema_of)

    def parse(records: Sequence[bytes], _: pa.Schema | None) -> pa.Table:
        if any(len(one) < _HEAD_BYTES or one[0] for one in records):
            raise _not_avro(topic, "it has no number of a schema")
        heads = np.frombuffer(b"".join(one[:_HEAD_BYTES] for one in records), np.uint8)
        numbers = heads.reshape(-1, _HEAD_BYTES)[:, 1:].copy().view(">u4").ravel()
        parts: list[pa.Table] = []
        places: list[np.ndarray] = []
        for number in np.unique(numbers):
            own = np.flatnonzero(numbers == number)
            datums = [records[place][_HEAD_BYTES:] for place in own.tolist()]
            parts.append(_decoded(datums, known(int(number)), topic))
            places.append(own)
        rows = pa.concat_tables(parts, promote_options="permissive")
        return rows if len(parts) == 1 else rows.take(np.argsort(np.concatenate(places)))

    return parse


def parse_bare(topic: str, schema_json: str) -> Parse:
    """Return the function that reads messages of one datum each, all of one schema."""

    def parse(records: Sequence[bytes], _: pa.Schema | None) -> pa.Table:
        return _decoded(records, schema_json, topic)

    return parse


def _decoded(datums: Sequence[bytes], schema_json: str, topic: str) -> pa.Table:
    try:
        return decode_datums(pa.array(datums, pa.binary()), schema_json, path=f"kafka:{topic}")
    except CorruptTableError as error:
        raise _not_avro(topic, error.message) from None
    except HoodooError as error:
        raise _not_avro(topic, f"its schema is not supported, {error.message}") from None


def _not_avro(topic: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        "a message is not Avro of its schema; correct or remove it, or let "
        f"hoodie.errortable.enable=true write it into an error table: kafka:{topic}: {why}"[:500],
        kind="input_file",
        path=f"kafka:{topic}",
    )
