"""Read rows from an input file: Parquet, CSV, JSON, Avro or Arrow."""

from __future__ import annotations

import csv
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from filegroups.schema.avro_schema import avro_to_arrow
from filegroups.schema.evolution import is_list, is_variant
from filegroups.schema.schema import META_FIELDS
from hoodoo.inputs import cast_values, read_json, typed_column, typed_rows
from timeline.errors import HoodooError, InvalidInputError

# ---- Rows of a JSON file, in the form that ``hoodoo read`` prints
# Arrow reads a file with one object a line, as long as it loses nothing. Python reads the rest
# value by value: documents that are a list, maps, ``"NaN"``, whole numbers with a fraction. Both
# ways return the same rows.

_JSON_BLOCK_BYTES: Final = 16 << 20  # a row must fit into one
_BRACKETS_MAX: Final = 500
_NO_SPACE: Final = re.compile(r"[^ \t\r\n]")


def json_rows(text: pa.Buffer, schema: pa.Schema | None, name: str) -> pa.Table:
    """
    Return all rows of a JSON text.

    The result has no column, and no field of a struct, that no row names.

    Args:
        text: Objects, or one list of objects.
        schema: The table's own columns; None without a table.
        name: The file or topic, for messages.

    Raises:
        InvalidInputError: A value does not fit the table (``lossy_value``, ``schema_mismatch``),
            or the values of a new column have no type in common (``data``).
        ValueError: The file is not JSON of this form.
    """
    try:
        if _has_flat_lines(text):
            with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
                return _by_arrow(text, schema)
        return typed_rows(_objects(text)[0], schema, json=True)
    except InvalidInputError as error:
        raise _json_value_error(text, schema, error, name) from error


def _objects(content: pa.Buffer) -> tuple[Sequence[Mapping[str, Any]], Callable[[int], str]]:
    """
    Return the objects of a text, and the function that says where one of them is.

    The text is a sequence of objects, or one list of them.
    """
    text = content.to_pybytes().decode("utf-8-sig")
    decoder = json.JSONDecoder(parse_float=Decimal)
    found: list[Any] = []
    begins: list[int] = []
    at = 0
    while (begin := _NO_SPACE.search(text, at)) is not None:
        begins.append(begin.start())
        one, at = decoder.raw_decode(text, begin.start())
        found.append(one)
    is_list_of_rows = len(found) == 1 and isinstance(found[0], list)
    if is_list_of_rows:
        found = found[0]

    def place(number: int) -> str:
        if is_list_of_rows:
            return f"row {number + 1}"
        return f"line {text.count(chr(10), 0, begins[number]) + 1}"

    for number, one in enumerate(found):
        if not isinstance(one, Mapping):
            shown = str(one)[:80]
            raise ValueError(f"{place(number)}: a row is a JSON object, not {shown!r}")
    return found, place


# ---- by Arrow's reader


def _has_flat_lines(content: pa.Buffer) -> bool:
    """
    Return whether each line is empty or holds whole objects with few brackets.

    Arrow's reader does not limit the depth: deep nesting crashes the process.
    """
    if content.size == 0:
        return False
    text = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    if text[-1] != ord("\n"):
        ends = np.append(ends, len(text))
    begins = np.append(0, ends[:-1] + 1)
    last = ends - 1
    last = np.where(text[last] == ord("\r"), last - 1, last)
    whole = (text[begins] == ord("{")) & (text[last] == ord("}"))
    if not (whole | (begins == ends)).all():
        return False
    if (ends - begins).max() <= _BRACKETS_MAX:
        return True
    brackets = (text == ord("{")) | (text == ord("["))
    return bool(np.add.reduceat(brackets, begins, dtype=np.int64).max() <= _BRACKETS_MAX)


def _by_arrow(text: pa.Buffer, schema: pa.Schema | None) -> pa.Table:
    """
    Return all rows, read by Arrow.

    Raises:
        pa.ArrowInvalid, pa.ArrowNotImplementedError: Arrow cannot read the file without loss.
    """
    own = pa.schema([]) if schema is None else schema
    known = {each.name: each.type for each in (*META_FIELDS, *own)}
    asked = pa.schema([(each.name, _read_type(each.type)) for each in own])
    rows = read_json(text, asked, _JSON_BLOCK_BYTES)
    # Arrow returns each column of its schema, also one that no row names. Read without those.
    found = {name: rows.column(name) for name in known if name in rows.column_names}
    kinds = {name: _with_values(_read_type(known[name]), found[name]) for name in found}
    named = pa.schema([(name, kind) for name, kind in kinds.items() if kind is not None])
    if named != asked:
        rows = read_json(text, named, _JSON_BLOCK_BYTES)
    rows.validate(full=True)  # finds texts that are not UTF-8
    return pa.table(
        {
            name: pa.chunked_array(
                [_typed(chunk, known.get(name), name) for chunk in rows.column(name).chunks]
            )
            for name in _in_order(known, rows.column_names)
        }
    )


def _in_order(known: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [*(one for one in known if one in names), *(one for one in names if one not in known)]


def _read_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Arrow reads a column; types that JSON lacks are read as text."""
    types = pa.types
    if types.is_struct(kind) and not is_variant(kind):
        return pa.struct([(each.name, _read_type(each.type)) for each in kind])
    if is_list(kind):
        return pa.list_(_read_type(kind.value_type))
    own = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_map)
    return kind if any(one(kind) for one in own) else pa.string()  # Arrow reads no maps


def _with_values(kind: pa.DataType, values: pa.ChunkedArray) -> pa.DataType | None:
    """Return the part of a type that has values; None if all are null."""
    if values.null_count == len(values):
        return None if len(values) else kind
    if pa.types.is_struct(kind):
        fields = [
            (each.name, _with_values(each.type, pc.struct_field(values, [number])))
            for number, each in enumerate(kind)
        ]
        return pa.struct([one for one in fields if one[1] is not None])
    if pa.types.is_list(kind):
        return pa.list_(_with_values(kind.value_type, pc.list_flatten(values)) or pa.null())
    return kind


def _typed(values: pa.Array, kind: pa.DataType | None, name: str) -> pa.Array:
    """Return values that Arrow read in the table's type; ``kind`` is None for a new column."""
    read, types = values.type, pa.types
    if kind is None:
        if types.is_floating(read) and pc.any(pc.greater_equal(pc.abs(values), 2.0**63)).as_py():
            raise pa.ArrowInvalid("a float that may have been an integer above a long")
        return values
    if types.is_null(read):
        return values if types.is_nested(kind) else pa.nulls(len(values), kind)
    if types.is_struct(read):
        known = {each.name: each.type for each in kind}
        names = _in_order(known, [each.name for each in read])
        if not names:
            raise pa.ArrowInvalid("objects without fields")
        children = [_typed(values.field(one), known.get(one), f"{name}.{one}") for one in names]
        return pa.StructArray.from_arrays(children, names=names, mask=values.is_null())
    if types.is_list(read):
        inner = _typed(values.values, kind.value_type, name + ".element")
        return pa.ListArray.from_arrays(values.offsets, inner, mask=values.is_null())
    if types.is_temporal(kind):
        return cast_values(values, kind=kind, name=name)
    if read != kind:  # base64 and variants
        return typed_column(values.to_pylist(), kind, name, json=True)
    if types.is_floating(kind) and pc.any(pc.is_inf(values)).as_py():
        raise pa.ArrowInvalid("a number that may be above the greatest of the type")
    return values


# ---- Rows of a file of any format
# CSV and JSON have few types of their own, so their columns take the types of an existing table.
# In CSV an empty field without quotes is null, and an empty field in quotes is an empty text;
# nothing else means null. JSON has the form that ``hoodoo read`` prints.

FORMATS = (".parquet", ".csv", ".json", ".jsonl", ".ndjson", ".avro", ".arrow")
_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvForm:
    """
    The form of a CSV file.

    Args:
        separator: The character between fields.
        quote: The character around fields; empty for none.
        escape: The character before a quote inside a field; empty if the quote is doubled.
        null_text: The text of a null without quotes, besides an empty field.
        encoding: The encoding, by its name in Python.
        has_header: Whether the first line has the names of the columns.
        columns: The names without a header; empty for ``_c0``, ``_c1`` and so on, as in Spark.
    """

    separator: str = ","
    quote: str = '"'
    escape: str = ""
    null_text: str = ""
    encoding: str = "utf-8"
    has_header: bool = True
    columns: tuple[str, ...] = ()

    def names(self, path: Path) -> list[str]:
        """Return the names of a file's columns."""
        with self.cells(path) as lines:
            first: list[str] = next(filter(None, lines), [])
        if self.has_header:
            return first
        return list(self.columns) or [f"_c{number}" for number in range(len(first))]

    @contextmanager
    def cells(self, path: Path) -> Iterator[Any]:
        """Yield Python's reader of the file, which gives the cells of each row."""
        encoding = "utf-8-sig" if self.encoding.lower() in ("utf-8", "utf8") else self.encoding
        with path.open(encoding=encoding, errors="replace", newline="") as opened:
            yield csv.reader(
                opened,
                delimiter=self.separator,
                quotechar=self.quote or None,
                quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
                escapechar=self.escape or None,
                doublequote=not self.escape,
            )


_CSV: Final = CsvForm()


def read_files(paths: Sequence[Path], schema: pa.Schema | None = None) -> pa.Table:
    """
    Return the rows of all files, in their order.

    Args:
        paths: At least one file.
        schema: The table's columns; None without a table.

    Raises:
        InvalidInputError: As ``read_rows``, or the files differ in columns or types. A missing
            column would become null and overwrite values.
    """
    return join_rows([read_rows(path, schema) for path in paths], list(map(str, paths)))


def join_rows(tables: Sequence[pa.Table], names: Sequence[str]) -> pa.Table:
    """
    Return the rows of several files of one write.

    Args:
        tables: The rows of each file; at least one.
        names: The names of the files, for messages.

    Raises:
        InvalidInputError: The files differ in columns or types (``input_file``).
    """
    first, *more = tables
    for name, rows in zip(names[1:], more, strict=True):
        if set(rows.column_names) != set(first.column_names):
            raise InvalidInputError(
                "input files of one write must have the same columns; write them one by one: "
                f"{names[0]} has {first.column_names}, {name} has {rows.column_names}",
                kind="input_file",
                path=name,
            )
    try:
        return pa.concat_tables(tables, promote_options="default")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        why = str(error).partition("\n")[0][:300]
        raise InvalidInputError(
            "input files of one write must have the same column types; write them one by one: "
            f"{', '.join(names)}: {why}",
            kind="input_file",
        ) from error


def read_rows(
    path: Path,
    schema: pa.Schema | None = None,
    *,
    ending: str | None = None,
    csv_form: CsvForm = _CSV,
) -> pa.Table:
    """
    Return all rows of a file.

    Args:
        path: The file.
        schema: The table's columns; None without a table.
        ending: The ending that gives the format; None for that of the file.
        csv_form: The form of a CSV file.

    Raises:
        InvalidInputError: The file is missing, has another ending or is not readable, or a value
            does not fit the table (``lossy_value``, ``schema_mismatch``).
    """
    ending = ending or path.suffix.lower()
    if ending not in FORMATS:
        raise InvalidInputError(
            f"an input file must end in one of {', '.join(FORMATS)}; rename or convert it: {path}",
            kind="input_file",
        )
    with _named(str(path)):
        if ending == ".parquet":
            return pq.ParquetFile(path).read()
        if ending == ".csv":
            return _csv(path, schema, csv_form)
        if ending == ".arrow":
            return _arrow(path)
        if ending == ".avro":
            with path.open("rb") as opened:
                return _avro(opened)
        with path.open("rb") as opened:
            # No file of zero bytes can be mapped.
            text = pa.memory_map(str(path)).read_buffer() if opened.read(1) else pa.py_buffer(b"")
        return json_rows(text, schema, str(path))


def read_stored_rows(opened: IO[bytes], name: str, *, ending: str) -> pa.Table:
    """
    Return all rows of an open file of an object store, and close it.

    Args:
        opened: The file.
        name: Its address, for messages.
        ending: As of ``read_rows``.

    Raises:
        InvalidInputError: It is not readable (``input_file``), or its format is read from a local
            disk only (``input_format``).
    """
    with opened, _named(name):
        if ending == ".parquet":
            return pq.ParquetFile(opened).read()
        if ending == ".avro":
            return _avro(opened)
        raise InvalidInputError(
            "an object store gives Parquet and Avro files; copy the file to a local disk, or "
            f"convert it: {name}",
            kind="input_format",
            path=name,
        )


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Name the file in the error of its reader."""
    try:
        yield
    except FileNotFoundError:
        raise InvalidInputError(
            f"the input file does not exist; correct the path: {name}", kind="input_file"
        ) from None
    except HoodooError:
        raise
    except (pa.ArrowException, OSError, ValueError, RecursionError, EOFError) as error:
        why = str(error).partition("\n")[0][:300]
        raise InvalidInputError(
            f"the input file cannot be read; correct it: {name}: {why}",
            kind="input_file",
            path=name,
        ) from error


def _avro(opened: IO[bytes]) -> pa.Table:
    """Return the rows of an Avro object container file."""
    blocks = fastavro.block_reader(opened)
    if blocks.writer_schema is None:
        raise ValueError("it has no schema")
    schema = avro_to_arrow(json.dumps(blocks.writer_schema, default=str))
    kind = pa.struct(list(schema))
    parts = [pa.array(list(block), kind) for block in blocks]
    tables = [pa.Table.from_struct_array(one) for one in parts]
    return pa.concat_tables([schema.empty_table(), *tables])


def _csv(path: Path, schema: pa.Schema | None, form: CsvForm) -> pa.Table:
    if path.stat().st_size == 0:
        return pa.table({})
    types = {field.name: field.type for field in (*META_FIELDS, *(schema or ()))}
    nested = {name: kind for name, kind in types.items() if pa.types.is_nested(kind)}
    columns = types | dict.fromkeys(nested, pa.string())
    try:
        rows = _read_csv(path, columns, form)
    except pa.ArrowInvalid as error:
        raise _csv_error(path, columns, form, error) from error
    for name in nested.keys() & set(rows.column_names):  # JSON, because CSV has no nested form
        values, kind = rows.column(name).to_pylist(), nested[name]
        try:
            made = _of_json(values, kind, name)
        except ValueError as error:
            kept = error if isinstance(error, InvalidInputError) else None
            number = _first_bad(partial(_of_json, kind=kind, name=name), values)
            where = None if number is None else _csv_place(path, number + 1 + form.has_header, form)
            shown = None if number is None else values[number]
            raise _value_error(path, where, name, shown, kind, error=kept) from error
        rows = rows.set_column(rows.schema.get_field_index(name), name, made)
    return rows


def _read_csv(
    path: Path, types: Mapping[str, pa.DataType], form: CsvForm, *, threads: bool = True
) -> pa.Table:
    return pacsv.read_csv(
        path,
        read_options=pacsv.ReadOptions(
            block_size=_BLOCK_BYTES,
            use_threads=threads,
            encoding=form.encoding,
            column_names=None if form.has_header else form.names(path),
        ),
        parse_options=pacsv.ParseOptions(
            newlines_in_values=True,
            delimiter=form.separator,
            quote_char=form.quote or False,
            double_quote=not form.escape,
            escape_char=form.escape or False,
        ),
        convert_options=pacsv.ConvertOptions(
            column_types=types,
            null_values=["", form.null_text],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _of_json(values: list[Any], kind: pa.DataType, name: str) -> pa.Array:
    """Return a nested column from its JSON texts; the text of a variant is its value."""
    if not is_variant(kind):
        values = [one and json.loads(one, parse_float=Decimal) for one in values]
    return typed_column(values, kind, name, json=True)


def _arrow(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source:
        try:
            return pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_stream(source).read_all()


# ---- Errors of one value: the file, its line and its column
# The readers convert whole columns, so their errors name no row. A second read, of the failing
# column only, finds the first bad one.

_CSV_VALUE: Final = re.compile(
    r"In CSV column #(\d+): Row #(\d+): CSV conversion error to (.*?): invalid value '(.*)'",
    re.DOTALL,
)
_CSV_ROW: Final = re.compile(r"CSV parse error: Row #(\d+): (.*)", re.DOTALL)


def _first_bad(convert: Callable[[list[Any]], object], values: list[Any]) -> int | None:
    """Return the number of the first value that makes a conversion fail; None if none does."""

    def fails(some: list[Any]) -> bool:
        try:
            convert(some)
        except (ValueError, pa.ArrowException):
            return True
        return False

    begin, end = 0, len(values)
    if not fails(values):
        return None
    while end - begin > 1:  # each half once, so about two conversions of the column in all
        middle = (begin + end) // 2
        if fails(values[begin:middle]):
            end = middle
        elif fails(values[middle:end]):
            begin = middle
        else:
            return None  # the values only disagree with each other
    return begin


def _json_value_error(
    text: pa.Buffer, schema: pa.Schema | None, error: InvalidInputError, path: str
) -> InvalidInputError:
    """Return an error of a column with the file and the place of the first value that it is for."""
    name = str(error.fields.get("column", "")).partition(".")[0]
    kind = next((each.type for each in (*META_FIELDS, *(schema or ())) if each.name == name), None)
    rows, place = _objects(text)
    values = [row.get(name) for row in rows]
    if kind is None:
        return _new_column_error(path, name, values, place, error)
    number = _first_bad(partial(typed_column, kind=kind, name=name, json=True), values)
    where = None if number is None else place(number)
    shown = None if number is None else values[number]
    return _value_error(path, where, name, shown, kind, error=error)


def _new_column_error(
    path: str,
    name: str,
    values: list[Any],
    place: Callable[[int], str],
    error: InvalidInputError,
) -> InvalidInputError:
    """Return the error of a new column with the first value that fits none of those before it."""

    def kind_of(begin: int, end: int) -> pa.DataType | None:
        try:
            return typed_column(values[begin:end], None, name, json=True).type
        except (ValueError, pa.ArrowException):
            return None

    number = bisect_left(range(len(values)), True, key=lambda last: kind_of(0, last + 1) is None)
    before = kind_of(0, number)
    if number == len(values) or before is None:
        return type(error)(f"{path}: {error.message}", kind=error.kind, **error.fields)
    types = {"type_before": str(before), "type": str(kind_of(number, number + 1))}
    return InvalidInputError(
        f"{path} {place(number)}, column {name!r}: {_plain(values[number])!r:.80} has the type "
        f"{types['type']}, and the values before it have {types['type_before']}; a new column has "
        "one type: correct the value, or remove the row",
        kind=error.kind,
        **{**error.fields, **types, "path": str(path), "place": place(number)},
    )


def _csv_error(
    path: Path, types: Mapping[str, pa.DataType], form: CsvForm, error: pa.ArrowInvalid
) -> Exception:
    """Return the error of a CSV file with its line; Arrow counts rows only without threads."""
    text = str(error)
    try:
        _read_csv(path, types, form, threads=False)
    except pa.ArrowInvalid as second:
        text = str(second)
    if (found := _CSV_VALUE.fullmatch(text)) is not None:
        column, row, kind, value = found.groups()
        names = form.names(path)
        name = names[int(column)] if int(column) < len(names) else f"number {int(column) + 1}"
        return _value_error(path, _csv_place(path, int(row), form), name, value, kind, error=None)
    if (found := _CSV_ROW.match(text)) is not None:
        return InvalidInputError(
            f"{path} {_csv_place(path, int(found[1]), form)}: {found[2][:300]}; correct the line",
            kind="input_file",
            path=str(path),
        )
    return ValueError(text)


def _csv_place(path: Path, row: int, form: CsvForm) -> str:
    """Return the line on which a row begins; a header is row 1, and empty lines are no rows."""
    with form.cells(path) as lines:
        try:
            cells: list[str] = next(islice(filter(None, lines), row - 1, None), [])
        except csv.Error:  # a field is too long for Python's reader
            return f"row {row}"
        return f"line {lines.line_num - sum(cell.count(chr(10)) for cell in cells)}"


def _value_error(
    path: Path | str,
    where: str | None,
    column: str,
    value: object,
    kind: object,
    *,
    error: InvalidInputError | None,
) -> InvalidInputError:
    """Return the error for a value of a file; ``error`` is the one of its whole column, if any."""
    article = "an" if str(kind)[:1] in "aeiou" else "a"
    shown = "a value" if where is None else repr(_plain(value))[:80]
    next_step = "correct the value, or remove the row"
    if error is not None and error.kind == "lossy_value":
        next_step += ", or write an Arrow table of a wider type to widen the column"
    fields = error.fields if error is not None else {"column": column}
    return InvalidInputError(
        f"{path}{' ' + where if where else ''}, column {column!r}: {shown} is not {article} "
        f"{kind}; {next_step}",
        kind="input_file" if error is None else error.kind,
        **{**fields, "path": str(path), "place": where},
    )


def _plain(value: object) -> object:
    """Return a value of a JSON document without the class of its exact numbers, for a message."""
    return json.loads(json.dumps(value, default=float))
