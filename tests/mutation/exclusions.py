"""
Code that is not changed, by named rules: a change there has no effect, or only on prose.

Single places that a rule cannot know are in ``equivalent.txt`` with their reasons.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

KEPT = Path(__file__).with_name("equivalent.txt")


@dataclass(frozen=True)
class Step:
    """One step down the tree: a node, and the field of it that was entered."""

    node: ast.AST
    field: str


Steps = tuple[Step, ...]


@dataclass(frozen=True)
class Rule:
    """Why a kind of place is left alone, and how it is recognised."""

    reason: str
    holds: Callable[[Steps, ast.AST, str], bool]


def _docstring(steps: Steps, node: ast.AST, operator: str) -> bool:
    return operator == "text" and isinstance(steps[-1].node, ast.Expr)


def _annotation(steps: Steps, node: ast.AST, operator: str) -> bool:
    return any(step.field in {"annotation", "returns"} for step in steps)


def _decorator(steps: Steps, node: ast.AST, operator: str) -> bool:
    return any(step.field == "decorator_list" for step in steps)


def _assertion(steps: Steps, node: ast.AST, operator: str) -> bool:
    return isinstance(node, ast.Assert) or any(isinstance(s.node, ast.Assert) for s in steps)


def _exports(steps: Steps, node: ast.AST, operator: str) -> bool:
    return any(
        isinstance(step.node, ast.Assign) and ast.unparse(step.node.targets[0]) == "__all__"
        for step in steps
    )


def _error_text(steps: Steps, node: ast.AST, operator: str) -> bool:
    """Text of an error's first argument, and its values; ``kind`` and fields are changed."""
    inside = [place for place, step in enumerate(steps) if isinstance(step.node, ast.Raise)]
    if not inside:
        return False
    rest = steps[inside[-1] :]
    keyword = any(isinstance(step.node, ast.keyword) for step in rest)
    argument = any(step.field == "args" for step in rest)
    return argument and not keyword


def _prose(steps: Steps, node: ast.AST, operator: str) -> bool:
    """Three words or more, or a piece of a text that is put together from words."""
    if operator != "text" or not isinstance(node, ast.Constant):
        return False
    joined = [step.node for step in steps if isinstance(step.node, ast.JoinedStr)]
    if not joined:
        return isinstance(node.value, str) and len(node.value.split()) >= 3
    pieces = [p.value for p in joined[-1].values if isinstance(p, ast.Constant)]
    return len(" ".join(str(piece) for piece in pieces).split()) >= 3


def _advice(steps: Steps, node: ast.AST, operator: str) -> bool:
    text_arguments = {"advice", "why", "reason"}
    return operator == "text" and any(
        isinstance(step.node, ast.keyword) and step.node.arg in text_arguments for step in steps
    )


def _type_only(steps: Steps, node: ast.AST, operator: str) -> bool:
    """Aliases, type variables, casts, and imports that only a type checker follows."""
    for step in steps:
        inner = step.node
        if isinstance(inner, ast.If) and ast.unparse(inner.test) == "TYPE_CHECKING":
            return True
        if isinstance(inner, ast.Call) and ast.unparse(inner.func) in {
            "cast",
            "TypeVar",
            "NewType",
        }:
            return step.field == "args"
        if isinstance(inner, ast.Assign) and _is_alias(inner.value):
            return len(steps) > 1 and isinstance(steps[0].node, ast.Module) and len(steps) <= 4
    return False


def _is_alias(value: ast.expr) -> bool:
    """``A | B`` or ``tuple[A, B]`` of names that begin with a capital or are builtin types."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
        return _is_alias(value.left) and _is_alias(value.right)
    if isinstance(value, ast.Subscript):
        return _is_alias(value.value)
    if isinstance(value, ast.Constant):
        return value.value is None
    name = ast.unparse(value).split(".")[-1] if isinstance(value, ast.Name | ast.Attribute) else ""
    plain = name in {"str", "int", "bytes", "float", "bool", "tuple", "list", "dict", "frozenset"}
    return plain or (name[:1].isupper() and not name.isupper())


def _strictness(steps: Steps, node: ast.AST, operator: str) -> bool:
    return any(
        isinstance(step.node, ast.keyword) and step.node.arg in {"strict", "stacklevel"}
        for step in steps
    )


def _codec(steps: Steps, node: ast.AST, operator: str) -> bool:
    call, at = steps[-1].node, steps[-1].field
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in {"encode", "decode"}
        and at == "args"
        and call.args[0] is node
    )


def _empty(steps: Steps, node: ast.AST, operator: str) -> bool:
    if not isinstance(node, ast.Call) or operator != "opposite" or not node.args:
        return False
    return ast.unparse(node.func) in {"np.zeros", "np.ones"} and ast.unparse(node.args[0]) == "0"


RULES: dict[str, Rule] = {
    "docstring": Rule("explains, does nothing", _docstring),
    "annotation": Rule("never evaluated; mypy's matter", _annotation),
    "decorator": Rule(
        "slots, frozen, kw_only and cache sizes guard the programmer or spare time", _decorator
    ),
    "assertion": Rule("states a fact that always holds; nothing may depend on it", _assertion),
    "exports": Rule("__all__ is read by star imports, which we have not", _exports),
    "error text": Rule("prose for a reader; the class, kind and fields are changed", _error_text),
    "prose": Rule("a text of three words or more is for a reader", _prose),
    "advice": Rule("a reader's text, by the name of its argument", _advice),
    "type only": Rule("aliases, casts and type variables are mypy's matter", _type_only),
    "codec": Rule("a codec's name is read without its punctuation", _codec),
    "empty": Rule("an array without values has no fill value", _empty),
    "strictness": Rule("zip(strict=) asserts equal lengths", _strictness),
}


def excluded_by(steps: Steps, node: ast.AST, operator: str) -> str | None:
    """Name of the first rule that leaves a place alone, None when it is changed."""
    for name, rule in RULES.items():
        if rule.holds(steps, node, operator):
            return name
    return None


def kept_equivalents() -> dict[str, str]:
    """Key of a mutant that changes nothing anyone could see -> the reason."""
    found: dict[str, str] = {}
    reason = ""
    for line in KEPT.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            continue
        if line.startswith("    "):
            found[line.strip()] = reason
        elif line.strip():
            reason = line.strip()
    return found
