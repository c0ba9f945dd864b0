"""
The connection to DynamoDB: boto3 with one attempt per request and few error kinds.

It keeps AWS error codes out of the lock and the slot store. The library's own retries are off. A repeated
conditional write finds its own first copy and reports a failure that is none (F16), so the caller
reads the row and decides. Every failure becomes one of:

- ``ConditionFailedError``: the row is not as expected.
- ``MissingTableError``: the table does not exist, or is being created.
- ``TableExistsError``: a table that was to be created already exists.
- ``UnavailableError``: no usable answer; field ``maybe_done`` says whether the request may have
  been executed all the same.
- ``UnsafeSetupError``: waiting does not help; the message says what to change.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockproviders.dynamodb.settings import DynamoOptions, DynamoSettings
from timeline.errors import UnavailableError, UnsafeSetupError, needs_extra
from timeline.ports.ports import Ids

CONNECTIONS_MAX = 2  # one for renewal, one for the caller (SEC17)
MESSAGE_CHARACTERS_MAX = 300
THROTTLED = "lock_throttled"  # kind of the error of a request beyond the rate limit

_THROTTLED = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "Throttling",
        "TooManyRequestsException",
        "RequestLimitExceeded",
        "LimitExceededException",
        "TransactionConflictException",
        "ReplicatedWriteConflictException",
    }
)
_CREDENTIALS = frozenset(
    {
        "ExpiredTokenException",
        "ExpiredToken",
        "RequestExpired",
        "UnrecognizedClientException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "IncompleteSignatureException",
        "IncompleteSignature",
        "MissingAuthenticationTokenException",
        "MissingAuthenticationToken",
        "RequestTimeTooSkewed",
    }
)
_DENIED = frozenset({"AccessDeniedException", "AccessDenied", "UnauthorizedOperation"})
_NO_TABLE = frozenset({"ResourceNotFoundException", "TableNotFoundException"})

_ACTIONS = {
    "get_item": "dynamodb:GetItem",
    "put_item": "dynamodb:PutItem",
    "update_item": "dynamodb:UpdateItem",
    "delete_item": "dynamodb:DeleteItem",
    "create_table": "dynamodb:CreateTable",
    "describe_table": "dynamodb:DescribeTable",
    "query": "dynamodb:Query",
}


class ConditionFailedError(Exception):
    """The condition of a write does not hold; ``item`` is the row if the server sent it."""

    def __init__(self, item: Mapping[str, Any] | None = None) -> None:
        super().__init__("condition failed")
        self.item = item


class MissingTableError(Exception):
    """The table does not exist, or not yet."""


class TableExistsError(Exception):
    """Another client created the table first, or is creating it."""


class BotoTransport:
    """
    Requests by boto3's low-level client; usable by several threads.

    Args:
        settings: Endpoint and credentials.

    Raises:
        UnsafeSetupError: No credentials, or boto3 refuses the settings.
    """

    def __init__(self, settings: DynamoSettings) -> None:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        self._settings = settings
        seconds = settings.request_ms / 1000
        try:
            session = boto3.session.Session(
                aws_access_key_id=settings.access_key,
                aws_secret_access_key=settings.secret_key,
                aws_session_token=settings.session_token,
                region_name=settings.region,
            )
            self._client: Any = session.client(
                "dynamodb",
                endpoint_url=settings.endpoint,
                config=Config(
                    connect_timeout=seconds,
                    read_timeout=seconds,
                    retries={"total_max_attempts": 1, "mode": "standard"},
                    max_pool_connections=CONNECTIONS_MAX,
                ),
            )
            # Read now: a slow answer would otherwise use up the first lease.
            credentials = session.get_credentials()
            if credentials is not None:
                credentials.get_frozen_credentials()
        except (BotoCoreError, ValueError) as error:
            raise self._credentials_error(str(error)) from error
        if credentials is None:
            raise self._credentials_error("none found")

    def call(self, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request (``put_item``) once. Raises: the errors in the module docstring."""
        from botocore import exceptions

        try:
            answer: Mapping[str, Any] = getattr(self._client, operation)(**request)
        except exceptions.ClientError as error:
            raise self._refusal(operation, error.response) from error
        except (
            exceptions.NoCredentialsError,
            exceptions.PartialCredentialsError,
            exceptions.CredentialRetrievalError,
            exceptions.TokenRetrievalError,
        ) as error:
            raise self._credentials_error(str(error)) from error
        except exceptions.SSLError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise UnsafeSetupError(
                    "the endpoint's certificate could not be verified: check "
                    f"{DynamoOptions.options['endpoint'].key} and AWS_CA_BUNDLE; "
                    f"{_shown(str(error))}",
                    kind="lock_certificate",
                    endpoint=self._settings.endpoint,
                ) from error
            raise self._unanswered(operation, error, maybe_done=True) from error
        except (
            exceptions.ConnectTimeoutError,
            exceptions.EndpointConnectionError,
            exceptions.ProxyConnectionError,
        ) as error:
            raise self._unanswered(operation, error, maybe_done=False) from error
        except (exceptions.BotoCoreError, OSError) as error:
            raise self._unanswered(operation, error, maybe_done=True) from error
        return answer

    def close(self) -> None:
        """Close the connections of the pool."""
        self._client.close()

    def _refusal(self, operation: str, response: Mapping[str, Any]) -> Exception:
        """Return the error for an unsuccessful answer of DynamoDB."""
        error = response.get("Error", {})
        code, text = str(error.get("Code", "")), _shown(str(error.get("Message", "")))
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if code == "ConditionalCheckFailedException":
            return ConditionFailedError(response.get("Item"))
        if code in _THROTTLED or status == 429:
            return UnavailableError(
                f"dynamodb throttles: wait, or give the table more capacity: {code}: {text}",
                kind=THROTTLED,
                maybe_done=False,
                code=code,
            )
        if status >= 500 or status == 408:
            return UnavailableError(
                f"dynamodb reports an error; try again: {code or status}: {text}",
                maybe_done=True,
                code=code,
            )
        if code in _NO_TABLE:
            return MissingTableError(text)
        if code == "ResourceInUseException":
            return TableExistsError(text)
        if code in _CREDENTIALS:
            return self._credentials_error(f"{code}: {text}")
        if code in _DENIED:
            return self._denied_error(operation, text)
        if code == "ValidationException":
            return self._schema_error(text)
        return UnsafeSetupError(
            f"dynamodb rejects {operation}: find the code in the AWS documentation and correct "
            f"its cause: {code or status}: {text}",
            kind="lock_refused",
            code=code,
            table=self._settings.table,
        )

    def _denied_error(self, operation: str, text: str) -> UnsafeSetupError:
        action = _ACTIONS.get(operation, operation)
        return UnsafeSetupError(
            f"this identity may not use the lock: allow {action} on the table "
            f"{self._settings.table!a} in {self._settings.region} for the keys "
            f"{self._settings.key!a} and, unless {DynamoOptions.options['count_holdings'].key}=false, the "
            f"same with its suffix; {text}",
            kind="lock_denied",
            action=action,
            table=self._settings.table,
            said=text,
        )

    def _schema_error(self, text: str) -> UnsafeSetupError:
        return UnsafeSetupError(
            "this is not a table of locks: it needs one hash key named 'key' of type text and no "
            f"sort key. Name another with {DynamoOptions.options['table'].key}; "
            f"{self._settings.table!a} in {self._settings.region}: {text}",
            kind="lock_table_schema",
            table=self._settings.table,
            region=self._settings.region,
            said=text,
        )

    def _credentials_error(self, text: str) -> UnsafeSetupError:
        return UnsafeSetupError(
            "there are no valid AWS credentials: renew them, check the clock of this host, or "
            f"set {DynamoOptions.options['access_key'].key} and "
            f"{DynamoOptions.options['secret_key'].key}; {_shown(text)}",
            kind="lock_credentials",
            table=self._settings.table,
        )

    def _unanswered(
        self, operation: str, error: Exception, *, maybe_done: bool
    ) -> UnavailableError:
        where = self._settings.endpoint or self._settings.region
        return UnavailableError(
            f"dynamodb did not answer {operation} within {self._settings.request_ms} ms; check "
            f"region, endpoint and network: {where}: {_shown(str(error))}",
            maybe_done=maybe_done,
        )


class Connection:
    """
    The transport of one process; a forked child never shares its parent's sockets.

    Several threads may share it.

    Args:
        connect: Makes the transport, at the first request and again in a forked child.
        ids: Identifies the current process.
    """

    def __init__(self, connect: Callable[[], BotoTransport], ids: Ids) -> None:
        self._connect = connect
        self._ids = ids
        self._guards: dict[int, threading.Lock] = {}  # by process, so that none is held at a fork
        self._transport: BotoTransport | None = None
        self._process = 0

    @property
    def is_open(self) -> bool:
        """Whether this process has a transport."""
        return self._transport is not None and self._process == self._ids.identity().pid

    def open(self) -> BotoTransport:
        """Return this process's transport; make it if there is none."""
        pid = self._ids.identity().pid
        with self._guard(pid):
            if self._transport is None or self._process != pid:
                self._transport, self._process = self._connect(), pid
            return self._transport

    def call(self, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send one request; see ``BotoTransport.call``."""
        return self.open().call(operation, request)

    def close(self) -> None:
        """Close this process's transport; the next request opens another."""
        pid = self._ids.identity().pid
        with self._guard(pid):
            if self._transport is not None and self._process == pid:
                self._transport.close()
            self._transport = None

    def _guard(self, pid: int) -> threading.Lock:
        return self._guards.setdefault(pid, threading.Lock())


def create_request(
    table: str, key_names: Sequence[str], capacity: tuple[int, int] | None
) -> dict[str, Any]:
    """
    Return CreateTable for a table whose keys are texts.

    Args:
        table: The table's name.
        key_names: The name of its hash key, and that of its sort key if it has one.
        capacity: Read and write units; None pays per request.
    """
    request: dict[str, Any] = {
        "TableName": table,
        "KeySchema": [
            {"AttributeName": name, "KeyType": kind}
            for name, kind in zip(key_names, ("HASH", "RANGE"), strict=False)
        ],
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": "S"} for name in key_names
        ],
        "BillingMode": "PAY_PER_REQUEST" if capacity is None else "PROVISIONED",
    }
    if capacity is not None:
        request["ProvisionedThroughput"] = {
            "ReadCapacityUnits": capacity[0],
            "WriteCapacityUnits": capacity[1],
        }
    return request


def check_extra() -> None:
    """
    Check that boto3 is installed, without loading all of it.

    Raises:
        MissingExtraError: It is not installed.
    """
    with needs_extra("this lock needs the package boto3", "dynamodb"):
        import boto3  # noqa: F401


def region_of_machine() -> str | None:
    """
    Return the region that Java would read from this machine: the variable ``AWS_REGION``.

    Raises:
        UnsafeSetupError: It is not set, but boto3 finds another region than Java's default. A guess
            could put two writers into two regions, where they do not exclude each other.
    """
    region = os.environ.get("AWS_REGION", "").strip()
    if region:
        return region
    import boto3

    known: str | None = boto3.session.Session().region_name
    if known is None:
        return None
    raise UnsafeSetupError(
        f"the lock's region is ambiguous: the AWS profile of this host has {known}, and Java "
        f"writers ignore it. Set {DynamoOptions.options['region'].key} for all writers",
        kind="lock_region",
        key=DynamoOptions.options["region"].key,
        region=known,
    )


def _shown(text: str) -> str:
    return ascii(text[:MESSAGE_CHARACTERS_MAX])[1:-1]
