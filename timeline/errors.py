"""
Every error that a caller can get, sorted by what the caller does next.

There is one root, and one class per reaction of a caller. A new class exists only if a caller
would act differently; otherwise a new ``kind`` is enough. All fields are data and survive
pickling, because a Spark task raises in one process and the driver handles the error in another.
Messages are lower case, have the values at the end and say what to do next. Messages may change
between releases; ``kind`` and the fields do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, ClassVar

from timeline.redaction import redact_text

__all__ = [
    "BudgetSpentError",
    "ChecksumError",
    "ClaimConflictError",
    "ClockRefusedError",
    "ConflictError",
    "CorruptTableError",
    "DuplicateKeyError",
    "FencedError",
    "HeartbeatExpiredError",
    "HoodooError",
    "IllegalTransitionError",
    "InstantNotFoundError",
    "InternalError",
    "InvalidInputError",
    "InvariantError",
    "LeaseLostError",
    "LockTimeoutError",
    "MalformedNameError",
    "MetadataTableOnError",
    "MissingExtraError",
    "MissingFileError",
    "NotFoundError",
    "OutcomeUnknownError",
    "Reaction",
    "RolledBackError",
    "SchemaConflictError",
    "ServiceConflictError",
    "SettingError",
    "SnapshotExpiredError",
    "StorageCapabilityError",
    "StorageUnavailableError",
    "TableChangedError",
    "TableConfigConflictError",
    "TableNotFoundError",
    "TableReplacedError",
    "UnavailableError",
    "UnknownProviderError",
    "UnsafeSetupError",
    "UnsupportedTableError",
    "WriteConflictError",
    "WriterDisagreementError",
]

#: The page with an entry for each kind, in the repository; the kind is the entry's anchor.
ERRORS_PAGE = "docs/reference/errors.md"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which gets an "s" unless the number is one: ``1 file``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def reason_of(error: Exception) -> str:
    """Return an error's text; for one that is not a ``HoodooError`` also its type and its line."""
    if isinstance(error, HoodooError) or error.__traceback__ is None:
        return str(error)
    raised = error.__traceback__
    while raised.tb_next is not None:
        raised = raised.tb_next
    module = raised.tb_frame.f_globals.get("__name__", "")
    return f"{type(error).__name__}: {error} ({module}, line {raised.tb_lineno})"


class Reaction(Enum):
    """What a caller does after an error."""

    REDO = "redo"
    REOPEN = "reopen"
    WAIT = "wait"
    ASK = "ask"
    STOP = "stop"
    FIX_CALL = "fix_call"
    FIX_SETUP = "fix_setup"
    FIX_TABLE = "fix_table"
    REPORT = "report"


def _rebuild(cls: type[HoodooError], message: str, kind: str, fields: dict[str, Any]) -> Any:
    return cls(message, kind=kind, **fields)


class HoodooError(Exception):
    """
    The root of every error of this engine.

    Args:
        message: Lower-case text that ends with the values and says what to do next.
        kind: Stable code of the case; defaults to the class's own.
        **fields: Plain data (text, numbers, lists, mappings) about the case.
    """

    reaction: ClassVar[Reaction] = Reaction.REPORT
    default_kind: ClassVar[str] = "error"  # of a subclass: its name, ``lock_timeout``

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "default_kind" not in cls.__dict__:
            name = cls.__name__.removesuffix("Error")
            cls.default_kind = re.sub(r"(?<=.)([A-Z])", r"_\1", name).lower()

    def __init__(self, message: str, *, kind: str | None = None, **fields: Any) -> None:
        self.message = redact_text(message)  # a driver's message may contain an address (SEC5)
        super().__init__(self.message)
        self.kind = kind or self.default_kind
        self.fields: dict[str, Any] = {
            name: redact_text(value) if isinstance(value, str) else value
            for name, value in fields.items()
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.kind, self.fields))

    def __str__(self) -> str:
        """Return the message and the entry of its kind; only here, so stored texts stay short."""
        gap = "\n" if "\n" in self.message else " "  # a last line may point into the line above
        return f"{self.message}{gap}[see {ERRORS_PAGE}#{self.kind}]"

    def as_document(self) -> dict[str, Any]:
        """Return the error as one JSON-ready mapping: kind, reaction, message and its fields."""
        return {
            "kind": self.kind,
            "reaction": self.reaction.value,
            "message": self.message,
            **self.fields,
        }


class ConflictError(HoodooError):
    """A concurrent commit conflicts with this write; field ``report`` is the conflict report."""

    reaction = Reaction.REDO


class WriteConflictError(ConflictError):
    """Another instant wrote the same file group."""


class ClaimConflictError(ConflictError):
    """An overwrite or delete of a partition conflicts with a write into it."""


class ServiceConflictError(ConflictError):
    """A pending service plan contains a file group that this write needs."""


class SchemaConflictError(ConflictError):
    """Two writers changed the schema in different ways."""


class TableConfigConflictError(ConflictError):
    """``hoodie.properties`` changed in a way that this write cannot adopt."""


class TableChangedError(TableConfigConflictError):
    """The table changed after it was opened: open it again, then write."""

    reaction = Reaction.REOPEN
    default_kind = "table_config_conflict"


class MetadataTableOnError(TableConfigConflictError):
    """The metadata table cannot be maintained, or an option forbids it: see the kind (FOR-7)."""

    reaction = Reaction.FIX_SETUP


class DuplicateKeyError(ConflictError):
    """Another instant inserted the same new key into another file group."""


class BudgetSpentError(ConflictError):
    """All allowed attempts had a conflict; field ``attempts`` lists the conflict of each."""


class SnapshotExpiredError(HoodooError):
    """Files of the snapshot are deleted, because the read took longer than they are retained."""

    reaction = Reaction.REDO


class UnavailableError(HoodooError):
    """An outside system did not answer within its budget; a later attempt may succeed."""

    reaction = Reaction.WAIT


class StorageUnavailableError(UnavailableError):
    """The storage did not answer, is full or refused access."""


class LockTimeoutError(UnavailableError):
    """The lock was not obtained in time; field ``holder`` names its holder, if known."""


class OutcomeUnknownError(HoodooError):
    """The store never answered a commit; resolve it, and never repeat it blindly."""

    reaction = Reaction.ASK


class FencedError(HoodooError):
    """This writer lost its right to commit; stop it, then start a new write."""

    reaction = Reaction.STOP


class LeaseLostError(FencedError):
    """The lock's lease ended while it was needed."""


class HeartbeatExpiredError(FencedError):
    """This writer's heartbeat paused longer than others tolerate (HB-3)."""


class RolledBackError(FencedError):
    """Another process rolled back this instant, because its heartbeat was expired (PUB-6)."""


class TableReplacedError(FencedError):
    """The table was dropped while it was open, and perhaps created again."""


class InvalidInputError(HoodooError, ValueError):
    """The call's arguments or data are wrong; nothing was changed."""

    reaction = Reaction.FIX_CALL


class SettingError(InvalidInputError):
    """A property is wrong; fields ``key``, ``value``, ``layer``, ``suggestion``."""


class UnknownProviderError(InvalidInputError):
    """A plug-in name is unknown; fields ``name``, ``known``."""


class NotFoundError(HoodooError, LookupError):
    """The requested object does not exist."""

    reaction = Reaction.FIX_CALL


class TableNotFoundError(NotFoundError):
    """The path holds no Hudi table."""


class InstantNotFoundError(NotFoundError):
    """The instant or time is not on the timeline, or its files were cleaned."""


class UnsafeSetupError(HoodooError):
    """The set-up could lose data; nothing was changed."""

    reaction = Reaction.FIX_SETUP


class MissingExtraError(UnsafeSetupError, ImportError):
    """An optional dependency is not installed; field ``extra`` or ``package`` names it."""


class WriterDisagreementError(UnsafeSetupError):
    """Writers of one table are configured differently; field ``differences``."""


class StorageCapabilityError(UnsafeSetupError):
    """The storage lacks a capability that the mode needs; field ``missing``."""


class ClockRefusedError(UnsafeSetupError):
    """The timeline is further ahead of this clock than allowed; field ``ahead_ms``."""


class UnsupportedTableError(HoodooError):
    """The table uses a version or feature that this release does not support."""

    reaction = Reaction.FIX_SETUP


class CorruptTableError(HoodooError):
    """A file of the table is damaged; field ``path`` names it."""

    reaction = Reaction.FIX_TABLE


class ChecksumError(CorruptTableError):
    """A checksum does not match the content."""


class MalformedNameError(CorruptTableError):
    """A name read from the table does not follow the grammar (SEC1, SEC2)."""


class MissingFileError(CorruptTableError):
    """A file that the timeline names is missing."""

    @classmethod
    def of_table(cls, path: str) -> MissingFileError:
        """Return the error for a log or base file."""
        return cls(
            "a file of the table is missing: restore it from a backup, or run 'hoodoo table verify "
            f"TABLE': {path}",
            path=path,
        )


class InternalError(HoodooError):
    """A defect of this engine; please report it with the fields."""


class IllegalTransitionError(InternalError):
    """The table of transitions forbids this change of an instant."""


class InvariantError(InternalError):
    """A condition that the engine guarantees does not hold."""


@contextmanager
def needs_extra(needs: str, extra: str, *, package: str | None = None) -> Iterator[None]:
    """
    Import optional packages of one extra within the block.

    Args:
        needs: Which part needs which package, for the error.
        extra: The extra to install.
        package: The one package that is needed, for kind ``missing_package``.

    Raises:
        MissingExtraError: A package is not installed.
    """
    try:
        yield
    except ImportError as error:
        found = {} if package is None else {"kind": "missing_package", "package": package}
        raise MissingExtraError(
            f"{needs}: pip install 'hoodoo[{extra}]'", **found, extra=extra
        ) from error
