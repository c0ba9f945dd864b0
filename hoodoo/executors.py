"""
Where services work on file groups: on this machine, or on the cluster of a Spark session.

Chosen by ``hoodoo.services.executor`` when a service is run, never by opening a table: a
reader starts no Spark.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace

from tableservices.worker_settings import ServiceExecutor, WorkerSettings
from timeline.context import TableContext
from timeline.errors import MissingExtraError
from timeline.machine import ThreadExecutor
from timeline.ports.executor import Executor, SpreadingExecutor
from timeline.properties.options import TABLE_LAYER, as_property_set

__all__ = ["working_context"]


def working_context(context: TableContext, properties: Mapping[str, str]) -> TableContext:
    """
    The table as services see it: over the executor that the properties choose.

    A context that is over a cluster already stays as it is. Others get one of their own only
    where it differs.

    Raises:
        MissingExtraError: PySpark is wanted and not installed.
        StorageCapabilityError: The session is a Spark Connect one.
        SettingError: A property is wrong.
    """
    world = context.world
    # What a process starts is its caller's word, never the table's (SEC4).
    said = as_property_set(properties).without_layer(TABLE_LAYER)
    settings = WorkerSettings.from_properties(said)
    if isinstance(world.executor, SpreadingExecutor):
        return context
    executor: Executor
    if settings.executor is ServiceExecutor.SPARK:
        executor = _of_the_session(context, properties, settings.file_groups_max)
    elif settings.file_groups_max is not None:
        executor = ThreadExecutor(settings.file_groups_max, events=world.events)
    else:
        return context
    return TableContext.of(replace(world, executor=executor), context.config, context.limits)


def _of_the_session(
    context: TableContext, properties: Mapping[str, str], tasks_max: int | None
) -> Executor:
    if importlib.util.find_spec("pyspark") is None:
        raise MissingExtraError(
            "services over Spark need PySpark; install hoodoo[spark] and a Java 17, or say "
            "hoodoo.services.executor=local",
            extra="spark",
        )
    from hoodoo.spark.executor import session_of_this_process, spark_executor

    return spark_executor(session_of_this_process(), context.world, properties, tasks_max=tasks_max)
