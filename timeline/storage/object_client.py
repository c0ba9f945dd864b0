"""Clients of object stores: their options, clock and errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Self
from urllib.parse import urlsplit

from timeline.errors import (
    SettingError,
    StorageUnavailableError,
    UnavailableError,
    UnsafeSetupError,
    needs_extra,
)
from timeline.ports.ports import Clock
from timeline.properties.options import (
    TABLE_LAYER,
    OptionKind,
    OptionSettings,
    PropertySet,
    as_property_set,
    option,
)
from timeline.redaction import redact
from timeline.storage.object_address import ObjectAddress
from timeline.system import is_loopback

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore


# ---- The outcome of a failed request to an object store, from the client's error
#
# The protocol depends on the difference: only an answer that certainly means "not executed" may
# count as a failure; every other outcome is unknown (UNK-1). obstore's texts contain more than its
# classes, so texts are parsed. A text that is not understood counts as unknown, which is always
# safe.


class RequestFailure(Enum):
    """The outcome of a failed request."""

    MISSING = "the object does not exist"
    NO_BUCKET = "the bucket does not exist"
    EXISTS = "the object exists already"
    CHANGED = "the object has changed"
    BUSY = "another request for the same object was running"
    THROTTLED = "the store asks for fewer requests"
    NOT_SENT = "the store could not be reached"
    DENIED = "access was refused"
    WRONG = "the store denied the request"
    UNKNOWN = "the store gave no clear answer"


# The exact word: a ConnectionReset occurs after the request was sent.
_NOT_CONNECTED = re.compile(r"kind: Connect\b")
_STATUS = re.compile(r"status code: (\d{3})")
_BY_STATUS = {
    401: RequestFailure.DENIED,
    403: RequestFailure.DENIED,
    404: RequestFailure.MISSING,
    408: RequestFailure.UNKNOWN,
    409: RequestFailure.BUSY,
    412: RequestFailure.CHANGED,
    429: RequestFailure.THROTTLED,
}
_ADVICE = {
    RequestFailure.NO_BUCKET: "create the bucket or correct the address",
    RequestFailure.DENIED: "give these credentials the rights of docs/how-to/object-stores.md",
    RequestFailure.WRONG: "check region, endpoint and path style",
    RequestFailure.THROTTLED: "try again later, or ask for a higher limit",
    RequestFailure.NOT_SENT: "check the endpoint and the network, then repeat",
}


def classify_failure(error: Exception) -> RequestFailure:
    """Classify an error of obstore (or of Python, which it raises, too)."""
    from obstore import exceptions

    text = str(error)
    if "<Code>NoSuchBucket" in text or "<Code>ContainerNotFound" in text:
        return RequestFailure.NO_BUCKET
    if isinstance(error, FileNotFoundError):
        return RequestFailure.MISSING
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    if isinstance(error, exceptions.AlreadyExistsError):
        # The client uses this class for every 409, although in S3 it means that another request is
        # in progress; in Azure it does mean that the blob exists.
        busy = status == 409 and "<Code>BlobAlreadyExists" not in text
        return RequestFailure.BUSY if busy else RequestFailure.EXISTS
    if isinstance(error, exceptions.PreconditionError):
        return RequestFailure.CHANGED
    if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
        return RequestFailure.DENIED
    if isinstance(error, exceptions.NotSupportedError | exceptions.InvalidPathError):
        return RequestFailure.WRONG
    if status:
        if status == 503 and "<Code>SlowDown" in text:
            return RequestFailure.THROTTLED
        return _BY_STATUS.get(
            status, RequestFailure.WRONG if status < 500 else RequestFailure.UNKNOWN
        )
    if "redirect without LOCATION" in text:  # S3's answer for a wrong region
        return RequestFailure.WRONG
    return RequestFailure.NOT_SENT if _NOT_CONNECTED.search(text) else RequestFailure.UNKNOWN


def is_no_such_range(error: Exception) -> bool:
    """
    Return whether the object has none of the requested bytes: it may be empty.

    S3 refuses a range of an empty object; other stores answer as without a range.
    """
    text = str(error)
    found = _STATUS.search(text)
    return "non-partial response" in text or (found is not None and found[1] == "416")


def request_error(
    error: Exception, path: str, doing: str, fate: RequestFailure | None = None
) -> StorageUnavailableError:
    """Return the typed error of a failed request, with the path and the next step."""
    known = fate or classify_failure(error)
    advice = _ADVICE.get(known, "try again later")
    return StorageUnavailableError(
        f"{doing} failed, {known.value}: {advice}: path {path!r}: {first_line(error)}",
        path=path,
        fate=known.name.lower(),
    )


def first_line(error: Exception) -> str:
    """Return the first line; the rest is a dump, and a query may contain a signature (SEC5)."""
    line = str(error).split("\n", 1)[0].partition(": <?xml")[0]
    return re.sub(r"(://[^\s?]+)\?\S+", r"\1?***", line)[:300]


# ---- The clock of an object store, read from the timestamps of its objects
#
# Heartbeats are compared by the store's timestamps: a machine whose own clock is off by minutes
# would take every living writer for dead (F12). Stores show their time only in timestamps, in whole
# seconds. So this clock is read from a small object and kept by the monotonic clock.

CLOCK_OBJECT = ".hoodie/.hoodoo/probe/clock"

_AGE_MS_MAX = 10 * 60_000  # in this time, a quartz drifts less than a timestamp's resolution
_SECOND_MS = 1_000


class StoreClock:
    """
    The store's time.

    Args:
        clock: The own clocks.
        stamp: Writes the object of this path and returns its timestamp, ms since 1970.
        path: Path of the object that is written.
    """

    def __init__(
        self, clock: Clock, stamp: Callable[[str], int], *, path: str = CLOCK_OBJECT
    ) -> None:
        self._clock = clock
        self._stamp = stamp
        self._path = path
        self._ahead_ms = 0  # how far the store's time is ahead of the own monotonic clock
        self._read_at_ms: int | None = None

    def now_ms(self) -> int:
        """
        Return the store's time in whole seconds, ms since 1970 UTC.

        It falls back to the own clock if it cannot write to the store. Outside: 1 put and 1 head,
        once in ten minutes.
        """
        monotonic_ms = self._clock.monotonic_ms()
        if self._read_at_ms is None or monotonic_ms - self._read_at_ms > _AGE_MS_MAX:
            self._read()
        now_ms = self._clock.monotonic_ms() + self._ahead_ms
        return now_ms - now_ms % _SECOND_MS

    def _read(self) -> None:
        sent_ms, sent_wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        try:
            stamp_ms = self._stamp(self._path)
        except UnavailableError:
            if self._read_at_ms is None:
                self._ahead_ms = sent_wall_ms - sent_ms
            # the next attempt is after the usual time
            self._read_at_ms = self._clock.monotonic_ms()
            return
        got_ms = self._clock.monotonic_ms()
        # The timestamp is between the times of request and answer, and its second is truncated.
        least, most = stamp_ms - got_ms, stamp_ms + _SECOND_MS - sent_ms
        own = sent_wall_ms - sent_ms
        self._ahead_ms = own if least <= own < most else (least + most) // 2
        self._read_at_ms = got_ms


# ---- From options to the clients of an object store
#
# The storage adapter and the storage-based lock need the same credentials and endpoints. obstore
# supports S3, GCS and Azure; it is an extra and is imported when the first address of an object
# store is opened.


_PREFIXES = ("hoodoo.storage.", "fs.s3a.", "fs.gs.auth.", "fs.azure.account.", "hoodie.aws.")
_AWS_HOST = re.compile(r"s3[.-](?:dualstack\.)?([a-z]{2}(?:-[a-z]+)+-\d)\.amazonaws\.com")
_METADATA_HOSTS = frozenset(("169.254.169.254", "fd00:ec2::254", "metadata.google.internal"))
_CONNECT_SECONDS = 5
# Connections of a burst do not stay open for the 90 s of the client's default. If a store closes an
# idle connection just when a request uses it, a create stays unanswered (UNKNOWN).
_IDLE_SECONDS = 20
_RETRIES_MAX = 6
_MUCH_TIMES = 10  # requests with many bytes may take this many times longer than small ones


def is_storage_key(key: str) -> bool:
    """Return whether a property configures storage access; executors need exactly these."""
    return key.lower().startswith(_PREFIXES)


class ObjectSettings(OptionSettings):
    """The access to an object store; secrets appear only in the requests (SEC5)."""

    # Hadoop's and Hudi's keys are aliases.
    s3_access_key: str | None = option(
        "hoodoo.storage.s3.access.key",
        None,
        "Access key of S3. By default the environment, a web identity, the container "
        "or the instance is asked, in this order.",
        aliases=("fs.s3a.access.key", "hoodie.aws.access.key"),
    )
    s3_secret_key: str | None = option(
        "hoodoo.storage.s3.secret.key",
        None,
        "Secret key of S3.",
        aliases=("fs.s3a.secret.key", "hoodie.aws.secret.key"),
    )
    s3_session_token: str | None = option(
        "hoodoo.storage.s3.session.token",
        None,
        "Session token of temporary S3 credentials.",
        aliases=("fs.s3a.session.token", "hoodie.aws.session.token"),
    )
    s3_region: str | None = option(
        "hoodoo.storage.s3.region",
        None,
        "Region of the bucket. By default that of the endpoint, AWS_REGION, or us-east-1.",
        aliases=("fs.s3a.endpoint.region", "hoodie.aws.region"),
    )
    s3_endpoint: str | None = option(
        "hoodoo.storage.s3.endpoint",
        None,
        "Address of an S3-compatible server; AWS by default.",
        aliases=("fs.s3a.endpoint",),
    )
    s3_path_style: bool = option(
        "hoodoo.storage.s3.path.style.access",
        True,
        "Name the bucket in the path instead of the host.",
        aliases=("fs.s3a.path.style.access",),
    )
    s3_tls: bool | None = option(
        "hoodoo.storage.s3.ssl.enabled",
        None,
        "Use TLS for the endpoint; false allows plain HTTP over any network.",
        aliases=("fs.s3a.connection.ssl.enabled",),
    )
    s3_anonymous: bool = option(
        "hoodoo.storage.s3.anonymous", False, "Send no credentials (public buckets, read only)."
    )
    gcs_service_account: str | None = option(
        "hoodoo.storage.gcs.service.account.file",
        None,
        "JSON file of a Google service account; the application default credentials by default.",
        aliases=("fs.gs.auth.service.account.json.keyfile",),
    )
    azure_account: str | None = option(
        "hoodoo.storage.azure.account",
        None,
        "Azure storage account, if the address does not name it.",
    )
    azure_account_key: str | None = option(
        "hoodoo.storage.azure.account.key",
        None,
        "Key of the Azure storage account; Hadoop's fs.azure.account.key.<account>.* "
        "works too. Without it the SAS token, the environment, workload or managed "
        "identity are used.",
    )
    azure_sas_token: str | None = option(
        "hoodoo.storage.azure.sas.token", None, "Shared access signature for the Azure container."
    )
    allow_http: bool = option(
        "hoodoo.storage.allow.http",
        False,
        "Allow an endpoint without TLS that is not on this machine.",
    )
    request_ms: Annotated[int, OptionKind.MS] = option(
        "hoodoo.storage.request.timeout.ms",
        30_000,
        "Longest wait for one answer of an object store; ten times that for more than 4 MiB.",
    )

    def __repr__(self) -> str:
        return f"ObjectSettings(s3_endpoint={self.s3_endpoint!r}, s3_region={self.s3_region!r})"

    __str__ = __repr__

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, str], address: ObjectAddress | None = None
    ) -> Self:
        """
        Read the settings from all properties; an empty text counts as absent.

        The table's own file is never read.

        Args:
            properties: All layers.
            address: The table's, for Hadoop's keys that name an Azure account.

        Raises:
            SettingError: A value is wrong, half a pair of keys is missing, or the endpoint is not
                allowed (SEC11).
        """
        # An endpoint from a table would receive the caller's credentials (SEC11).
        property_set = as_property_set(properties).without_layer(TABLE_LAYER)
        settings = super().from_properties(property_set)
        if settings.azure_account_key is None and address is not None:
            key = _hadoop_account_key(property_set, address)
            settings = settings.model_copy(update={"azure_account_key": key})
        settings.check()
        return settings

    def check(self) -> None:
        """
        Refuse half a pair of keys, a time limit of 0 and a wrong endpoint.

        Raises:
            SettingError: As ``from_properties``.
        """
        if (self.s3_access_key is None) != (self.s3_secret_key is None):
            missing = "s3_access_key" if self.s3_access_key is None else "s3_secret_key"
            raise _wrong(missing, "", "access key and secret key come together; set both or none")
        if self.request_ms <= 0:
            raise _wrong("request_ms", str(self.request_ms), "a request needs more than 0 ms")
        if self.s3_endpoint is not None:
            self.endpoint_url()

    def wait_ms(self, *, much: bool) -> int:
        """Return the time limit of a request, in ms; longer if it moves many bytes."""
        return self.request_ms * (_MUCH_TIMES if much else 1)

    def endpoint_url(self) -> str | None:
        """
        Return the endpoint with its scheme, or None for AWS itself.

        Raises:
            SettingError: It is not an address, uses plain HTTP over a network without permission,
                or is the host that serves a machine's own credentials (SEC11).
        """
        endpoint = self.s3_endpoint
        if endpoint is None or endpoint == "s3.amazonaws.com":
            return None
        url = (
            endpoint
            if "://" in endpoint
            else f"{'http' if self.s3_tls is False else 'https'}://{endpoint}"
        )
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme not in ("http", "https") or not host or parts.query or "@" in parts.netloc:
            raise _wrong("s3_endpoint", endpoint, "an endpoint is host:port or https://host:port")
        if host in _METADATA_HOSTS or host.startswith("169.254."):
            raise _wrong(
                "s3_endpoint", endpoint, "this host serves credentials and stores no tables"
            )
        if parts.scheme == "http" and not self._http_is_allowed(host):
            raise _wrong(
                "s3_endpoint",
                endpoint,
                "an endpoint without TLS shows data and signatures to the network; use https, or "
                f"set {self.options['allow_http'].key}=true",
            )
        return url.rstrip("/")

    def _http_is_allowed(self, host: str) -> bool:
        return is_loopback(host) or self.allow_http or self.s3_tls is False

    def region(self) -> str | None:
        """Return the configured region, or that of an AWS endpoint."""
        if self.s3_region is not None or self.s3_endpoint is None:
            return self.s3_region
        found = _AWS_HOST.search(self.s3_endpoint)
        return found[1] if found else None


# : The process whose threads execute the requests of all clients, once there was one.
_ANSWERED_IN: list[int] = []


def assert_not_forked(pid: int) -> None:
    """
    Raise in a forked child, where a request would wait for ever; call it before a request.

    obstore's threads belong to the process that sent the first request, and a fork does not copy
    them.

    Args:
        pid: Of this process.

    Raises:
        UnsafeSetupError: The parent process had already sent a request.
    """
    if not _ANSWERED_IN:
        _ANSWERED_IN.append(pid)
    elif _ANSWERED_IN[0] != pid:
        raise UnsafeSetupError(
            "this process was forked from a process that used an object store, so its requests "
            "would get no answers. Start it with multiprocessing's spawn or forkserver, or fork "
            "before you open the first table",
            kind="forked",
        )


def open_client(
    address: ObjectAddress,
    settings: ObjectSettings,
    *,
    retries: bool,
    timeout_ms: int | None = None,
    much: bool = False,
) -> ObjectStore:
    """
    Return a client for one bucket; send no request yet.

    Args:
        address: The table.
        settings: The access to the store.
        retries: Whether the client repeats failed requests itself. Never for conditional writes:
            the repetition of an executed one fails like one after a stranger's (F16).
        timeout_ms: For one request; the settings' by default.
        much: For requests of many bytes, with more time.

    Raises:
        MissingExtraError: obstore is not installed.
        UnsafeSetupError: The client refuses the options.
    """
    with needs_extra("object stores need obstore", "objectstore"):
        import obstore.store
        from obstore.exceptions import BaseError
    wait_ms = timeout_ms or settings.wait_ms(much=much)
    options: ClientConfig = {
        "timeout": timedelta(milliseconds=wait_ms),
        "connect_timeout": timedelta(milliseconds=min(wait_ms, _CONNECT_SECONDS * 1000)),
        "pool_idle_timeout": timedelta(seconds=_IDLE_SECONDS),
    }
    # In this time no credential expires, and a caller with a budget gets an error in time.
    retry: Any = {
        "max_retries": _RETRIES_MAX if retries else 0,
        "retry_timeout": timedelta(milliseconds=2 * wait_ms),
    }
    try:
        if address.kind == "s3":
            config = _s3_config(address, settings)
            if str(config.get("endpoint", "")).startswith("http://"):
                options["allow_http"] = True
            return obstore.store.S3Store(
                address.bucket, config=config, client_options=options, retry_config=retry
            )
        if address.kind == "gs":
            account = settings.gcs_service_account
            return obstore.store.GCSStore(
                address.bucket,
                config={"service_account": account} if account else {},
                client_options=options,
                retry_config=retry,
            )
        return obstore.store.AzureStore(
            address.bucket,
            config=_azure_config(address, settings),
            client_options=options,
            retry_config=retry,
        )
    except (BaseError, ValueError) as error:
        raise UnsafeSetupError(
            "the client of the object store rejects its options; correct hoodoo.storage.* "
            f"(docs/how-to/object-stores.md): {address.base_uri}: {first_line(error)}",
            kind="storage_options",
            address=address.base_uri,
        ) from error


def _s3_config(address: ObjectAddress, settings: ObjectSettings) -> Any:
    config = {
        "access_key_id": settings.s3_access_key,
        "secret_access_key": settings.s3_secret_key,
        "session_token": settings.s3_session_token,
        "region": settings.region(),
        "skip_signature": settings.s3_anonymous or None,
    }
    endpoint = settings.endpoint_url()
    if not settings.s3_path_style:
        config["virtual_hosted_style_request"] = True
        if endpoint is not None:
            scheme, _, host = endpoint.partition("://")
            endpoint = f"{scheme}://{address.bucket}.{host}"
    config["endpoint"] = endpoint
    return {key: value for key, value in config.items() if value is not None}


def _azure_config(address: ObjectAddress, settings: ObjectSettings) -> Any:
    account = address.account or settings.azure_account
    config: dict[str, object] = {
        "account_name": account,
        "account_key": settings.azure_account_key,
        "sas_key": settings.azure_sas_token,
    }
    if account and address.domain != "core.windows.net":
        config["endpoint"] = f"https://{account}.blob.{address.domain}"
    return {key: value for key, value in config.items() if value is not None}


def _hadoop_account_key(properties: PropertySet, address: ObjectAddress) -> str | None:
    if address.kind != "az" or address.account is None:
        return None
    for host in (f"dfs.{address.domain}", f"blob.{address.domain}"):
        key = properties.get(f"fs.azure.account.key.{address.account}.{host}")
        if key:
            return key
    return None


def _wrong(field: str, value: str, why: str) -> SettingError:
    declared = ObjectSettings.options[field]
    shown = redact(declared.key, value)
    return SettingError(
        f"{why}: {declared.key}={shown!r}",
        kind="setting_value",
        key=declared.key,
        value=shown,
        suggestion=declared.doc,
    )
