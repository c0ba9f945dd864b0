"""
Samples a running table from outside, by the operating system alone, again and again.

It copies files that appear and vanish into a simulated system, so that the simulator's checkers
check the real run as well. The copy remembers slots and instants that archiving deletes. The
audit also measures the sizes that must stay bounded.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.simulator.engine_facts import EngineObserver
from tests.simulator.invariants import Violation
from tests.simulator.world import SimulatedSystem
from timeline.model.file_names import HISTORY, HOODIE, PARTITION_METADATA, SLOTS, TIMELINE
from timeline.model.instant import Action
from timeline.snapshot import ActiveTimeline

PLANNED = (Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The measurements of one moment."""

    plans_pending: int
    instants: int  # files of the active timeline belong to so many
    slots: int
    data_files: int
    data_bytes: int
    history_bytes: int
    other_bytes: int  # timeline, slots, markers, registry


@dataclass(slots=True)
class Audit:
    """Everything seen so far."""

    table: Path
    ports: SimulatedSystem = field(default_factory=SimulatedSystem)
    samples: list[Sample] = field(default_factory=list)
    plans_in_row: Counter[str] = field(default_factory=Counter)
    longest_wait: int = 0  # samples in which one and the same plan was pending
    bytes_written: int = 0  # of all data files that were seen
    slots_seen: dict[str, bytes] = field(default_factory=dict)  # between two samples

    def copy_slots(self) -> None:
        """
        Copy the new slots, and nothing else; a thread may call it while another samples.

        On a busy machine a slot may be created and truncated between two samples, and an audit that
        missed one slot number cannot check any later one.
        """
        with suppress(FileNotFoundError), os.scandir(self.table / SLOTS) as entries:
            for path in sorted(
                f"{SLOTS}/{entry.name}" for entry in entries if entry.name.isdigit()
            ):
                if path not in self.slots_seen:
                    with suppress(FileNotFoundError):
                        self.slots_seen[path] = (self.table / path).read_bytes()

    def sample(self) -> Sample:
        """
        Take a sample.

        Data files are listed first, so that the permission of a deletion is known.
        """
        data = dict(self._files("", skip=HOODIE))
        own = dict(self._files(HOODIE))
        self.copy_slots()
        for path, slot in sorted(self.slots_seen.copy().items()):
            if path not in self.ports.files and path not in self.ports.removed:
                self.ports.put("somebody", path, slot, durable=True, new=True)
        for folder in (SLOTS, TIMELINE, HISTORY):
            self._mirror({one: size for one, size in own.items() if _is_in(one, folder)}, folder)
        self._mirror(data, "")
        active = ActiveTimeline.of(
            path.rpartition("/")[2] for path in own if _is_in(path, TIMELINE)
        )
        plans = {one.requested_time for one in active.pending if one.action in PLANNED}
        self.plans_in_row = Counter({one: self.plans_in_row[one] + 1 for one in plans})
        self.longest_wait = max([self.longest_wait, *self.plans_in_row.values()])
        history = sum(size for path, size in own.items() if _is_in(path, HISTORY))
        sample = Sample(
            plans_pending=len(plans),
            instants=len(active.instants),
            slots=sum(1 for path in own if _is_in(path, SLOTS)),
            data_files=len(data),
            data_bytes=sum(data.values()),
            history_bytes=history,
            other_bytes=sum(own.values()) - history,
        )
        self.samples.append(sample)
        return sample

    def violations(self, commits_retained: int) -> list[Violation]:
        """I5 to I9 over the whole run."""
        facts = EngineObserver(self.ports, commits_retained=commits_retained)
        return facts.check_step(self.ports)

    def data_files(self) -> set[str]:
        """Paths of the files in the partitions, without their metadata files."""
        return {path for path, _ in self._files("", skip=HOODIE) if PARTITION_METADATA not in path}

    def peak(self, measure: str) -> int:
        """The greatest value of a field of ``Sample``."""
        return max(int(getattr(one, measure)) for one in self.samples)

    def _files(self, folder: str, skip: str | None = None) -> Iterator[tuple[str, int]]:
        """Relative paths and sizes of all files; those that go meanwhile are left out."""
        for where, folders, names in os.walk(self.table / folder):
            if skip in folders:
                folders.remove(skip or "")
            for name in names:
                path = Path(where) / name
                try:
                    size = path.stat().st_size
                except FileNotFoundError:
                    continue
                yield path.relative_to(self.table).as_posix(), size

    def _mirror(self, found: dict[str, int], folder: str) -> None:
        """Make the copy of a folder equal to the found files."""
        content = folder != ""
        for path in sorted(found):
            known = self.ports.files.get(path)
            # The history's version is the one file that is written again.
            same = known is not None and len(known.data) == found[path]
            if same and not path.endswith("/_version_"):
                continue
            try:
                # Of data files only the size is judged here; the rows are read at the end.
                data = (self.table / path).read_bytes() if content else bytes(found[path])
            except FileNotFoundError:
                continue
            self.ports.put("somebody", path, data, durable=True, new=known is None)
            if not content:
                self.bytes_written += len(data) if known is None else 0
        for path in [one for one in self.ports.files if _belongs(one, folder)]:
            if path not in found:
                self.ports.remove("somebody", path)


def _is_in(path: str, folder: str) -> bool:
    """Directly, not in a folder below it."""
    return path.rpartition("/")[0] == folder


def _belongs(path: str, folder: str) -> bool:
    return _is_in(path, folder) if folder else not path.startswith(f"{HOODIE}/")
