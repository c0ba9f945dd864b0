"""
What a failed request to an object store did: the judgement of its client's errors.

Told apart with care, because the protocol acts on it: only an answer that surely means
"nothing happened" may be reported as a failure, all the rest is unknown (UNK-1). obstore
says more in its texts than in its classes, so texts are read; what is not understood counts
as unknown, which is always safe.
"""

from __future__ import annotations

import re
from enum import Enum

from timeline.errors import StorageUnavailableError

__all__ = ["Fate", "fate_of", "first_line", "is_no_such_range", "unavailable"]


class Fate(Enum):
    """What a failed request did."""

    MISSING = "there is no such object"
    NO_BUCKET = "there is no such bucket"
    EXISTS = "the object exists already"
    CHANGED = "the object is not the one that was meant"
    BUSY = "another request for the same object was under way"
    THROTTLED = "the store asks for fewer requests"
    NOT_SENT = "the store could not be reached"
    DENIED = "access was refused"
    WRONG = "the store refused the request"
    UNKNOWN = "no clear answer came back"


# To the letter: a ConnectionReset comes after the request was sent.
_NOT_CONNECTED = re.compile(r"kind: Connect\b")
_STATUS = re.compile(r"status code: (\d{3})")
_BY_STATUS = {
    401: Fate.DENIED,
    403: Fate.DENIED,
    404: Fate.MISSING,
    408: Fate.UNKNOWN,
    409: Fate.BUSY,
    412: Fate.CHANGED,
    429: Fate.THROTTLED,
}
_ADVICE = {
    Fate.NO_BUCKET: "create the bucket or correct the address",
    Fate.DENIED: "give these credentials access to the table's prefix, docs/storage.md lists what",
    Fate.WRONG: "look at region, endpoint and path style",
    Fate.THROTTLED: "try again later, or ask for a higher limit",
    Fate.NOT_SENT: "check the endpoint and the network, then repeat",
}


def fate_of(error: Exception) -> Fate:
    """Judge an error of obstore (or of Python, which it uses too)."""
    from obstore import exceptions

    text = str(error)
    if "<Code>NoSuchBucket" in text or "<Code>ContainerNotFound" in text:
        return Fate.NO_BUCKET
    if isinstance(error, FileNotFoundError):
        return Fate.MISSING
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    if isinstance(error, exceptions.AlreadyExistsError):
        # The client calls every 409 so, although S3 means "somebody else is at it" by it;
        # Azure really says that the blob is there.
        busy = status == 409 and "<Code>BlobAlreadyExists" not in text
        return Fate.BUSY if busy else Fate.EXISTS
    if isinstance(error, exceptions.PreconditionError):
        return Fate.CHANGED
    if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
        return Fate.DENIED
    if isinstance(error, exceptions.NotSupportedError | exceptions.InvalidPathError):
        return Fate.WRONG
    if status:
        if status == 503 and "<Code>SlowDown" in text:
            return Fate.THROTTLED
        return _BY_STATUS.get(status, Fate.WRONG if status < 500 else Fate.UNKNOWN)
    if "redirect without LOCATION" in text:  # S3's way to say that the region is wrong
        return Fate.WRONG
    return Fate.NOT_SENT if _NOT_CONNECTED.search(text) else Fate.UNKNOWN


def is_no_such_range(error: Exception) -> bool:
    """
    Whether the object has none of the bytes that were asked for: it may be empty.

    S3 refuses the range of an empty object, others answer as if none had been asked for.
    """
    text = str(error)
    found = _STATUS.search(text)
    return "non-partial response" in text or (found is not None and found[1] == "416")


def unavailable(
    error: Exception, path: str, doing: str, fate: Fate | None = None
) -> StorageUnavailableError:
    """The typed form of a failed request, with the path and what to do."""
    known = fate or fate_of(error)
    advice = _ADVICE.get(known, "try again later")
    return StorageUnavailableError(
        f"{doing} failed, {known.value}: {advice}: path {path!r}: {first_line(error)}",
        path=path,
        fate=known.name.lower(),
    )


def first_line(error: Exception) -> str:
    """What may be shown: behind it follows a dump, and a query may hold a signature (SEC5)."""
    line = str(error).split("\n", 1)[0].partition(": <?xml")[0]
    return re.sub(r"(://[^\s?]+)\?\S+", r"\1?***", line)[:300]
