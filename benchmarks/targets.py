"""
The verdicts of a run of `make bench`: each target with its measurement, met, missed or open.

Only ratios within one run are judged. A target that needs an engine that did not run is open.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

SMALL_FACTOR_MAX = 4.0
GROWTH_MAX = 1.5
HELD_CREATES_MAX = 8.0
UPSERT_FACTOR = 5.0
LOAD_FACTOR = 3.0
COMPACT_FACTOR = 3.0
CLUSTER_FACTOR = 2.0
MOR_UPSERT_FACTOR = 10.0
MERGED_READ_FACTOR = 3.0
PRUNED_READ_MAX = 1.3  # over pyarrow's time for the same columns of the same files
PEAK_GROUPS_MAX = 2.0  # a caller may still hold rows of one file group when the next is read
#: Wanted of the commits a second of each peer, with the most writers.
WRITERS_FACTORS = {
    "hoodoo-open": 3.0,
    "hoodoo-nbcc": 3.0,
    "hoodoo-group": 10.0,
    "hoodoo-service": 10.0,
}
#: Works on Spark -> how many times as fast as Hudi, and the most of Delta's or Iceberg's time.
SPARK_WORKS = {
    "W1": ("bulk load", 3.0, 1.0),
    "W2-1": ("upsert of 1 %", 3.0, 1.0),
    "W2-10": ("upsert of 10 %", 3.0, 1.0),
    "merge_1pct": ("MERGE of 1 %", 2.0, 1.0),
    "W3-load": ("MOR bulk load", 3.0, 1.0),
    "W3-upsert": ("MOR upsert of 1 %", 3.0, 1.0),
    "W3-read0": ("read without logs", 1.0, 1.0),
    "W3-read": ("merged read", 1.0, 1.5),
    "W3-col": ("merged read of one column", 1.0, 1.5),
    "W3-compact": ("compaction", 1.0, 1.0),
    "W7-append": ("append of 1 %", 1.0, 1.0),
    "W7-point": ("point read by key", 1.0, 1.0),
    "W7-pointpart": ("point read by key and partition", 1.0, 1.0),
    "W7-col": ("read of one column", 1.0, 1.0),
    "W7-inc": ("changes of two appends", 1.0, 1.0),
    "W7-cdc": ("changes of an upsert", 1.0, 1.0),
    "W7-feed": ("change feed of an upsert", 1.0, 1.0),
    "W7-cups": ("upsert of 1 % with change feed", 3.0, 1.0),
    "W4-append": ("append of 100 rows", 1.0, 1.0),
    "W4-upsert": ("upsert of 100 rows", 1.0, 1.0),
}
ON_SPARK = "hoodoo-spark"
WRITERS_PEERS = ("delta-rs", "pyiceberg")
WRITERS_PLACES = {"conc": "local disk", "far": "store far away"}
BUSY = 0.25  # share of the machine that others took: such a run decides nothing for good

METADATA_COMMIT_MAX = 1.25  # CPU of a small commit with a metadata table over one without
HUDI_FACTOR = 10.0  # an upsert of few keys by record index, merge-on-read
PLANNING_FACTOR = 20.0  # far away, over the parallel listing of the same store

Records = list[dict[str, Any]]
Verdict = tuple[str, str]  # "met", "MISSED" or "open"; the text


def judge(records: Records) -> list[Verdict]:
    """Every target that this run can decide, and the failures of our engine."""
    return [
        *small_targets(records),
        *held_targets(records),
        *writers_targets(records),
        *big_targets(records),
        *spark_targets(records),
        *service_targets(records),
        *mor_targets(records),
        *metadata_targets(records),
        *comparisons(records),
        *failures(records),
    ]


def verdict(met: bool, text: str) -> Verdict:
    """A decided target."""
    return ("met" if met else "MISSED", text)


def small_targets(records: Records) -> list[Verdict]:
    """Small commits: at most so many times the floor, and no slower at the end than at the start."""
    found = []
    for label in ("hoodoo", "hoodoo-open"):
        for kind in ("append", "upsert"):
            ours, floor = (
                loops(records, each, f"W4-{kind}", warm=True) for each in (label, "floor")
            )
            if not ours or not floor:
                continue
            # Engines alternate by chunks, so a chunk and the next chunk of the floor saw one
            # machine.
            factor = statistics.median(
                mine / theirs
                for mine, theirs in zip(chunk_medians(ours), chunk_medians(floor), strict=False)
            )
            times = [one for loop in ours for one in loop["result"]["lat"]]
            growth = statistics.median(times[-20:]) / statistics.median(times[:20])
            cpu = ours[-1]["cpu"] / max(ours[0]["cpu"], 1e-9)
            text = f"small {kind} ({label}) {factor:.1f} times the floor's p50"
            found.append(verdict(factor <= SMALL_FACTOR_MAX, f"{text}, wanted at most 4"))
            text = f"small {kind} ({label}) grows by {growth:.2f} over {len(times)} commits"
            text += f", by {cpu:.2f} in CPU seconds, wanted less than {GROWTH_MAX}"
            found.append(verdict(growth < GROWTH_MAX, text))
    return found


def held_targets(records: Records) -> list[Verdict]:
    """
    The lock: held no longer than eight durable creates on this disk, measured in the same run.
    """
    found = []
    for kind in ("append", "upsert"):
        sections = [
            statistics.median(loop["result"]["held_ms"])
            / statistics.median(loop["result"]["creates_ms"])
            for label in ("hoodoo", "hoodoo-open")
            for loop in loops(records, label, f"W4-{kind}")
            if loop["result"].get("held_ms")
        ]
        if sections:
            text = f"small {kind}: lock held for {statistics.median(sections):.1f} durable creates"
            met = statistics.median(sections) <= HELD_CREATES_MAX
            found.append(verdict(met, f"{text}, wanted at most {HELD_CREATES_MAX:.0f}"))
    return found


def writers_targets(records: Records) -> list[Verdict]:
    """Many writers of small commits on one table: all there, and faster than each peer."""
    found = []
    for suite, place in WRITERS_PLACES.items():
        mine = [one for one in records if one.get("op") == "concurrent" and one["suite"] == suite]
        if mine:
            found.extend(speed_targets(mine, place))
            found.extend(loss_targets(mine, place))
    return found


def speed_targets(runs: Records, place: str) -> list[Verdict]:
    """Commits a second of the most writers, over those of each peer in the same run."""
    found = []
    most = max(one["args"]["n"] for one in runs)
    for kind in ("disjoint", "overlap"):
        speeds: dict[str, list[float]] = {}
        for one in runs:
            if one["args"]["n"] == most and one["args"]["kind"] == kind and one.get("ok"):
                speeds.setdefault(one["engine"], []).append(one["result"]["commits_per_s"])
        each = {engine: statistics.median(values) for engine, values in speeds.items()}
        for engine, wanted in WRITERS_FACTORS.items():
            for peer in WRITERS_PEERS:
                if engine not in each:
                    continue
                text = f"{most} writers, {kind}, {place} ({engine}): "
                if peer not in each:
                    found.append(("open", f"{text}{peer} did not run"))
                    continue
                factor = each[engine] / max(each[peer], 1e-9)
                text += f"{each[engine]:.2f} commits a second, {factor:.1f} times those of {peer}"
                found.append(verdict(factor >= wanted, f"{text}, wanted {wanted:.0f}"))
    return found


def loss_targets(runs: Records, place: str) -> list[Verdict]:
    """Nothing lost, twice or committed in spite of an error; nothing refused on own partitions."""
    found = []
    for engine in sorted({one["engine"] for one in runs if one["engine"].startswith("hoodoo")}):
        mine = [one for one in runs if one["engine"] == engine and one.get("ok")]
        if not mine:
            continue
        wrong = {
            name: sum(one["result"][name] for one in mine)
            for name in ("lost_rows", "duplicate_rows", "ghost_rows")
        }
        apart = sum(one["result"]["failed"] for one in mine if one["args"]["kind"] == "disjoint")
        text = f"writers ({engine}, {place}): rows lost, twice, of refused commits: "
        text += f"{', '.join(map(str, wrong.values()))}; commits refused in the end on partitions "
        text += f"of their own: {apart}; wanted none"
        found.append(verdict(not any(wrong.values()) and not apart, text))
    return found


def big_targets(records: Records) -> list[Verdict]:
    """Bulk load and upsert of a copy-on-write table."""
    if not any(record["suite"] == "big" for record in records):
        return []
    return [
        big_target(records, "W1", "bulk load", LOAD_FACTOR),
        big_target(records, "W2-1", "upsert of 1 %", UPSERT_FACTOR),
    ]


def big_target(records: Records, work: str, title: str, wanted: float) -> Verdict:
    """A big write against Hudi on Spark, by medians."""
    seconds = medians(records, work, "seconds")
    cpu = medians(records, work, "cpu")
    if not {"hoodoo", "hudi"} <= seconds.keys():
        return ("open", f"{title}: hoodoo and Hudi on Spark must both run")
    factor = seconds["hudi"] / seconds["hoodoo"]
    text = f"{title} {factor:.1f} times as fast as Hudi on Spark"
    text += f" ({cpu['hudi'] / cpu['hoodoo']:.1f} in CPU seconds), wanted {wanted:.0f}"
    return verdict(factor >= wanted, text)


def spark_targets(records: Records) -> list[Verdict]:
    """Our Spark executor against the other engines on Spark, by medians of seconds."""
    found = []
    for work, (title, hudi_factor, others_factor) in SPARK_WORKS.items():
        seconds, cpu = (medians(records, work, field) for field in ("seconds", "cpu"))
        if ON_SPARK not in seconds:
            continue
        for peer, least in (
            ("hudi", hudi_factor),
            ("delta", 1 / others_factor),
            ("iceberg", 1 / others_factor),
        ):
            if peer in seconds:
                factor = seconds[peer] / seconds[ON_SPARK]
                text = f"on Spark, {title}: {factor:.2f} times as fast as {peer}"
                text += f" ({cpu[peer] / max(cpu[ON_SPARK], 1e-9):.2f} in CPU seconds)"
                found.append(verdict(factor >= least, f"{text}, wanted {least:.2g}"))
    return found


def service_targets(records: Records) -> list[Verdict]:
    """
    Compaction and clustering against Spark's, in rows a second, and the rows that Z-order skips.
    """
    if not any(record["suite"] == "services" and record.get("ok") for record in records):
        return []
    found = []
    for work, title, wanted in (
        ("S-compact", "compaction", COMPACT_FACTOR),
        ("S-zorder", "Z-order clustering", CLUSTER_FACTOR),
        ("S-pack", "clustering of small files", CLUSTER_FACTOR),
    ):
        found.append(big_target(records, work, title, wanted))
        seconds = medians(records, work, "seconds")
        # Five appends of 1 %; the others rewrite the whole base.
        rows = records[0]["rows"] // (20 if work == "S-pack" else 1)
        speeds = ", ".join(f"{name} {rows / each / 1e6:.2f}" for name, each in seconds.items())
        found.append(("measured", f"{title}, million rows a second: {speeds}"))
    touched = {
        record["engine"]: record["result"]["touched"]
        for record in records
        if record["w"] == "S-boxes" and record.get("ok")
    }
    delta = [touched[name] for name in ("delta", "delta-rs") if name in touched]
    if delta and "hoodoo" in touched:
        text = f"a filter on two columns touches {touched['hoodoo']:.1f} files after Z-order, "
        text += f"Delta's at least {min(delta):.1f}, wanted no more"
        found.append(verdict(touched["hoodoo"] <= min(delta), text))
    return found


def mor_targets(records: Records) -> list[Verdict]:
    """Merge-on-read: writes and merged reads against Spark, pruned reads against pyarrow, memory."""
    if not any(record["suite"] == "mor" and record.get("ok") for record in records):
        return []
    found = []
    for work, blocks in (("M", "Parquet"), ("MA", "Avro")):
        text = f"MOR upsert of 1 % ({blocks} blocks)"
        found.append(big_target(records, f"{work}-upsert", text, MOR_UPSERT_FACTOR))
        text = f"merged read ({blocks} blocks)"
        found.append(big_target(records, f"{work}-read", text, MERGED_READ_FACTOR))
    found.append(big_target(records, "M-two", "merged read of two columns", MERGED_READ_FACTOR))
    ours, plain = (paired(records, work) for work in ("M-ro", "M-plain"))
    if ours and plain:
        factor = statistics.median(one / other for one, other in zip(ours, plain, strict=False))
        text = f"column-pruned read takes {factor:.2f} times pyarrow's time for the same files"
        found.append(
            verdict(factor <= PRUNED_READ_MAX, f"{text}, wanted at most {PRUNED_READ_MAX}")
        )
    found.extend(peak_targets(records))
    merged, base = (paired(records, work) for work in ("M-read", "M-base"))
    if merged and base:
        share = statistics.median(other / one for one, other in zip(merged, base, strict=False))
        found.append(
            ("measured", f"merged read at {share:.2f} of the speed of its base files alone")
        )
    return found


def peak_targets(records: Records) -> list[Verdict]:
    """Memory of a streamed read: bounded by the largest file group, for any size of table."""
    found = []
    for work, blocks in (("M", "Parquet"), ("MA", "Avro")):
        told = [
            record["result"]
            for record in records
            if record["w"] == f"{work}-peak" and record["engine"] == "hoodoo" and record.get("ok")
        ]
        if told:
            peak = max(one["peak_mb"] for one in told)
            group = max(one.get("group_mb", 0) for one in told)
            text = f"peak memory of a streamed merged read ({blocks} blocks): {peak:.0f} MB, "
            text += f"{peak / max(group, 1):.1f} times that of the largest file group alone, "
            text += f"wanted at most {PEAK_GROUPS_MAX:.0f}"
            found.append(verdict(peak <= PEAK_GROUPS_MAX * max(group, 1), text))
    return found


def paired(records: Records, work: str) -> list[float]:
    """Our seconds, round by round: engines and works alternate, so a round saw one machine."""
    return [
        record["seconds"]
        for record in records
        if record["w"] == work and record["engine"] == "hoodoo" and record.get("ok")
    ]


def comparisons(records: Records) -> list[Verdict]:
    """Ours over each peer's, for all measurements that have no target of their own."""
    works = {"W1": "bulk load", "W2-1": "upsert of 1 %", "W2-10": "upsert of 10 %"}
    works |= {"M-load": "MOR load", "M-upsert": "MOR upsert of 1 %", "M-read": "merged read"}
    works |= {"MA-upsert": "MOR upsert, Avro blocks", "MA-read": "merged read, Avro blocks"}
    works |= {"M-two": "merged read of two columns", "M-ro": "read-optimized read"}
    works |= {"M-inc": "MOR changes", "M-points": "100 rows by key"}
    works |= {
        record["w"]: f"opening after {record['w'].rpartition('-')[2]} commits"
        for record in records
        if record["w"].startswith("W6-open")
    }
    found = []
    for work, title in works.items():
        seconds = medians(records, work, "seconds")
        if "hoodoo" in seconds:
            others = ", ".join(
                f"{engine} {seconds['hoodoo'] / theirs:.2g}"
                for engine, theirs in seconds.items()
                if engine != "hoodoo"
            )
            found.append(("measured", f"{title}: our seconds over those of {others}"))
    return found


def metadata_targets(records: Records) -> list[Verdict]:
    """The price of a metadata table in small commits, and its gain in plans and look-ups."""
    found = []
    for kind in ("append", "upsert"):
        ours, without = (
            loops(records, each, f"W4-{kind}") for each in ("hoodoo-metadata", "hoodoo-open")
        )
        pairs = [
            (one["cpu"], other["cpu"])
            for one, other in zip(ours, without, strict=False)
            if other["cpu"]
        ]
        if pairs:
            factor = sum(one for one, _ in pairs) / sum(other for _, other in pairs)
            text = f"small {kind} with a metadata table {factor:.2f} times the CPU of one without"
            wanted = f"wanted at most {METADATA_COMMIT_MAX}"
            found.append(verdict(factor <= METADATA_COMMIT_MAX, f"{text}, {wanted}"))
    for work in sorted({one["w"] for one in records if one["w"].startswith("plan ")}):
        times = medians(records, work, "seconds")
        factor = times["listing"] / times["metadata table"]
        text = f"{work}: by the metadata table {factor:.1f} times as fast as by listing"
        if work == "plan local disk":
            found.append(("measured", text))
        else:
            text = f"{text}, wanted {PLANNING_FACTOR:g}"
            found.append(verdict(factor >= PLANNING_FACTOR, text))
    times = medians(records, "upsert by index", "seconds")
    first = times.get("GLOBAL_RECORD_LEVEL_INDEX")
    for index in ("SIMPLE", "BLOOM"):
        if first and index in times:
            factor = times[index] / first
            text = f"upsert of few keys by record index {factor:.1f} times as fast as by {index}"
            found.append(verdict(factor > 1, f"{text}, wanted more than 1"))
    if first and "Hudi" in times:
        factor, cpu = times["Hudi"] / first, medians(records, "upsert by index", "cpu")
        text = f"upsert of few keys by record index {factor:.1f} times as fast as by Hudi on Spark"
        text += f", with {cpu['Hudi'] / cpu['GLOBAL_RECORD_LEVEL_INDEX']:.1f} times less CPU"
        found.append(verdict(factor >= HUDI_FACTOR, f"{text}, wanted {HUDI_FACTOR:g}"))
    return found


def failures(records: Records) -> list[Verdict]:
    """The failures of our engine, unless it reports that it does not support the work."""
    return [
        ("MISSED", f"{record['w']} failed: {str(record.get('error'))[:200]}")
        for record in records
        if record["engine"].startswith("hoodoo")
        and not record.get("ok")
        and not record.get("unsupported")
    ]


def loops(records: Records, engine: str, work: str, *, warm: bool = False) -> Records:
    """The chunks of small commits of one engine, in order."""
    found = [
        record
        for record in records
        if record["engine"] == engine
        and record["w"] == work
        and record.get("op") == "commit_loop"
        and record.get("ok")
    ]
    return found if warm else found[1:] or found


def chunk_medians(chunks: Records) -> list[float]:
    """The median latency of each chunk."""
    return [statistics.median(chunk["result"]["lat"]) for chunk in chunks]


def medians(records: Records, work: str, field: str) -> Mapping[str, float]:
    """Median seconds or CPU seconds per engine."""
    values: dict[str, list[float]] = {}
    for record in records:
        if record["w"] == work and record.get("ok"):
            values.setdefault(record["engine"], []).append(record[field])
    return {engine: statistics.median(found) for engine, found in values.items()}


def noise(records: Records) -> str:
    """How busy others kept the machine."""
    share = statistics.median(
        record["foreign"]
        for record in records
        if record.get("ok") and record["seconds"] > 0.1 and "foreign" in record
    )
    advice = "; run it again on a quiet machine before you quote it" if share > BUSY else ""
    return f"Others took {share:.0%} of the machine (median over the calls){advice}."
