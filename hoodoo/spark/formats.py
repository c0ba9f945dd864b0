"""The formats that hoodoo serves in a session, and the result of the session's newest write."""

from __future__ import annotations

from typing import Any

from filegroups.settings.read_settings import ReadSettings
from filegroups.writing.write_request import CommitResult
from hoodoo.spark.java import java_class
from timeline.errors import SettingError
from timeline.system import LoggingEvents

FORMAT = "hoodoo"
_HUDI_FORMATS = frozenset({"hudi", "org.apache.hudi"})
_HUDI_CLASS = "org/apache/hudi/DefaultSource.class"
_LAST_RESULT = "_hoodoo_last_result"
_BUNDLE = "_hoodoo_hudi_bundle"
_CATALOG = "spark.sql.catalog.spark_catalog"
_REGISTRATOR = "spark.kryo.registrator"


def serves(spark: Any, name: str | None) -> bool:
    """
    Return whether hoodoo serves a format; None is the session's default format.

    A Hudi bundle keeps its names, unless ``hoodoo.spark.serves.hudi`` gives them to hoodoo.
    """
    if name is None:
        name = spark.conf.get("spark.sql.sources.default", "parquet")
    folded = str(name).lower()
    if folded not in _HUDI_FORMATS:
        return folded == FORMAT
    return not has_hudi_bundle(spark) or _is_given_hudi(spark)


def _is_given_hudi(spark: Any) -> bool:
    key = ReadSettings.options["spark_serves_hudi"].key
    given = (str(spark.conf.get(one, "false")).lower() for one in (key, f"spark.{key}"))
    return "true" in given


def has_hudi_bundle(spark: Any) -> bool:
    """Return whether a Hudi bundle is on Spark's class path; the first call emits an event."""
    found: bool | None = getattr(spark, _BUNDLE, None)
    if found is None:
        loader = java_class(spark, "org.apache.spark.util.Utils").getContextOrSparkClassLoader()
        found = loader.getResource(_HUDI_CLASS) is not None
        setattr(spark, _BUNDLE, found)
        if found:
            LoggingEvents().emit(
                "spark.hudi_left_to_bundle", formats=", ".join(sorted(_HUDI_FORMATS))
            )
    return found


def leave_out_bundle(spark: Any) -> None:
    """
    Give a session Spark's own catalog if it names that of a Hudi bundle that is not there.

    Hudi's pages set this catalog for each session, and without its class Spark ends every query.

    Raises:
        SettingError: Kryo shall register the bundle's classes, which Spark's processes decided when
            they began (``bundle_setting``).
    """
    if has_hudi_bundle(spark):
        return
    registrator = spark.sparkContext.getConf().get(_REGISTRATOR, "")
    if "org.apache.spark.Hoodie" in registrator:
        raise SettingError(
            "a setting of the session needs a Hudi bundle, which is not on the class path: remove "
            "it where the session is built, or from --conf or spark-defaults.conf, and begin again: "
            f"{_REGISTRATOR}={registrator}",
            kind="bundle_setting",
            key=_REGISTRATOR,
            value=registrator,
        )
    if str(spark.conf.get(_CATALOG, "")).startswith("org.apache.spark.sql.hudi."):
        spark.conf.unset(_CATALOG)
        spark.sparkContext._jsc.sc().conf().remove(_CATALOG)  # noqa: SLF001 - of later sessions
        LoggingEvents().emit("spark.hudi_catalog_left_out", setting=_CATALOG)


def last_result(spark: Any) -> CommitResult | None:
    """Return the result of the session's newest write; None before any, and after an ignored one."""
    found: CommitResult | None = getattr(spark, _LAST_RESULT, None)
    return found


def remember_result(spark: Any, result: CommitResult | None) -> None:
    """Keep the result of a write for ``last_result``."""
    setattr(spark, _LAST_RESULT, result)
