"""
Classes of Spark's JVM.

``spark._jvm.org.apache.x.Y`` asks the JVM for each part of the name, and each question searches all
jars of Spark: a fifth of the driver's time in a small write. Here a class costs one question.
"""

from __future__ import annotations

from typing import Any

_CLASSES = "_hoodoo_classes"


def java_class(spark: Any, name: str) -> Any:
    """
    Return a class of the session's JVM, which keeps the answer.

    Args:
        spark: A classic session.
        name: The whole name of the class, with its package.
    """
    jvm = spark._jvm  # noqa: SLF001
    found: dict[str, Any] = vars(jvm).setdefault(_CLASSES, {})
    if name not in found:
        found[name] = getattr(jvm, name)
    return found[name]


def java_type(spark: Any, kind: Any) -> Any:
    """Return a type of PySpark, for example a schema, as that of the JVM."""
    return java_class(spark, "org.apache.spark.sql.types.DataType").fromJson(kind.json())
