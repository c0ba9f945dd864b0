"""
Options of indexes and bloom filters.

Data only; part of ``filegroups.settings.option_table``. Values that must be equal on all writers of
a bucket index are also in the table's properties, under keys that begin with ``hoodoo.``, because
Hudi itself does not store them.
"""

from __future__ import annotations

from typing import Final

from timeline.properties.options import Option, OptionKind
from timeline.rules.bucket_ranges import BUCKET_OWNERSHIP_KEY

__all__ = ["BUCKET_PROPERTY_KEYS", "INDEX_OPTIONS"]

#: Field of WriteSettings -> own key in hoodie.properties.
BUCKET_PROPERTY_KEYS: Final[dict[str, str]] = {
    "index_type": "hoodoo.index.type",
    "bucket_engine": "hoodoo.index.bucket.engine",
    "bucket_count": "hoodoo.bucket.index.num.buckets",
    "bucket_hash_fields": "hoodoo.bucket.index.hash.field",
}

# By the field of WriteSettings that the option sets.
INDEX_OPTIONS: Final[dict[str, Option]] = {
    "index_type": Option(
        key="hoodie.index.type",
        default="SIMPLE",
        kind=OptionKind.ENUM,
        doc="How rows find their file group; BLOOM reads fewer files than SIMPLE, GLOBAL_ ones "
        "look in all partitions, BUCKET computes it from the key.",
        aliases=(BUCKET_PROPERTY_KEYS["index_type"],),
        choices=(
            "SIMPLE",
            "BLOOM",
            "GLOBAL_SIMPLE",
            "GLOBAL_BLOOM",
            "BUCKET",
            "RECORD_INDEX",
            "RECORD_LEVEL_INDEX",
            "GLOBAL_RECORD_LEVEL_INDEX",
            "INMEMORY",
            "FLINK_STATE",
        ),
    ),
    "bucket_engine": Option(
        key="hoodie.index.bucket.engine",
        default="SIMPLE",
        kind=OptionKind.ENUM,
        doc="A fixed number of buckets, or ranges of hashes that may be split and merged.",
        aliases=(BUCKET_PROPERTY_KEYS["bucket_engine"],),
        choices=("SIMPLE", "CONSISTENT_HASHING"),
    ),
    "bucket_count": Option(
        key="hoodie.bucket.index.num.buckets",
        default="256",
        kind=OptionKind.INT,
        doc="Buckets of each partition, equal for all writers; kept in the table's properties.",
        aliases=(BUCKET_PROPERTY_KEYS["bucket_count"],),
    ),
    "bucket_hash_fields": Option(
        key="hoodie.bucket.index.hash.field",
        kind=OptionKind.LIST,
        doc="Record key fields that choose the bucket; all of them when not said.",
        aliases=(BUCKET_PROPERTY_KEYS["bucket_hash_fields"],),
    ),
    "own_buckets": Option(
        key=BUCKET_OWNERSHIP_KEY,
        doc="Buckets of this writer alone, as 0-63 or 0-15,32; rows of others are refused, and so "
        "is a writer whose buckets meet those of a living one. Not said: all.",
    ),
    "simple_index_moves": Option(
        key="hoodie.simple.index.update.partition.path",
        default="true",
        kind=OptionKind.BOOL,
        doc="With GLOBAL_SIMPLE a row of another partition moves; else it is updated there.",
    ),
    "bloom_index_moves": Option(
        key="hoodie.bloom.index.update.partition.path",
        default="true",
        kind=OptionKind.BOOL,
        doc="With GLOBAL_BLOOM a row of another partition moves; else it is updated there.",
    ),
    "bloom_enabled": Option(
        key="hoodie.parquet.bloom.filter.enabled",
        default="true",
        kind=OptionKind.BOOL,
        doc="Write the bloom filter of record keys into base files.",
    ),
    "bloom_type": Option(
        key="hoodie.bloom.index.filter.type",
        default="DYNAMIC_V0",
        kind=OptionKind.ENUM,
        doc="A filter of fixed size, or one that grows with the file.",
        choices=("DYNAMIC_V0", "SIMPLE"),
    ),
    "bloom_keys": Option(
        key="hoodie.index.bloom.num_entries",
        default="60000",
        kind=OptionKind.INT,
        doc="Keys a filter is made for.",
    ),
    "bloom_false_positive_rate": Option(
        key="hoodie.index.bloom.fpp",
        default="0.000000001",
        kind=OptionKind.FLOAT,
        doc="Share of foreign keys a filter may take for its own.",
    ),
    "bloom_dynamic_keys_max": Option(
        key="hoodie.bloom.index.filter.dynamic.max.entries",
        default="100000",
        kind=OptionKind.INT,
        doc="Keys up to which a growing filter keeps its rate.",
    ),
}
