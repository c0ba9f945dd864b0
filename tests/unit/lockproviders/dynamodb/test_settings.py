"""Settings of the DynamoDB lock: Hudi's keys and defaults, and safe endpoints."""

from __future__ import annotations

import pytest

from lockproviders.dynamodb.client import ENTRY, IMPLICIT_ENTRY
from lockproviders.dynamodb.settings import DynamoSettings
from lockproviders.hookspecs import LockContext
from timeline.errors import SettingError
from timeline.properties.options import PropertySet

PREFIX = "hoodie.write.lock.dynamodb."
NAMED = {PREFIX + "partition_key": "t1"}
SECRETS = {
    "hoodie.aws.access.key": "marker-access",
    "hoodie.aws.secret.key": "marker-secret",
    "hoodie.aws.session.token": "marker-session",
}


def settings(**properties: str) -> DynamoSettings:
    return DynamoSettings.from_properties({**NAMED, **properties})


def test_defaults_are_hudis() -> None:
    found = settings()
    assert (found.table, found.key, found.region, found.endpoint, found.lease_ms) == (
        "hudi_locks",
        "t1",
        "us-east-1",
        None,
        60_000,
    )
    assert (found.capacity, found.creation_timeout_ms) == (None, 120_000)
    assert (found.create_table, found.count_holdings) == (False, True)


def test_lease_is_javas_wait_time() -> None:
    found = settings(**{"hoodie.write.lock.wait_time_ms": "6000"})
    assert (found.lease_ms, found.request_ms) == (6_000, 600)


def test_request_never_waits_longer_than_five_seconds() -> None:
    assert settings(**{"hoodie.write.lock.wait_time_ms": "600000"}).request_ms == 5_000


def test_lock_is_named_after_the_table_as_in_hudi() -> None:
    found = DynamoSettings.from_properties({"hoodie.table.name": "flights"})
    assert found.key == "flights"


def test_a_given_region_is_not_read_from_the_machine() -> None:
    def refuse() -> str:
        raise AssertionError("asked")

    found = DynamoSettings.from_properties(
        {**NAMED, PREFIX + "region": "eu-west-1"}, machine_region=refuse
    )
    assert found.region == "eu-west-1"
    found = DynamoSettings.from_properties(NAMED, machine_region=lambda: "eu-central-1")
    assert found.region == "eu-central-1"


def test_the_identity_contains_region_table_and_key() -> None:
    assert settings().identity == "dynamodb:us-east-1/hudi_locks/t1"
    local = settings(**{PREFIX + "endpoint_url": "http://127.0.0.1:8000"})
    assert local.identity == "dynamodb:us-east-1@http://127.0.0.1:8000/hudi_locks/t1"


def test_secrets_are_not_shown() -> None:
    found = settings(**SECRETS)
    assert found.secret_key == "marker-secret"
    assert "marker" not in repr(found)
    assert "marker" not in found.identity


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        ({"hoodie.write.lock.wait_time_ms": "999"}, "hoodie.write.lock.wait_time_ms"),
        ({PREFIX + "billing_mode": "FREE"}, PREFIX + "billing_mode"),
        ({PREFIX + "read_capacity": "0"}, PREFIX + "read_capacity"),
        ({PREFIX + "table_creation_timeout": "2 min"}, PREFIX + "table_creation_timeout"),
        ({PREFIX + "partition_key": "k" * 2_030}, PREFIX + "partition_key"),
        ({"hoodie.aws.access.key": "marker"}, "hoodie.aws.secret.key"),
        ({"hoodie.aws.secret.key": "marker"}, "hoodie.aws.access.key"),
    ],
)
def test_wrong_value_is_refused_by_name(properties: dict[str, str], key: str) -> None:
    with pytest.raises(SettingError) as caught:
        settings(**properties)
    assert caught.value.fields["key"] == key
    assert "marker" not in caught.value.message


def test_lock_without_any_name_is_refused() -> None:
    with pytest.raises(SettingError, match="a name for the lock"):
        DynamoSettings.from_properties({})


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://dynamodb.example.com",
        "http://127.0.0.1:8000",
        "http://localhost:8000",
        "http://[::1]:8000",
    ],
)
def test_safe_endpoint_is_accepted(endpoint: str) -> None:
    assert settings(**{PREFIX + "endpoint_url": endpoint}).endpoint == endpoint


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://dynamodb.example.com",
        "http://169.254.169.254/latest",
        "https://[fd00:ec2::254]",
        "file:///etc/passwd",
        "dynamodb.example.com:443",
        "https://user:marker@dynamodb.example.com",
        "http://127.0.0.1:port",
        "http://",
    ],
)
@pytest.mark.spec("SEC11")
def test_endpoint_that_is_not_safe_is_refused(endpoint: str) -> None:
    with pytest.raises(SettingError) as caught:
        settings(**{PREFIX + "endpoint_url": endpoint})
    assert caught.value.fields["key"] == PREFIX + "endpoint_url"
    assert "marker" not in caught.value.message


def test_plain_http_to_another_machine_needs_a_second_option() -> None:
    found = settings(
        **{
            PREFIX + "endpoint_url": "http://dynamodb:8000",
            "hoodoo.lock.dynamodb.endpoint.allow.insecure": "true",
        }
    )
    assert found.endpoint == "http://dynamodb:8000"


@pytest.mark.spec("SEC11")
def test_table_cannot_send_the_writer_to_another_endpoint() -> None:
    options = (
        PropertySet()
        .with_layer("hoodie.properties", {PREFIX + "endpoint_url": "https://evil.example.com"})
        .with_layer("code", NAMED)
    )
    with pytest.raises(SettingError, match="never one of the table"):
        DynamoSettings.from_properties(options)


def context(machine, **properties: str) -> LockContext:
    return LockContext(
        properties={PREFIX + "region": "us-east-1", **properties},
        table_identity="s3://bkt/t1",
        table_address="s3a://bkt/t1",
        table_folder=None,
        clock=machine.clock,
        ids=machine.ids,
    )


def test_implicit_lock_is_named_by_the_hash_of_the_path(machine) -> None:
    client = IMPLICIT_ENTRY.factory(context(machine, **NAMED))
    assert client.identity == "dynamodb:us-east-1/hudi_locks/C18CF90096A11877"


def test_creating_a_client_makes_no_request(machine) -> None:
    client = ENTRY.factory(context(machine, **NAMED))
    assert client.margin_ms == 10_000
    client.close()
