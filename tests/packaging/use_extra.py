"""
Use the features of an extra, and print the result as JSON: ``use_extra.py EXTRA``.

It runs in an environment that has hoodoo and, at most, this extra. A lock provider gets a server
that does not exist, so its client library answers with ``UnavailableError``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hoodoo
from hoodoo.errors import HoodooError, UnavailableError
from lockproviders.hookspecs import LockContext
from lockproviders.registry import registry_for
from timeline.system import SystemClock, SystemIds

NOWHERE = "127.0.0.1:9"
LOCK = "hoodie.write.lock."
ZOOKEEPER = {
    LOCK + "zookeeper.url": NOWHERE,
    LOCK + "zookeeper.base_path": "/locks",
    LOCK + "zookeeper.lock_key": "t",
    LOCK + "zookeeper.connection_timeout_ms": "300",
}
DYNAMODB = {
    LOCK + "dynamodb.endpoint_url": f"http://{NOWHERE}",
    LOCK + "dynamodb.region": "eu-west-1",
    LOCK + "dynamodb.table": "locks",
    LOCK + "dynamodb.partition_key": "t",
    "hoodie.aws.access.key": "a",
    "hoodie.aws.secret.key": "b",
}
S3 = {
    "hoodie.base.path": "s3://bucket/t",
    "hoodoo.storage.s3.endpoint": f"http://{NOWHERE}",
    "hoodoo.storage.s3.ssl.enabled": "false",
    "hoodoo.storage.s3.region": "eu-west-1",
    "hoodoo.storage.request.timeout.ms": "1000",
    "hoodie.aws.access.key": "a",
    "hoodie.aws.secret.key": "b",
}
Use = tuple[str, Callable[[], object]]


def lock(provider: str, address: str = "/data/t", **properties: str) -> Use:
    """Ask a provider for its lock."""

    def take() -> None:
        context = LockContext(
            properties=properties,
            table_identity="t",
            table_address=address,
            table_folder=None,
            clock=SystemClock(),
            ids=SystemIds(),
        )
        registry_for(properties).find(provider).factory(context).try_acquire("probe")

    return provider, unanswered(take)


def unanswered(use: Callable[[], object]) -> Callable[[], object]:
    """Expect that the client library reports a server that is not there."""

    def asks() -> None:
        try:
            use()
        except UnavailableError:
            return
        raise AssertionError("a server answered that is not there")

    return asks


def of_spark() -> Iterator[Use]:
    def install() -> None:
        import hoodoo.spark

        assert callable(hoodoo.spark.install)
        from hoodoo.spark import datasource, executor

        assert datasource
        assert executor

    yield "hoodoo.spark", install


def of_tables(extra: str) -> Iterator[Use]:
    with tempfile.TemporaryDirectory() as folder:
        table = hoodoo.create_table(Path(folder) / "t", record_key="id")
        table.upsert([{"id": 1, "v": 2}, {"id": 2, "v": 3}])
        methods: dict[str, dict[str, Callable[[], object]]] = {
            "pandas": {"to_pandas": lambda: table.to_pandas(["id"]).shape},
            "polars": {
                "to_polars": lambda: table.to_polars(["id"]).shape,
                "scan_polars": lambda: table.scan_polars().select("id").collect().shape,
            },
            "duckdb": {"to_duckdb": lambda: table.to_duckdb().project("id").fetchall()},
        }
        yield from methods[extra].items()


def of_demo() -> Iterator[Use]:
    from hoodoo.demo.flights import load_flights

    yield "flights", lambda: load_flights().num_rows
    yield from of_spark()


def of_testing() -> Iterator[Use]:
    def suites() -> None:
        from lockproviders.testing import suite as locks
        from timeline.testing import storage_suite

        assert locks
        assert storage_suite

    yield "suites", suites


def of_zookeeper_sasl() -> Iterator[Use]:
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "identity"
        secret.touch(mode=0o600)
        secret.write_text("user:password")
        ours = "hoodoo.lock.zookeeper."
        digest = {ours + "sasl": "DIGEST-MD5", ours + "identity.file": str(secret)}
        yield lock("zookeeper", **ZOOKEEPER, **digest)


def of_glue() -> Iterator[Use]:
    glue = {
        "hoodie.datasource.meta.sync.enable": "true",
        "hoodie.meta.sync.client.tool.class": ("org.apache.hudi.aws.sync.AwsGlueCatalogSyncTool"),
        "hoodie.aws.glue.endpoint": f"http://{NOWHERE}",
        "hoodie.aws.glue.region": "eu-west-1",
        "hoodie.aws.access.key": "a",
        "hoodie.aws.secret.key": "b",
        "hoodoo.sync.timeout.ms": "1000",
    }
    with tempfile.TemporaryDirectory() as folder:
        with hoodoo.create_table(Path(folder) / "t", record_key="id") as table:
            table.upsert([{"id": 1, "v": 2}])
        yield (
            "sync",
            unanswered(lambda: hoodoo.open_table(Path(folder) / "t", properties=glue).sync()),
        )


def of_kafka() -> Iterator[Use]:
    from hoodoo.streamer.run import Streamer

    with tempfile.TemporaryDirectory() as folder:
        options = {
            "hoodie.streamer.ingestion.targetBasePath": str(Path(folder) / "t"),
            "hoodie.datasource.write.recordkey.field": "id",
            "hoodoo.streamer.source.class": "JsonKafkaSource",
            "hoodie.streamer.source.kafka.topic": "t",
            "bootstrap.servers": NOWHERE,
            "hoodoo.streamer.source.timeout.ms": "2000",
        }
        yield "streamer", unanswered(lambda: Streamer(options).check())


def uses(extra: str) -> Iterator[Use]:
    """Everything that an extra promises."""
    match extra:
        case "spark":
            yield from of_spark()
        case "pandas" | "polars" | "duckdb":
            yield from of_tables(extra)
        case "demo":
            yield from of_demo()
        case "testing":
            yield from of_testing()
        case "glue":
            yield from of_glue()
        case "kafka":
            yield from of_kafka()
        case "zookeeper":
            yield lock("zookeeper", **ZOOKEEPER)
            yield lock("zookeeper_implicit", **ZOOKEEPER)
        case "zookeeper-sasl":
            yield from of_zookeeper_sasl()
        case "dynamodb":
            yield lock("dynamodb", **DYNAMODB)
            yield lock("dynamodb_implicit", **DYNAMODB)
        case "hive":
            named = {LOCK + "hivemetastore.database": "d", LOCK + "hivemetastore.table": "t"}
            uris = {LOCK + "hivemetastore.uris": f"thrift://{NOWHERE}"}
            yield lock("hivemetastore", **named, **uris)
            ours = "hoodoo.lock.hivemetastore_database."
            server = {ours + "url": f"mysql://{NOWHERE}/hive", ours + "user": "u"}
            yield lock("hivemetastore_database", **named, **server, **{ours + "password": "p"})
        case "sql":
            for kind in ("mysql", "postgresql"):
                url = {"hoodoo.lock.sql.url": f"{kind}://{NOWHERE}/locks"}
                user = {"hoodoo.lock.sql.user": "u", "hoodoo.lock.sql.password": "p"}
                yield lock("sql", **url, **user)
        case "objectstore":
            yield (
                "open_table",
                unanswered(lambda: hoodoo.open_table("s3://bucket/t", properties=S3)),
            )
            yield lock("storage_based", "s3://bucket/t", **S3)
        case _:
            raise SystemExit(f"no use is written for the extra {extra}")


def result(use: Callable[[], object]) -> dict[str, str]:
    try:
        use()
    except HoodooError as error:
        return {"kind": error.kind, "message": error.message}
    return {}


def main(extra: str) -> None:
    found = [{"use": name, **result(use)} for name, use in uses(extra)]
    print(json.dumps({"home": hoodoo.__file__, "results": found}))


if __name__ == "__main__":
    main(sys.argv[1])
