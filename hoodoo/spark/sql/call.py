"""CALL: run one of Hudi's procedures with the arguments of the statement."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any, Final

from pyspark.errors import AnalysisException, ParseException

from hoodoo.spark.formats import has_hudi_bundle
from hoodoo.spark.spark_table import SparkTable
from hoodoo.spark.sql.catalyst import (
    constants,
    first_line,
    kind_of,
    listed_seq,
    parse_expression,
)
from hoodoo.spark.sql.names import find_table, forget_rows, required_table
from hoodoo.spark.sql.procedures import (
    OPTIONS_OF,
    PROCEDURES,
    REFUSED_PROCEDURES,
    REQUIRED,
    UNSUPPORTED,
    Procedure,
    wrong_argument,
)
from hoodoo.spark.sql.shown_rows import Rows
from hoodoo.spark.sql.statements import name_parts
from timeline.errors import InvalidInputError

CALL = re.compile(
    r"\s*call\s+(?P<around>(?:\w+\s*\.\s*){0,2})(?P<name>\w+)\s*\((?P<args>.*)\)\s*;?\s*",
    re.IGNORECASE | re.DOTALL,
)


def call(spark: Any, match: re.Match[str]) -> Any:
    """
    Run ``CALL [catalog.][system.]procedure(arguments)``; as in Java Hudi, any catalog is named.

    Returns:
        The rows; None if the table belongs to Hudi's bundle, or the procedure to another catalog.

    Raises:
        InvalidInputError: The procedure is unknown (``sql_procedure``), or an argument is wrong
            (``sql_argument``).
        TableNotFoundError: The table is unknown.
    """
    name = match["name"].lower()
    procedure = _HELP if name == "help" else PROCEDURES.get(name)
    if _is_of_others(spark, match["around"].lower(), known=procedure is not None):
        return None
    in_bundle = has_hudi_bundle(spark)
    if procedure is None or (procedure is _HELP and in_bundle):
        if in_bundle:
            return None
        raise _unknown(name)
    pairs = _pairs(spark, name, match["args"])
    if procedure is _HELP:
        return spark.createDataFrame([*_help(_bound(name, _HELP, pairs)["cmd"])], _HELP.columns)
    if in_bundle and find_table(spark, _table_parts(spark, name, procedure, pairs)) is None:
        return None
    given = _bound(name, procedure, pairs)
    named = required_table(spark, _table_parts(spark, name, procedure, pairs))
    options = _options(name, given)
    with SparkTable(spark, named.path, {**named.options, **options}) as opened:
        rows = procedure.run(opened, given)
        limit = given.get("limit")
        if limit is not None and not (given.get("starttime") and given.get("endtime")):
            rows = islice(rows, _whole(name, "limit", limit))
        found = [tuple(row) for row in rows]
    forget_rows(spark, named)
    result = spark.createDataFrame(found, procedure.columns)
    if not given.get("filter"):
        return result
    try:
        return result.where(str(given["filter"]))
    except (AnalysisException, ParseException) as error:
        raise wrong_argument(
            name, f"filter is no condition on its columns: {first_line(error)}"
        ) from error


def _is_of_others(spark: Any, around: str, *, known: bool) -> bool:
    """Return whether the names before a procedure are those of another catalog."""
    names = [one.strip() for one in around.split(".")[:-1]]
    if names in ([], ["system"], ["spark_catalog", "system"]):
        return False
    return not known or spark.conf.get(f"spark.sql.catalog.{names[0]}", None) is not None


Pairs = Sequence[tuple[str | None, Any]]


def _pairs(spark: Any, name: str, text: str) -> Pairs:
    """Return the arguments of a call in their order, with their names if it has them."""
    try:
        parsed = parse_expression(spark, f"{name}({text})")
        given = [
            (str(one.key()).lower(), one.value())
            if kind_of(one) == "NamedArgumentExpression"
            else (None, one)
            for one in listed_seq(parsed.arguments())
        ]
        values = constants(spark, [value for _, value in given])
    except (AnalysisException, ParseException) as error:
        raise wrong_argument(
            name, f"arguments are literals, such as table => 'orders': {text}"
        ) from error
    return [
        ("path" if key == "table_path" else key, value)  # Hudi's pages have both names
        for (key, _), value in zip(given, values, strict=True)
    ]


def _table_parts(spark: Any, name: str, procedure: Procedure, pairs: Pairs) -> tuple[str, ...]:
    """Return the name of the table of a call."""
    order = procedure.order
    named = {
        order[place] if key is None and place < len(order) else key: value
        for place, (key, value) in enumerate(pairs)
    }
    path, table = named.get("path"), named.get("table")
    if path is not None:
        return ("hudi", str(path))
    if table is None:
        raise wrong_argument(name, "name the table: table => 'db.name', or path => '/tables/name'")
    return name_parts(spark, str(table))


def _bound(name: str, procedure: Procedure, pairs: Pairs) -> dict[str, Any]:
    """Return the arguments of a call by their names, with defaults."""
    order, found = procedure.order, {"table": None, "path": None, **procedure.arguments}
    for position, (key, value) in enumerate(pairs):
        if key is None and position >= len(order):
            raise wrong_argument(name, f"it takes {order}")
        chosen = order[position] if key is None else key
        if chosen not in found:
            raise wrong_argument(name, f"it has no argument {chosen!r}, but {order}")
        found[chosen] = value
    if found["path"] is not None and found["table"] is REQUIRED:  # the path names the table
        found["table"] = None
    missing = [key for key, value in found.items() if value is REQUIRED]
    if missing:
        raise wrong_argument(name, f"an argument is missing: {missing}")
    for key, why in UNSUPPORTED.items():
        if key in found and found[key] != procedure.arguments[key]:
            raise wrong_argument(name, f"hoodoo does not support the argument {key}: {why}")
    return found


def _whole(name: str, argument: str, value: object) -> int:
    try:
        found = int(str(value))
    except ValueError:
        found = -1
    if found < 0:
        raise wrong_argument(name, f"{argument} is a whole number from 0, not {value!r}")
    return found


def _options(name: str, given: dict[str, Any]) -> dict[str, str]:
    """Return the options of a call: its argument ``options``, a text of ``key=value,key=value``."""
    text = given.pop("options", None)
    found: dict[str, str] = {}
    for part in filter(None, (one.strip() for one in str(text or "").split(","))):
        key, sign, value = part.partition("=")
        if not sign:
            raise wrong_argument(name, f"options have the form 'key=value,key=value': {part!r}")
        found[key.strip()] = value.strip()
    for argument, key in OPTIONS_OF.get(name, {}).items():
        if given.get(argument) is not None:
            found[key] = str(given[argument])
    return found


def _help(name: object) -> Rows:
    """Yield one line about each procedure, or about one."""
    chosen = PROCEDURES
    if name is not None:
        key = str(name).lower()
        if key not in PROCEDURES:
            raise _unknown(key)
        chosen = {key: PROCEDURES[key]}
    for key, one in sorted(chosen.items()):
        given = (
            argument if default in (None, "", REQUIRED) else f"{argument} = {default}"
            for argument, default in ((each, one.arguments.get(each)) for each in one.order)
        )
        yield (f"{key}({', '.join(given)}): {one.columns}",)


#: Procedures of other table formats, and those that do their work.
_OTHER_FORMATS: Final = {
    "ancestors_of": "show_commits",
    "expire_snapshots": "run_clean",
    "rewrite_data_files": "run_clustering",
    "rewrite_position_delete_files": "run_compaction",
    "rollback_to_snapshot": "rollback_to_savepoint",
    "rollback_to_timestamp": "rollback_to_savepoint",
}


def _unknown(name: str) -> InvalidInputError:
    instead = REFUSED_PROCEDURES.get(name)
    near = get_close_matches(name, PROCEDURES, n=1, cutoff=0.8)
    if name in _OTHER_FORMATS:
        instead = f"CALL {_OTHER_FORMATS[name]} does its work"
    elif instead is None and near:
        instead = f"did you mean {near[0]}"
    elif instead is None:
        instead = f"there is no such procedure; these work: {', '.join(sorted(PROCEDURES))}"
    return InvalidInputError(
        f"hoodoo does not have the procedure {name}: {instead}",
        kind="sql_procedure",
        procedure=name,
    )


_HELP: Final = Procedure(
    arguments={"cmd": None}, columns="result string", run=lambda _, given: _help(given["cmd"])
)
