"""Errors of DynamoDB become errors of the lock, without a server: boto3's own stub answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from botocore.stub import Stubber

from lockproviders.dynamodb.connection import (
    BotoTransport,
    ConditionFailedError,
    MissingTableError,
    TableExistsError,
    create_request,
    region_of_machine,
)
from lockproviders.dynamodb.rows import RowAddress, read_request
from lockproviders.dynamodb.settings import DynamoSettings
from timeline.errors import UnavailableError, UnsafeSetupError

AT = RowAddress(table="hudi_locks", key="t1")
READ = read_request(AT)


@pytest.fixture
def transport() -> BotoTransport:
    return BotoTransport(
        DynamoSettings.from_properties(
            {
                "hoodie.table.name": "t1",
                "hoodie.aws.access.key": "testing",
                "hoodie.aws.secret.key": "marker-secret",
            }
        )
    )


def answer(transport: BotoTransport, code: str, status: int, operation: str = "get_item") -> None:
    request = create_request("hudi_locks", ["key"], None) if operation == "create_table" else READ
    with Stubber(transport._client) as stub:
        stub.add_client_error(operation, code, "the server's words", status)
        transport.call(operation, request)


def test_requests_are_sent_once(transport: BotoTransport) -> None:
    config = transport._client.meta.config
    assert config.retries["total_max_attempts"] == 1
    assert (config.connect_timeout, config.read_timeout) == (5.0, 5.0)
    assert config.max_pool_connections == 2


@pytest.mark.parametrize(
    ("code", "status", "operation", "error"),
    [
        ("ConditionalCheckFailedException", 400, "get_item", ConditionFailedError),
        ("ResourceNotFoundException", 400, "get_item", MissingTableError),
        ("ResourceInUseException", 400, "create_table", TableExistsError),
    ],
)
def test_answer_is_one_of_few_kinds(
    transport: BotoTransport, code: str, status: int, operation: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        answer(transport, code, status, operation)


@pytest.mark.parametrize(
    ("code", "status", "maybe_done"),
    [
        ("ProvisionedThroughputExceededException", 400, False),
        ("ThrottlingException", 400, False),
        ("RequestLimitExceeded", 400, False),
        ("", 429, False),
        ("InternalServerError", 500, True),
        ("ServiceUnavailable", 503, True),
    ],
)
def test_a_temporary_failure_says_whether_the_request_may_have_been_executed(
    transport: BotoTransport, code: str, status: int, *, maybe_done: bool
) -> None:
    with pytest.raises(UnavailableError) as caught:
        answer(transport, code, status)
    assert caught.value.fields["maybe_done"] is maybe_done


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        ("AccessDeniedException", "lock_denied", "allow dynamodb:GetItem"),
        ("ExpiredTokenException", "lock_credentials", "renew them"),
        ("UnrecognizedClientException", "lock_credentials", "no valid AWS credentials"),
        ("InvalidSignatureException", "lock_credentials", "clock"),
        ("ValidationException", "lock_table_schema", "one hash key named 'key'"),
        ("NeverHeardOfException", "lock_refused", "NeverHeardOfException"),
    ],
)
def test_a_set_up_error_names_the_change_that_helps(
    transport: BotoTransport, code: str, kind: str, advice: str
) -> None:
    with pytest.raises(UnsafeSetupError) as caught:
        answer(transport, code, 400)
    assert caught.value.kind == kind
    assert advice in caught.value.message
    assert "marker" not in caught.value.message


def test_a_machine_without_credentials_gets_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare_machine(monkeypatch, tmp_path)
    with pytest.raises(UnsafeSetupError) as caught:
        BotoTransport(DynamoSettings.from_properties({"hoodie.table.name": "t1"}))
    assert caught.value.kind == "lock_credentials"


def test_the_region_is_javas_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare_machine(monkeypatch, tmp_path)
    assert region_of_machine() is None
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert region_of_machine() == "eu-west-1"


def test_region_that_java_would_not_see_is_not_guessed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare_machine(monkeypatch, tmp_path)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    with pytest.raises(UnsafeSetupError, match="eu-west-1") as caught:
        region_of_machine()
    assert caught.value.kind == "lock_region"


def bare_machine(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """An environment without profile, variables and metadata service."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
