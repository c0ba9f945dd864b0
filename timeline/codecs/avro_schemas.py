"""
The Avro schemas of Hudi's instant files, derived from their value classes (format 3).

Java resolves records into generated classes by name. So record names, field names and their order
are Hudi's, and the value classes of ``timeline.model`` declare their fields in that order. Schemas
are equal in files of table versions 8 and 9. Strings are plain: Java's `avro.java.string` property
is optional (tested, format 3).

A field without a default is required. A field with a default may be null in the file, and null is
its default there, unless its annotation says otherwise (``timeline.model.plans``).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from timeline.model import plans
from timeline.model.commit_metadata import CommitMetadata
from timeline.model.plans import AvroForm

Schema = dict[str, Any]

NAMESPACE: Final = "org.apache.hudi.avro.model"

VALUE_CLASSES: Final[dict[str, type[Any]]] = {}
"""The value class of each record, by the record's name."""

ATTRIBUTES: Final[dict[str, dict[str, str]]] = {}
"""The attributes of each value class by field name, by the record's name."""

_SCALARS: Final = {str: "string", int: "long", float: "double", bool: "boolean"}
# Fields of 32 bits.
_INTS: Final = frozenset({"total_files_deleted", "log_version", "num_output_file_groups"})
# The glossary's words, where Hudi's field name would mislead.
_RENAMED: Final = {
    (plans.ActionInstant, "requested_time"): "timestamp",
    (plans.InstantInfo, "requested_time"): "commitTime",
    (plans.RollbackPlan, "rollback_requests"): "RollbackRequests",
}


# The schema's default for `version`, whatever this engine writes.
_VERSION_DEFAULTS: Final = {plans.RestorePlan: 2}


def _schema_of(value_class: type[Any], defined: set[str] | None = None) -> Schema:
    """Return the schema of a value class; only name the records in ``defined``."""
    defined = set() if defined is None else defined
    name = _record_name(value_class)
    defined.add(name)
    VALUE_CLASSES[name], ATTRIBUTES[name] = value_class, {}
    hints = get_type_hints(value_class, include_extras=True)
    fields = []
    for one in dataclasses.fields(value_class):
        field_name = _RENAMED.get((value_class, one.name)) or _camel(one.name)
        ATTRIBUTES[name][field_name] = one.name
        if one.name == "version":
            fields.append(_version(_VERSION_DEFAULTS.get(value_class, 1)))
        else:
            fields.append({"name": field_name, **_type_of(hints[one.name], one, defined)})
    return {"type": "record", "name": name, "namespace": NAMESPACE, "fields": fields}


def _record_name(value_class: type[Any]) -> str:
    return "Hoodie" + value_class.__name__.removeprefix("Plan")


def _camel(attribute: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), attribute)


def _version(default: int = 1) -> Schema:
    return {"name": "version", "type": ["int", "null"], "default": default}


def _type_of(hint: Any, declared: dataclasses.Field[Any], defined: set[str]) -> Schema:
    """Return the type and the default of a field."""
    form = AvroForm.NULLABLE
    if get_origin(hint) is Annotated:
        hint, form = get_args(hint)
    elif declared.default is declared.default_factory is dataclasses.MISSING:
        form = AvroForm.REQUIRED
    kind: Any = "int" if declared.name in _INTS else _kind(hint, defined)
    default: Any = declared.default
    if isinstance(default, tuple):
        default = list(default)
    forms: dict[AvroForm, Schema] = {
        AvroForm.NULLABLE: {"type": ["null", kind], "default": None},
        AvroForm.NULLABLE_WITHOUT_DEFAULT: {"type": ["null", kind]},
        AvroForm.REQUIRED: {"type": kind},
        AvroForm.FILLED: {"type": kind, "default": default},
        AvroForm.FILLED_OR_NULL: {"type": [kind, "null"], "default": default},
    }
    return forms[form]


def _kind(hint: Any, defined: set[str]) -> Any:
    """Return the type of a value; of an optional one, that of its content."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple:
        item = _kind(inner[0], defined)
        is_optional = get_origin(inner[0]) is UnionType
        return {"type": "array", "items": ["null", item] if is_optional else item}
    if origin is Mapping:
        return {"type": "map", "values": _kind(inner[1], defined)}
    if origin is UnionType:
        return _kind(inner[0], defined)
    if hint in _SCALARS:
        return _SCALARS[hint]
    name = _record_name(hint)
    return name if name in defined else _schema_of(hint, defined)


_ANY_COMMIT: Final = _schema_of(CommitMetadata)
_ANY_COMMIT["fields"].insert(3, _version())  # no value has it: Hudi writes null

COMMIT_METADATA: Final[Schema] = {**_ANY_COMMIT, "fields": _ANY_COMMIT["fields"][:-1]}
REPLACE_COMMIT_METADATA: Final[Schema] = {**_ANY_COMMIT, "name": "HoodieReplaceCommitMetadata"}
VALUE_CLASSES[REPLACE_COMMIT_METADATA["name"]] = CommitMetadata
ATTRIBUTES[REPLACE_COMMIT_METADATA["name"]] = ATTRIBUTES[COMMIT_METADATA["name"]]
CLEANER_PLAN: Final = _schema_of(plans.CleanerPlan)
CLEAN_METADATA: Final = _schema_of(plans.CleanMetadata)
ROLLBACK_PLAN: Final = _schema_of(plans.RollbackPlan)
ROLLBACK_METADATA: Final = _schema_of(plans.RollbackMetadata)
RESTORE_PLAN: Final = _schema_of(plans.RestorePlan)
RESTORE_METADATA: Final = _schema_of(plans.RestoreMetadata)
REQUESTED_REPLACE_METADATA: Final = _schema_of(plans.RequestedReplaceMetadata)
COMPACTION_PLAN: Final = _schema_of(plans.CompactionPlan)
SAVEPOINT_METADATA: Final = _schema_of(plans.SavepointMetadata)
