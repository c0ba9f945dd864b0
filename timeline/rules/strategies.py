"""
Conflict strategies: what a table's owner may choose where the matrix leaves a choice.

A strategy is asked after the matrix and only where that refused nothing. So it can make a
writer yield more often, or a service, and can never let two instants stand that would lose
a row. Hudi's class names are translated by this fixed table; no class is loaded (SEC4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from timeline.model.claim import WHOLE_TABLE, Claim, FileGroupId
from timeline.model.instant import Action
from timeline.rules.conflicts import Refused, Rival, RuleId

__all__ = [
    "SIMPLE",
    "STRATEGIES",
    "ConflictStrategy",
    "Objection",
    "find_strategy",
    "objection_to",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """Why an instant shall not be published beside a rival that the matrix lets pass."""

    why: str
    file_groups: tuple[FileGroupId, ...] = ()
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictStrategy:
    """
    One choice among safe verdicts.

    Attributes:
        name: As ``hoodie.write.lock.conflict.resolution.strategy`` says it.
        class_names: Java classes that mean the same.
        objects: Looks at what I touch and at one rival; None when both may stand. It is
            asked within the critical section, so it must be quick and do no I/O.
        prefers_writers: A writer that would be refused for a pending clustering cancels it,
            and a clustering leaves out what live writers announced to change.
    """

    name: str
    class_names: tuple[str, ...] = ()
    objects: Callable[[Claim, Rival], Objection | None] | None = None
    prefers_writers: bool = False


def _same_partition(mine: Claim, rival: Rival) -> Objection | None:
    """One writer a partition; services move rows and write none."""
    if rival.is_compaction or rival.action is Action.CLUSTERING:
        return None
    met = _partitions(mine) & _partitions(rival.claim)
    if WHOLE_TABLE in _partitions(mine) | _partitions(rival.claim):
        met = _partitions(mine) | _partitions(rival.claim)  # judged by the matrix already
    if not met:
        return None
    return Objection(
        why="the other wrote into the same partition, which has one writer at a time",
        partitions=tuple(sorted(met)),
    )


def _partitions(claim: Claim) -> set[str]:
    return {item.file_group.partition_path for item in claim.file_groups} | set(claim.partitions)


_JAVA = "org.apache.hudi.client.transaction."

SIMPLE = ConflictStrategy(
    name="simple", class_names=(f"{_JAVA}SimpleConcurrentFileWritesConflictResolutionStrategy",)
)

STRATEGIES: tuple[ConflictStrategy, ...] = (
    SIMPLE,
    # Two file groups of one bucket are met wherever the index is BUCKET: nothing is left to
    # choose, the name is there for Hudi's.
    ConflictStrategy(
        name="bucket",
        class_names=(f"{_JAVA}BucketIndexConcurrentFileWritesConflictResolutionStrategy",),
    ),
    ConflictStrategy(
        name="prefer_writer",
        class_names=(
            f"{_JAVA}PreferWriterConflictResolutionStrategy",
            f"{_JAVA}IngestionPrimaryWriterBasedConflictResolutionStrategy",  # Hudi 0.x
        ),
        prefers_writers=True,
    ),
    ConflictStrategy(name="partition", objects=_same_partition),
)


def find_strategy(name: str, offered: Iterable[ConflictStrategy] = ()) -> ConflictStrategy | None:
    """
    The strategy of a name, or of a Java class with or without its package; None for none.

    Args:
        name: In any case, with dashes or underscores.
        offered: What plug-ins add; a name of ours stays ours.
    """
    said = name.strip().casefold().replace("-", "_")
    for strategy in (*STRATEGIES, *offered):
        names = [strategy.name]
        for each in strategy.class_names:
            names += [each, each.rpartition(".")[2]]
        if said in (each.casefold().replace("-", "_") for each in names):
            return strategy
    return None


def objection_to(
    mine: Claim, rivals: Sequence[Rival], strategy: ConflictStrategy
) -> Refused | None:
    """The first objection of a strategy to a claim that the matrix lets pass; begin anew."""
    if strategy.objects is None:
        return None
    for rival in rivals:
        objection = strategy.objects(mine, rival)
        if objection is not None:
            return Refused(
                RuleId.STRATEGY_REFUSED,
                objection.why,
                (rival,),
                objection.file_groups,
                objection.partitions,
            )
    return None
