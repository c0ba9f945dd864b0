"""Settings of whoever runs table services: where, how much at a time, beside whom."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, ClassVar

from pydantic import Field

from timeline.properties.option_settings import OptionSettings
from timeline.properties.options import Option, OptionKind

__all__ = ["WORKER_OPTIONS", "ServiceExecutor", "WorkerSettings"]


class ServiceExecutor(Enum):
    """Where the work on file groups is done."""

    LOCAL = "local"
    SPARK = "spark"


# By the field of WorkerSettings that it sets.
WORKER_OPTIONS: Mapping[str, Option] = {
    "enabled": Option(
        key="hoodie.table.services.enabled",
        default="true",
        kind=OptionKind.BOOL,
        doc="Writers run services after their writes or beside them; false leaves all to workers "
        "and commands, whatever the services' own options say.",
        since="0.2",
    ),
    "executor": Option(
        key="hoodoo.services.executor",
        default=ServiceExecutor.LOCAL.value,
        kind=OptionKind.ENUM,
        choices=tuple(one.value for one in ServiceExecutor),
        doc="Where services work on file groups: this process, or its Spark session's cluster.",
        since="0.1",
    ),
    "file_groups_max": Option(
        key="hoodoo.services.file.groups.max",
        kind=OptionKind.INT,
        doc="How many file groups a service works on at a time; as many as there are processors.",
        since="0.1",
    ),
    "wait_ms": Option(
        key="hoodoo.services.wait.ms",
        default="0",
        kind=OptionKind.MS,
        doc="How long to wait for another executor of a plan; 0 leaves the plan to it.",
        since="0.1",
    ),
    "beside_writers": Option(
        key="hoodoo.services.beside.writers",
        default="true",
        kind=OptionKind.BOOL,
        doc="Writers run asynchronous services on a thread; false leaves these to workers.",
        since="0.1",
    ),
    "interval_ms": Option(
        key="hoodoo.services.interval.ms",
        default="10000",
        kind=OptionKind.MS,
        doc="Pause between two rounds of a worker, and of services beside a writer.",
        since="0.1",
    ),
}


class WorkerSettings(OptionSettings):
    """Everything that can be set about running services; the fields of ``WORKER_OPTIONS``."""

    options: ClassVar[Mapping[str, Option]] = WORKER_OPTIONS

    enabled: bool = True
    executor: ServiceExecutor = ServiceExecutor.LOCAL
    file_groups_max: Annotated[int, Field(ge=1, le=100_000)] | None = None
    wait_ms: Annotated[int, Field(ge=0, le=2**53)] = 0
    beside_writers: bool = True
    interval_ms: Annotated[int, Field(ge=100, le=7 * 24 * 3_600_000)] = 10_000
