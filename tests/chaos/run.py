"""One chaos run from the first process to the report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import hoodoo
from tests.chaos.crew import Crew, faketime_library
from tests.chaos.faults import ON_THE_WIRE, Fault, Kind, counts_for, schedule
from tests.chaos.journal import Journal, OpRecord, events_of, operations_of, write_history
from tests.chaos.judge import check_rows, check_verified, clean_up, leftovers
from tests.chaos.locks import LOCKS, LockSide
from tests.chaos.nemesis import Nemesis
from tests.chaos.passing import pass_line
from tests.chaos.report import answers_of, figures, machine, recovery
from tests.chaos.resources import Watch, growth
from tests.chaos.setup import BEAT_MS, BY_TYPE, MISSES, RETAINED, SERVED, SHORT, Setup, hold_ms
from tests.chaos.throughput import recovered
from tests.chaos.work import NUMBERS, SCHEMA, Op, first_rows
from tests.integration.running.audit import Audit
from timeline.errors import HoodooError

TABLES: Mapping[str, str] = {"whole": "COPY_ON_WRITE", "logged": "MERGE_ON_READ"}
SAMPLE_S = 0.4
COPY_SLOTS_S = 0.1
ROUND_S = 240.0  # of more faults, while too few operations were acknowledged
LONGEST = 4  # times as long as it was to be, at most
FINISH_S = 240.0  # generous: a busy machine is no violation


#: Of a new table with a metadata table: the default partitions and a record index.
METADATA = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.metadata.global.record.level.index.min.filegroup.count": "2",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The parameters of a run."""

    lock: str
    seconds: float
    acknowledged: int  # it continues until so many operations succeeded, up to four times as long
    seed: int
    writers: int
    servers: int
    readers: int
    mutant: str
    all_services: bool  # compaction and clustering as well, on files laid out for them
    metadata: bool  # the tables have a metadata table with a record index
    disk: Path | None  # a small file system of its own for the tables

    @property
    def crew(self) -> list[str]:
        """Names of all processes."""
        counts = {"write": self.writers, "serve": self.servers, "read": self.readers}
        return [f"{role}-{number}" for role, count in counts.items() for number in range(count)]

    @property
    def spared(self) -> list[str]:
        """One of each role, which lives as long as a long run does."""
        return [name for name in self.crew if name.endswith("-0")] if self.all_services else []

    @property
    def again(self) -> str:
        """The command that runs it once more."""
        more = f" --mutant {self.mutant}" if self.mutant else ""
        more += " --all-services" if self.all_services else ""
        more += " --metadata" if self.metadata else ""
        more += f" --acknowledged {self.acknowledged}" if self.acknowledged else ""
        return (
            f"make chaos ARGS='--lock {self.lock} --seconds {self.seconds:g} --seed {self.seed} "
            f"--writers {self.writers} --servers {self.servers} --readers {self.readers}{more}'"
        )


def chaos(wanted: Wanted, folder: Path) -> dict[str, Any]:
    """
    Run it and check it.

    Args:
        wanted: The parameters.
        folder: An empty folder for journals and logs, which no fault fills.

    Returns:
        The report as a JSON-ready mapping; ``violations`` must be empty.
    """
    with LOCKS[wanted.lock](folder / "server") as side:
        run = _Run(wanted, folder, side)
        try:
            run.work()
            return run.judged()
        finally:
            run.crew.close()


class _Run:
    def __init__(self, wanted: Wanted, folder: Path, side: LockSide) -> None:
        self.wanted = wanted
        self.folder = folder
        self.side = side
        self.crew = Crew(folder)
        self.violations: list[str] = []
        self.impossible: list[str] = []
        self.lacking: list[str] = []
        self.started = self.ends = 0.0
        self.rounds = 0  # of more faults
        self.watch = Watch()
        self.judging = Event()
        local = wanted.disk or folder / "tables"
        addresses = {
            name: side.address(name) if side.address else str(local / name) for name in TABLES
        }
        self.setup = Setup(
            seed=wanted.seed,
            tables=addresses,
            types=dict(TABLES),
            properties={
                name: {
                    **SERVED,
                    **(BY_TYPE[kind] if wanted.all_services else SHORT),
                    **side.properties(name),
                }
                for name, kind in TABLES.items()
            },
            writers=wanted.writers,
            mutant=wanted.mutant,
        )
        self.audits = {
            name: Audit(Path(address)) for name, address in addresses.items() if not side.address
        }

    # ---- the run

    def work(self) -> None:
        """Faults and everything, up to the end of all processes."""
        self._create()
        self.setup.save(self.folder)
        self.possible = self._possible()
        faults = self._faults(self.wanted.seed, self.wanted.seconds)
        for name in self.wanted.crew:
            self.crew.start(name)
        self._await_first_answers()
        self.started = time.monotonic()
        self.nemesis = Nemesis(
            faults=faults,
            crew=self.crew,
            side=self.side,
            disk=self.wanted.disk,
            started=self.started,
        )
        Thread(target=self._copy_slots, daemon=True).start()
        sample_at = self.started
        self.ends = self.started + self.wanted.seconds
        while (now := time.monotonic()) < self.ends or not self._is_over():
            self.nemesis.act()
            self.crew.record_ended()
            self.watch.sample(self.crew.pids())
            if now >= sample_at:
                self._sample()
                spent = time.monotonic() - now
                sample_at = now + max(SAMPLE_S, 4 * spent)  # at most a fifth of a core
            time.sleep(0.05)
        self.nemesis.heal_all()
        self.seconds = time.monotonic() - self.started
        self.watch.save(self.folder / "resources.jsonl")
        hung = self.crew.finish(FINISH_S)
        self.violations += [f"{name} did not end within {FINISH_S:g} s" for name in hung]
        self.violations += self.crew.ended.values()
        self._sample()

    def _faults(self, seed: int, seconds: float) -> list[Fault]:
        counts = {} if self.wanted.mutant else counts_for(seconds, self.possible)
        return schedule(
            seed,
            seconds,
            counts,
            hold_s=hold_ms(self.side.lease_ms) / 1_000,
            crew=self.wanted.crew,
            spared=self.wanted.spared,
        )

    def _is_over(self) -> bool:
        """Whether there is no more to do; else it lets another round of faults follow."""
        if not self.nemesis.has_struck_all:
            return False  # a busy machine is late
        seconds = min(ROUND_S, self.wanted.seconds)
        too_long = (self.rounds + 1) * seconds > (LONGEST - 1) * self.wanted.seconds
        if too_long or self._acknowledged() >= self.wanted.acknowledged:
            return True
        self.rounds += 1
        self.nemesis.go_on(self._faults(self.wanted.seed + self.rounds, seconds))
        self.ends = time.monotonic() + seconds
        return False

    def _acknowledged(self) -> int:
        writers = [name for name in self.wanted.crew if name.startswith("write")]
        events = [one["event"] for name in writers for one in events_of(self._journal(name))]
        return events.count("ok")

    def _create(self) -> None:
        for name, address in self.setup.tables.items():
            with hoodoo.create_table(
                address,
                schema=SCHEMA,
                record_key=["id"],
                partition_by=["part"],
                table_type=TABLES[name],
                properties={
                    **self.setup.properties[name],
                    "hoodie.write.record.merge.mode": "COMMIT_TIME_ORDERING",
                    **(METADATA if self.wanted.metadata else {}),
                },
            ) as table:
                table.insert(first_rows(self.wanted.writers + 1))

    def _possible(self) -> list[Kind]:
        """Faults that this lock and this machine allow; the report lists the others."""
        impossible, lacking = {}, {}
        if self.side.address:
            impossible[Kind.DISK] = "the tables are in an object store"
        elif self.wanted.disk is None:
            lacking[Kind.DISK] = "neither root nor an unprivileged namespace may mount a tmpfs"
        if faketime_library() is None:
            lacking[Kind.CLOCK] = "install faketime from the distribution"
        if self.side.proxy is None:
            impossible |= dict.fromkeys(ON_THE_WIRE, "there is no server")
        if self.side.restart is None:
            impossible[Kind.SERVER] = "there is no server, or it would forget the tables"
        self.impossible = [f"{kind.value} ({why})" for kind, why in impossible.items()]
        self.lacking = [f"{kind.value} ({why})" for kind, why in lacking.items()]
        return [kind for kind in Kind if kind not in impossible and kind not in lacking]

    def _await_first_answers(self) -> None:
        """The clock of the run starts when all processes work."""
        end = time.monotonic() + FINISH_S
        wanted = {"write": "ok", "serve": "begin", "read": "read"}
        for name in self.wanted.crew:
            path = self.folder / f"{name}.ops.jsonl"
            first = wanted[name.partition("-")[0]]
            while not any(one["event"] == first for one in events_of(path)):
                self.crew.record_ended()
                if name in self.crew.ended or time.monotonic() > end:
                    raise RuntimeError(self.crew.ended.get(name, f"{name} does not begin"))
                time.sleep(0.05)

    def _sample(self) -> None:
        for audit in self.audits.values():
            audit.sample()

    def _copy_slots(self) -> None:
        """Runs in a thread of its own to the end: samples take long, and slots are deleted soon."""
        while not self.judging.wait(COPY_SLOTS_S):
            for audit in self.audits.values():
                audit.copy_slots()

    # ---- the judgement

    def judged(self) -> dict[str, Any]:
        """Return all results, after the files of the dead were cleaned up."""
        time.sleep((MISSES + 1) * BEAT_MS / 1_000)
        counts = self._counts()
        operations = {
            name: operations_of(self._journal(name), self.wanted.seed, tuple(TABLES))
            for name in self.wanted.crew
            if name.startswith("write")
        }
        free_ms, last = self._last_writes()
        operations["last"] = last
        for name in TABLES:
            with self._guarded(name), self._opened(name) as table:
                clean_up(table)
                self.violations += leftovers(name, table)
                every = [one for records in operations.values() for one in records]
                rows = table.to_arrow()
                self.violations += check_rows(name, rows, every, self.wanted.writers)
            with self._guarded(name):
                self.violations += check_verified(
                    name,
                    self.setup.tables[name],
                    self.setup.properties[name],
                    self._histories(name, operations),
                )
        self.violations += [leak for one in growth(self.watch) for leak in one.leaks]
        self.judging.set()
        for name, audit in self.audits.items():
            audit.sample()
            self.violations += [f"{name}: {one}" for one in audit.violations(RETAINED)]
        return self._document(counts, operations, free_ms)

    def _document(
        self,
        counts: Mapping[str, Counter[str]],
        operations: Mapping[str, list[OpRecord]],
        free_ms: int,
    ) -> dict[str, Any]:
        struck = self.nemesis.struck
        counted = figures(operations)
        faults = dict(Counter(one.fault.kind.value for one in struck))
        throughput = recovered(
            struck,
            answers_of(operations),
            lease_s=hold_ms(self.side.lease_ms) / 1_000,
            ends=self.started + self.seconds,
        )
        grown = growth(self.watch)
        lines = pass_line(
            seconds=self.seconds,
            commits=counted["ok"],
            faults=faults,
            violations=self.violations,
            lock_free_ms=free_ms,
            recovery=throughput,
            grown=grown,
        )
        return {
            "verdict": "no violation" if not self.violations else "VIOLATED",
            "again": self.wanted.again,
            "lock": self.wanted.lock,
            "mutant": self.wanted.mutant,
            "seed": self.wanted.seed,
            "seconds": round(self.seconds, 1),
            "started": round(self.started, 2),
            "crew": dict(Counter(name.partition("-")[0] for name in self.wanted.crew)),
            "tables": ", ".join(f"{name} ({kind})" for name, kind in TABLES.items()),
            "lease_ms": self.side.lease_ms,
            "pass_line": [asdict(one) for one in lines],
            "operations": counted,
            "faults": faults,
            "impossible": self.impossible,
            "lacking": self.lacking,
            "recovery": recovery(struck, operations),
            "throughput": throughput.as_document(),
            "grown": [one.as_document() for one in grown],
            "services": dict(counts["services"]),
            "readers": dict(counts["readers"]),
            "lock_free_ms": free_ms,
            "violations": self.violations,
            "machine": machine(),
            "struck": [
                {**one, "began": round(one["began"] - self.started, 2)}
                | {"healed": round(one["healed"] - self.started, 2)}
                for one in (each.as_document() for each in struck)
            ],
        }

    def _counts(self) -> dict[str, Counter[str]]:
        """Counts of services and readers, and the violations that all processes logged."""
        counts: dict[str, Counter[str]] = {"services": Counter(), "readers": Counter()}
        for name in self.wanted.crew:
            for event in events_of(self._journal(name)):
                if event["event"] == "violation":
                    self.violations.append(f"{name}: {event['what']}")
                elif event["event"] == "served":
                    counts["services"][event["service"]] += 1
                elif event["event"] == "refused":
                    counts["services"][f"refused ({event['error']})"] += 1
                elif event["event"] in ("read", "read_again"):
                    counts["readers"][event["event"]] += 1
        return counts

    def _last_writes(self) -> tuple[int, list[OpRecord]]:
        """A write to each table when all is over: the lock is free, and the table takes it."""
        path = self.folder / "last.ops.jsonl"
        journal = Journal(path)
        longest = 0.0
        number = self.wanted.writers * NUMBERS
        open_tables = set(TABLES)
        while open_tables:
            number += 1
            op = Op.of(self.wanted.seed, number, tuple(TABLES))
            if op.adds or op.table not in open_tables:
                continue
            open_tables.discard(op.table)
            began = time.monotonic()
            with self._guarded(op.table), self._opened(op.table) as table:
                journal.log("invoke", op=number)
                result = table.upsert(op.rows(), batch_id=op.batch_id)
                journal.log("ok", op=number, instant=result.requested_time)
            longest = max(longest, time.monotonic() - began)
        return round(longest * 1_000), operations_of(path, self.wanted.seed, tuple(TABLES))

    def _histories(self, table: str, operations: Mapping[str, list[OpRecord]]) -> list[Path]:
        """The journals of all clients of a table, in the form of docs/how-to/check-history.md."""
        found = sorted(self.folder.glob(f"read-*.{table}.history.jsonl"))
        for name, records in operations.items():
            path = self.folder / f"{name}.{table}.history.jsonl"
            write_history(path, name, table, records)
            found.append(path)
        return found

    def _opened(self, name: str) -> hoodoo.Table:
        properties = {**self.setup.properties[name], "hoodie.write.application.id": "judge"}
        return hoodoo.open_table(self.setup.tables[name], properties=properties)

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Healed, nothing may be refused any more; a table that cannot be read is a finding."""
        try:
            yield
        except HoodooError as error:
            self.violations.append(f"{name}: {type(error).__name__} ({error.kind}): {error}")

    def _journal(self, name: str) -> Path:
        return self.folder / f"{name}.ops.jsonl"
