#!/usr/bin/env python3
"""
`make bench-locks`: each lock provider next to the bare client of its service.

The verdict uses counts, not times: the number of round trips to take and release a lock
(``lockbench/wire.py``), at most 1.2 times those of the bare client. Times are ratios of one
run: both sides alternate on one server (README.md).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # the engine and the servers of its tests

from bench import WORK, Verdict, noise, verdict  # noqa: E402
from lockbench.arenas import ARENAS, Arena, ArenaError, Servers, set_up  # noqa: E402
from lockbench.bare import GIVE_UP_SECONDS  # noqa: E402
from lockbench.contenders import Contenders, Tally  # noqa: E402
from lockbench.wire import CountingWire  # noqa: E402
from pfbench.proc import Meter  # noqa: E402

ROUND_TRIPS_MAX = 1.2  # of ours over those of the bare client
COUNTED = 4  # how often the lock is taken while requests are counted
SIDES = ("ours", "bare")
TITLES = {"ours": "hoodoo", "bare": "bare", "java": "java"}

Record = dict[str, Any]


def main(arguments: list[str]) -> int:
    """Play in all arenas, print the report, then each target with its measurement."""
    options = parse(arguments)
    WORK.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="locks-", dir=WORK))
    records: list[Record] = []
    absent: dict[str, str] = {}
    began = time.monotonic()
    try:
        with contextlib.ExitStack() as stack:
            contenders = stack.enter_context(Contenders(max(2, *options.contenders)))
            servers = Servers(folder, stack)
            for name in options.providers:
                try:
                    arena = set_up(name, servers)
                except ArenaError as error:
                    absent[name] = str(error)
                    print(f"left out: {name}: {error}", flush=True)
                    continue
                print(f"--- {arena.name}", flush=True)
                records += measured(arena, contenders, options, folder)
        print(f"took {time.monotonic() - began:.0f} s")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not records:
        print("nothing was measured; see the lines above", file=sys.stderr)
        return 1
    verdicts = judge(records)
    busy = [{"ok": True, "seconds": 1.0, **each} for each in records if "foreign" in each]
    text = "\n".join(
        [
            "### Targets\n",
            *(f"- {state}: {told}" for state, told in verdicts),
            "",
            noise(busy) if busy else "",
            "",
            *report(records),
        ]
    )
    print(f"\n{text}")
    if options.save:
        save(options, records, text, verdicts, absent)
    return 1 if any(state == "MISSED" for state, _ in verdicts) else 0


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line; ``--quick`` leaves sixteen contenders and most of the time out."""

    def names(text: str) -> list[str]:
        wanted = text.split(",")
        if unknown := set(wanted) - set(ARENAS):
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
        return wanted

    def numbers(text: str) -> list[int]:
        return [max(1, int(number)) for number in text.split(",")]

    parser = argparse.ArgumentParser(description="lock providers next to bare clients")
    parser.add_argument("--quick", action="store_true", help="short games of 1 and 4 contenders")
    parser.add_argument("--providers", type=names, default=list(ARENAS), help=", ".join(ARENAS))
    parser.add_argument("--contenders", type=numbers, help="how many at once: 1,4,16")
    parser.add_argument("--seconds", type=float, help="of each game")
    parser.add_argument("--rounds", type=int, help="games of each side, alternating")
    parser.add_argument("--java", action="store_true", help="Java's own providers, too (maven)")
    parser.add_argument("--save", metavar="NAME", help="write results/NAME.md and NAME.json")
    options = parser.parse_args(arguments)
    full = {"contenders": [1, 4, 16], "seconds": 1.2, "rounds": 2}
    quick = {"contenders": [1, 4], "seconds": 0.4, "rounds": 1}
    for name, value in (quick if options.quick else full).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def measured(
    arena: Arena, contenders: Contenders, options: argparse.Namespace, folder: Path
) -> Iterator[Record]:
    """Counts, first uses and games of an arena; a failure becomes a record, too."""
    parts = [lambda: counts(arena, contenders), lambda: games(arena, contenders, options)]
    if options.java and arena.java:
        parts.append(lambda: java_games(arena, options, folder))
    for part in parts:
        try:
            yield from part()
        except Exception as error:  # noqa: BLE001  one provider must not end the others' games
            print(f"failed: {arena.name}: {error}", file=sys.stderr)
            yield {"arena": arena.name, "what": "failure", "error": str(error)[:300]}


def counts(arena: Arena, contenders: Contenders) -> Iterator[Record]:
    """Round trips and requests of one writer alone, and of two that alternate."""
    if arena.port is None:
        return
    with CountingWire(arena.port, is_zookeeper=arena.provider == "zookeeper") as wire:
        for side, spec in arena.specs(wire.port).items():
            contenders.open(side, spec, 2, threads=False)
            found: Record = {"arena": arena.name, "what": "counts", "side": side}
            for who, sections in (("alone", [0] * COUNTED), ("in_turn", [0, 1] * (COUNTED // 2))):
                contenders.cycles(side, 1, contender=sections[-1])
                wire.reset()
                for contender in sections:
                    contenders.cycles(side, 1, contender=contender)
                found[who] = round(wire.round_trips / COUNTED, 2)
                found[f"{who}_requests"] = round(wire.requests / COUNTED, 2)
            contenders.close(side)
            yield found


def games(arena: Arena, contenders: Contenders, options: argparse.Namespace) -> Iterator[Record]:
    """First uses, then games of more and more contenders, the sides alternating."""
    specs = arena.specs()
    for side, spec in specs.items():
        seconds = statistics.median(contenders.cold(spec))
        yield {"arena": arena.name, "what": "first", "side": side, "ms": seconds * 1000}
    for side, spec in specs.items():
        contenders.open(side, spec, max(options.contenders), threads=arena.threads)
    for count in options.contenders:
        tallies: dict[str, list[list[Tally]]] = {side: [] for side in SIDES}
        with Meter() as meter:
            for _ in range(options.rounds):
                for side in SIDES:
                    tallies[side].append(
                        contenders.play(side, count, options.seconds, threads=arena.threads)
                    )
        for side in SIDES:
            yield {
                "arena": arena.name,
                "what": "game",
                "side": side,
                "contenders": count,
                "kind": "threads" if arena.threads else "processes",
                "foreign": meter.out["foreign"],
                **figures(tallies[side], options.seconds),
            }
    for side in SIDES:
        contenders.close(side)


def java_games(arena: Arena, options: argparse.Namespace, folder: Path) -> Iterator[Record]:
    """Java's provider on the same server: its round trips, then one contender's times."""
    from lockbench.java import JavaContender, java_properties

    assert arena.port is not None
    base = {"arena": arena.name, "side": "java"}
    with (
        CountingWire(arena.port, is_zookeeper=arena.provider == "zookeeper") as wire,
        JavaContender(arena.java, java_properties(arena.java, wire.port), folder) as java,
    ):
        for _ in range(2):
            java.cycle()
        wire.reset()
        for _ in range(COUNTED):
            java.cycle()
        alone, requests = wire.round_trips / COUNTED, wire.requests / COUNTED
        yield {**base, "what": "counts", "alone": alone, "alone_requests": requests}
    with JavaContender(arena.java, java_properties(arena.java, arena.port), folder) as java:
        java.waits(options.seconds)  # a JVM is slow at first
        waits = java.waits(options.seconds * options.rounds)
    tally = Tally(done=len(waits), waits=waits)
    seconds = max(sum(waits), 1e-9)
    yield {**base, "what": "game", "contenders": 1, "kind": "JVM", **figures([[tally]], seconds)}


def figures(rounds: Sequence[Sequence[Tally]], seconds: float) -> Record:
    """Throughput, waits, and how little the least lucky contender got of its fair share."""
    waits = sorted(wait for tallies in rounds for tally in tallies for wait in tally.waits)
    done = [sum(tally.done for tally in tallies) for tallies in rounds]
    per_contender = [sum(tally.done for tally in own) for own in zip(*rounds, strict=True)]
    fair = sum(per_contender) / len(per_contender)
    return {
        "per_second": sum(done) / (seconds * len(rounds)),
        "p50_ms": quantile(waits, 0.5) * 1000,
        "p99_ms": quantile(waits, 0.99) * 1000,
        "least_share": min(per_contender) / fair if fair else 0.0,
        "cycles": len(waits),
        "gave_up": sum(tally.gave_up for tallies in rounds for tally in tallies),
    }


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that so many are not above; 0 of none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def judge(records: Sequence[Record]) -> list[Verdict]:
    """The target of each provider with a wire, then ratios without a target, then failures."""
    found: list[Verdict] = []
    for arena in arenas_of(records):
        sides = chosen(records, arena, "counts")
        if {"ours", "bare"} <= sides.keys():
            ours, bare = sides["ours"]["alone"], sides["bare"]["alone"]
            text = f"{arena}: {ours:.3g} round trips, the bare client {bare:.3g} "
            text += f"({ours / bare:.2f}, wanted at most {ROUND_TRIPS_MAX})"
            found.append(verdict(ours <= ROUND_TRIPS_MAX * bare, text))
    for arena in arenas_of(records):
        sides = chosen(records, arena, "game", contenders=1)
        if {"ours", "bare"} <= sides.keys():
            text = f"{arena}: our median over that of "
            text += ", ".join(
                f"{TITLES[side]} {ratio(sides['ours']['p50_ms'], sides[side]['p50_ms'])}"
                for side in ("bare", "java")
                if side in sides
            )
            found.append(("measured", text))
    for each in records:
        if each.get("gave_up"):
            text = (
                f"{each['arena']}, {each['contenders']} contenders: {TITLES[each['side']]} gave up "
            )
            text += f"{each['gave_up']} times after {GIVE_UP_SECONDS:.0f} s"
            found.append(("measured", text))
    return found + [
        ("MISSED", f"{each['arena']} failed: {each['error']}")
        for each in records
        if each["what"] == "failure"
    ]


def report(records: Sequence[Record]) -> Iterator[str]:
    """Two tables: counts and times."""
    yield "### Round trips of one acquire and release"
    yield ""
    yield "| lock | hoodoo | bare | ratio | two in turn | requests | first, ms | java |"
    yield "|---|---|---|---|---|---|---|---|"
    for arena in arenas_of(records):
        counted, first = (chosen(records, arena, what) for what in ("counts", "first"))
        ours, bare, java = (counted.get(side, {}) for side in TITLES)
        cells = [
            number(ours.get("alone")),
            number(bare.get("alone")),
            ratio(ours.get("alone"), bare.get("alone")),
            *(
                f"{number(ours.get(key))} : {number(bare.get(key))}"
                for key in ("in_turn", "alone_requests")
            ),
            " : ".join(number(first.get(side, {}).get("ms")) for side in SIDES),
            number(java.get("alone")),
        ]
        yield f"| {arena} | {' | '.join(cells)} |"
    yield ""
    yield "### Acquire and release, times"
    yield ""
    yield "| lock | contenders | side | per second | p50 ms | p99 ms | p50 ratio | least share |"
    yield "|---|---|---|---|---|---|---|---|"
    for arena in arenas_of(records):
        for count in sorted({each["contenders"] for each in records if each["what"] == "game"}):
            sides = chosen(records, arena, "game", contenders=count)
            for side, each in sides.items():
                cells = [
                    *(number(each[key]) for key in ("per_second", "p50_ms", "p99_ms")),
                    ratio(sides.get("ours", {}).get("p50_ms"), each["p50_ms"]),
                    f"{each['least_share']:.0%}",
                ]
                who = f"{arena} | {count} {each['kind']} | {TITLES[side]}"
                yield f"| {who} | {' | '.join(cells)} |"


def arenas_of(records: Sequence[Record]) -> list[str]:
    """Names of all arenas, in order."""
    return list(dict.fromkeys(each["arena"] for each in records))


def chosen(
    records: Sequence[Record], arena: str, what: str, *, contenders: int | None = None
) -> Mapping[str, Record]:
    """Records of one kind by side."""
    return {
        each["side"]: each
        for each in records
        if (each["arena"], each["what"]) == (arena, what)
        and (contenders is None or each["contenders"] == contenders)
    }


def number(value: float | None) -> str:
    """Three digits, or a dash."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ratio(ours: float | None, theirs: float | None) -> str:
    """Ours over theirs."""
    return f"{ours / theirs:.2f}" if ours is not None and theirs else "-"


def save(
    options: argparse.Namespace,
    records: Sequence[Record],
    text: str,
    verdicts: Sequence[Verdict],
    absent: Mapping[str, str],
) -> None:
    """The report as Markdown, the figures behind it as JSON."""
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    today = dt.datetime.now(tz=dt.UTC).date()
    head = f"# {options.save}\n\n{today}, {os.cpu_count()} cores, {options.rounds} games of "
    head += f"{options.seconds} s for each number of contenders and each side. How to read it: "
    head += '`../README.md`, "Locks".\n\n'
    (folder / f"{options.save}.md").write_text(f"{head}{text}\n", encoding="utf-8")
    document = {
        "date": str(today),
        "left_out": dict(absent),
        "targets": [list(one) for one in verdicts],
        "records": [
            {key: round(v, 4) if isinstance(v, float) else v for key, v in each.items()}
            for each in records
        ],
    }
    (folder / f"{options.save}.json").write_text(
        json.dumps(document, separators=(",", ":")).replace('},{"arena', '},\n{"arena'),
        encoding="utf-8",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
