"""
Choose the executor of table services: this machine, or a cluster.

``hoodoo.services.executor`` chooses it when a service runs, not when a table opens: a reader starts
no cluster.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import replace
from pkgutil import resolve_name

from tableservices.worker import ServiceExecutor, WorkerSettings
from timeline.context import TableContext
from timeline.errors import MissingExtraError
from timeline.ports.ports import ClusterExecutor, Executor, Ports
from timeline.properties.options import (
    TABLE_LAYER,
    as_property_set,
)
from timeline.system import ThreadExecutor

#: Value of ``hoodoo.services.executor`` -> the function that makes the executor, its extra and
#: its library. The function is imported when a service first needs it.
_CLUSTER_EXECUTORS = {
    ServiceExecutor.SPARK: ("hoodoo.spark.session:executor_of_this_process", "spark", "pyspark")
}


def service_context(context: TableContext, properties: Mapping[str, str]) -> TableContext:
    """
    Return the table's context with the executor that the properties choose for services.

    A context with a cluster executor is returned unchanged.

    Raises:
        MissingExtraError: The cluster's library is not installed.
        StorageCapabilityError: The session uses Spark Connect.
        SettingError: A property is wrong.
    """
    ports = context.ports
    # Only the caller chooses what a process starts, not the table (SEC4).
    property_set = as_property_set(properties).without_layer(TABLE_LAYER)
    settings = WorkerSettings.from_properties(property_set)
    if isinstance(ports.executor, ClusterExecutor):
        return context
    executor: Executor
    if settings.executor in _CLUSTER_EXECUTORS:
        make_executor = _load_cluster_executor(settings.executor)
        executor = make_executor(ports, properties, settings.file_groups_max)
    elif settings.file_groups_max is not None:
        executor = ThreadExecutor(settings.file_groups_max, events=ports.events)
    else:
        return context
    return TableContext.of(replace(ports, executor=executor), context.config, context.limits)


def _load_cluster_executor(
    chosen: ServiceExecutor,
) -> Callable[[Ports, Mapping[str, str], int | None], Executor]:
    function, extra, library = _CLUSTER_EXECUTORS[chosen]
    if importlib.util.find_spec(library) is None:
        raise MissingExtraError(
            "services over Spark need PySpark and a Java 17: pip install 'hoodoo[spark]', or set "
            "hoodoo.services.executor=local",
            extra=extra,
        )
    found: Callable[[Ports, Mapping[str, str], int | None], Executor] = resolve_name(function)
    return found
