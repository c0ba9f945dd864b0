"""What services did, as documents and lines, and how a worker fares."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from hoodoo.cli.printing import Printer
from hoodoo.cli.receipts import nothing_done
from tableservices.archiving.execute import ArchiveReceipt
from tableservices.cleaning.execute import CleanReceipt
from tableservices.clustering.execute import ClusteringReceipt
from tableservices.compaction.execute import CompactionReceipt
from tableservices.logcompaction.execute import LogCompactionReceipt
from tableservices.service import ServiceReceipt, TableService
from tableservices.ttl.execute import TtlReceipt
from tableservices.worker import Failing, Served, WorkerReport
from timeline.errors import HoodooError, InvalidInputError
from timeline.ports.clock import Clock

__all__ = ["WorkerTold", "import_all", "print_receipt", "tell_events", "tell_health"]


def print_receipt(
    printer: Printer,
    service: str,
    receipt: ServiceReceipt | None,
    *,
    table: str | None = None,
) -> None:
    """One run of one service; ``table`` is told where there are several."""
    if printer.for_people:
        where = "" if table is None else f"{table}: "
        if receipt is None:
            printer.line(f"{where}{service}: nothing to do")
        else:
            printer.line(f"{where}{service} {receipt.requested_time}: {receipt.text}")
        return
    document = _document(service, table)
    if receipt is not None:
        document["requested_time"] = receipt.requested_time
        document["completion_time"] = receipt.completion_time
        document["attempts"] = 1
        document["text"] = receipt.text
        document.update(_figures(receipt))
    printer.document(document)


def _document(service: str, table: str | None) -> dict[str, Any]:
    document = nothing_done(service, service)
    return document if table is None else {**document, "table": table}


def _figures(receipt: ServiceReceipt) -> Mapping[str, object]:
    """What a receipt counted, under the names of documents; nothing of a plug-in's."""
    match receipt:
        case CompactionReceipt():
            return {
                "file_groups": receipt.file_groups,
                "files_written": receipt.file_groups,
                "rows_written": receipt.rows_written,
                "bytes_written": receipt.bytes_written,
                "log_files_merged": receipt.log_files,
                "log_bytes_merged": receipt.log_bytes,
            }
        case LogCompactionReceipt():
            return {
                "file_groups": receipt.file_groups,
                "files_written": receipt.file_groups,
                "bytes_written": receipt.bytes_written,
                "log_files_merged": receipt.log_files,
            }
        case ClusteringReceipt():
            return {
                "file_groups": receipt.file_groups_replaced,
                "files_written": receipt.files_written,
                "rows_written": receipt.rows_written,
                "bytes_written": receipt.bytes_written,
                "groups_left_to_writers": receipt.groups_left_out,
            }
        case CleanReceipt():
            return {"files_deleted": list(receipt.files)}
        case ArchiveReceipt():
            return {"instants_archived": receipt.instants, "slots_up_to": receipt.slots_up_to}
        case TtlReceipt():
            return {"partitions_deleted": list(receipt.partitions)}
    return {}


def tell_events() -> None:
    """Events of this process on standard error, as lines of a log."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("hoodoo")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def import_all() -> None:
    """
    Import now what would be imported amid the work.

    PyArrow takes pandas with the first list it is given. A signal that breaks a worker off amid
    that import leaves half of it, and what is cleaned up behind it fails by that.
    """
    pa.array([])


def tell_health(path: Path, document: Mapping[str, Any]) -> None:
    """
    Write a health file; replaced as a whole, so that whoever looks never reads half of it.

    Raises:
        InvalidInputError: It cannot be written there.
    """
    beside = path.with_name(path.name + ".new")
    try:
        beside.write_text(json.dumps(document), encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise InvalidInputError(
            "the health file cannot be written; name one in a folder that is there and may be "
            f"written to: {path}: {error.strerror}",
            kind="health_file",
            path=str(path),
        ) from error


@dataclass(slots=True, kw_only=True)
class WorkerTold:
    """
    Prints what a worker does and keeps its health file.

    Args:
        printer: Receipts and failures go there.
        clock: For the times in the health file.
        several: Whether tables must be told apart.
        health: The file; None for none.
    """

    printer: Printer
    clock: Clock
    several: bool
    health: Path | None
    _report: WorkerReport = field(default_factory=WorkerReport)
    _doing: dict[str, str] | None = None

    def began(self, served: Served, service: TableService) -> None:
        """As ``Watcher``."""
        self._doing = {"table": _address(served), "service": service.name}
        self._tell("at_work")

    def did(self, served: Served, service: TableService, receipt: ServiceReceipt) -> None:
        """As ``Watcher``."""
        table = _address(served) if self.several else None
        print_receipt(self.printer, service.name, receipt, table=table)

    def failed(self, failing: Failing) -> None:
        """As ``Watcher``."""
        if self.printer.for_people:
            self.printer.line(failing.text, style="red")
            return
        document = _document(failing.service, failing.table)
        self.printer.document({**document, "error": _error(failing.error)})

    def rested(self, report: WorkerReport) -> None:
        """As ``Watcher``."""
        self._report, self._doing = report, None
        self._tell("resting")

    def ended(self) -> None:
        """The worker takes its leave."""
        self._doing = None
        self._tell("ended")

    def _tell(self, state: str) -> None:
        if self.health is None:
            return
        report = self._report
        document = {
            "state": state,
            "at_ms": self.clock.now_ms(),
            "doing": self._doing,
            "rounds": report.rounds,
            "receipts": report.receipts,
            "failures": report.failures,
            "failing": [
                {"table": one.table, "service": one.service, **_error(one.error)}
                for one in report.failing
            ],
        }
        tell_health(self.health, document)


def _address(served: Served) -> str:
    return served.context.world.storage.base_uri


def _error(error: Exception) -> dict[str, Any]:
    if isinstance(error, HoodooError):
        return error.as_document()
    return {
        "kind": "unexpected",
        "reaction": "report",
        "message": f"{type(error).__name__}: {error}",
    }
