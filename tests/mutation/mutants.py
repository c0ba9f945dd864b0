"""
The possible changes of a module: one small mistake at a time, on its syntax tree.

The operators are the field's usual ones, and three of ours: a cell of a literal table gets the
value of its neighbour, an entry of a literal set is left out, and a vectorised function becomes its
opposite. A tree is changed, not a text, so a table outside of functions is changed as well.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

from tests.mutation.exclusions import Step, excluded_by

COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_OPPOSITES = (
    *(("min", "max"), ("any", "all"), ("and_", "or_"), ("and_kleene", "or_kleene")),
    *(("equal", "not_equal"), ("less", "less_equal"), ("greater", "greater_equal")),
    *(("is_null", "is_valid"), ("min_element_wise", "max_element_wise"), ("add", "subtract")),
    *(("startswith", "endswith"), ("logical_and", "logical_or"), ("removeprefix", "removesuffix")),
    *(("isdisjoint", "issubset"), ("union", "intersection"), ("first", "last"), ("zeros", "ones")),
)
OPPOSITE = {a: b for pair in _OPPOSITES for a, b in (pair, pair[::-1])}


@dataclass(frozen=True, kw_only=True)
class Site:
    """One place of a tree and its possible replacements."""

    holder: ast.AST
    field: str
    index: int | None
    new: ast.AST
    operator: str
    steps: tuple[Step, ...]

    def set(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.holder, self.field, node)
        else:
            getattr(self.holder, self.field)[self.index] = node

    @property
    def old(self) -> ast.AST:
        value = getattr(self.holder, self.field)
        return value if self.index is None else value[self.index]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One wrong thing; ``key`` stays the same while lines move."""

    number: int  # of the module's sites, excluded ones included
    line: int
    lines: range  # of the statement, as far as the place reaches
    in_function: bool  # else it is run when the module is imported
    within: str
    operator: str
    before: str
    after: str
    key: str
    excluded: str | None


def sites(tree: ast.Module) -> list[Site]:
    """All places, in the order of the source."""
    return list(_visit(tree, ()))


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Every mutant of a module, excluded ones with the name of the rule that excludes them."""
    tree = ast.parse(source)
    found: list[Mutant] = []
    seen: dict[str, int] = {}
    for number, site in enumerate(sites(tree)):
        statement = _statement(site)
        within = ".".join(
            step.node.name
            for step in site.steps
            if isinstance(step.node, ast.FunctionDef | ast.ClassDef)
        )
        before, after = _shown(site, statement)
        key = f"{path} {within or '-'} | {before} => {after}"
        seen[key] = seen.get(key, 0) + 1
        where = site.old if hasattr(site.old, "lineno") else site.holder
        found.append(
            Mutant(
                number=number,
                line=where.lineno,
                lines=range(statement.lineno, where.end_lineno + 1),
                in_function=any(
                    step.field == "body" and isinstance(step.node, ast.FunctionDef | ast.Lambda)
                    for step in site.steps
                ),
                within=within,
                operator=site.operator,
                before=before,
                after=after,
                key=key if seen[key] == 1 else f"{key} #{seen[key]}",
                excluded=excluded_by(site.steps, site.old, site.operator),
            )
        )
    return found


def compiled(source: str, number: int, path: str) -> CodeType:
    """The module with that mutant in it."""
    tree, places = _parsed(source)
    site, old = places[number], places[number].old
    site.set(site.new)
    try:
        return compile(ast.fix_missing_locations(tree), path, "exec")
    finally:
        site.set(old)


@lru_cache(maxsize=4)
def _parsed(source: str) -> tuple[ast.Module, list[Site]]:
    """Shared by all mutants of a module; each of them restores its place."""
    tree = ast.parse(source)
    return tree, sites(tree)


def _visit(node: ast.AST, steps: tuple[Step, ...]) -> Iterator[Site]:
    for field, value in ast.iter_fields(node):
        many = value if isinstance(value, list) else [value]
        for index, child in enumerate(many):
            if not isinstance(child, ast.AST):
                continue
            inner = (*steps, Step(node, field))
            place = index if isinstance(value, list) else None
            for operator, new in _changes(child, node, field):
                yield Site(
                    holder=node,
                    field=field,
                    index=place,
                    new=ast.copy_location(new, child) if hasattr(child, "lineno") else new,
                    operator=operator,
                    steps=inner,
                )
            yield from _visit(child, inner)


def _changes(node: ast.AST, holder: ast.AST, field: str) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.cmpop() if type(node) in COMPARE:
            yield "comparison", COMPARE[type(node)]()
        case ast.And():
            yield "connective", ast.Or()
        case ast.Or():
            yield "connective", ast.And()
        case ast.operator() if type(node) in ARITHMETIC:
            yield "arithmetic", ARITHMETIC[type(node)]()
        case ast.BoolOp(values=values):
            for place in range(len(values)):
                rest = values[:place] + values[place + 1 :]
                yield "operand", rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield "unary", operand
        case ast.Constant():
            yield from _constants(node)
        case ast.Call(func=ast.Attribute(attr=name)) if name in OPPOSITE:
            yield "opposite", _renamed(node, name)
        case ast.Call(func=ast.Name(id=name)) if name in OPPOSITE:
            yield "opposite", _renamed(node, name)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "returned", ast.Return(ast.Constant(None))
        case ast.Tuple(elts=[_, _, *_]) | ast.List(elts=[_, _, *_]) if _is_read(node):
            yield from _neighbours(node, "elts")
        case ast.Dict(values=[_, _, *_]):
            yield from _neighbours(node, "values")
        case ast.Set(elts=[_, _, *_]):
            for place in range(len(node.elts)):
                yield "entry", ast.Set(node.elts[:place] + node.elts[place + 1 :])
        case ast.Continue():
            yield "loop", ast.Break()
        case ast.Break():
            yield "loop", ast.Continue()
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.Delete():
            yield "removed", ast.Pass()
        case ast.AugAssign() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "removed", ast.Pass()
    if _is_condition(node, holder, field):
        yield "negated", ast.UnaryOp(ast.Not(), node)


def _constants(node: ast.Constant) -> Iterator[tuple[str, ast.AST]]:
    value = node.value
    if isinstance(value, bool):
        yield "boolean", ast.Constant(not value)
    elif isinstance(value, int | float):
        yield "number", ast.Constant(value + 1)
    elif isinstance(value, str):
        yield "text", ast.Constant(f"~{value}")
    elif isinstance(value, bytes):
        yield "text", ast.Constant(b"~" + value)


def _is_condition(node: ast.AST, holder: ast.AST, field: str) -> bool:
    """A condition that no other operator negates as a whole."""
    tested = field == "test" and isinstance(holder, ast.If | ast.While | ast.IfExp)
    filtered = field == "ifs" and isinstance(holder, ast.comprehension)
    guarded = field == "guard" and isinstance(holder, ast.match_case)
    if not (tested or filtered or guarded):
        return False
    single = isinstance(node, ast.Compare) and len(node.ops) == 1
    turned = single or isinstance(node, ast.Constant)
    return not turned and not (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))


def _neighbours(node: ast.AST, field: str) -> Iterator[tuple[str, ast.AST]]:
    """Each cell that is a name takes the value of the next cell that differs."""
    cells: list[ast.expr] = getattr(node, field)
    texts = [
        ast.unparse(cell) if isinstance(cell, ast.Name | ast.Attribute) else "" for cell in cells
    ]
    for place, text in enumerate(texts):
        others = [n for n in (*range(place + 1, len(texts)), *range(place)) if texts[n] != text]
        others = [n for n in others if texts[n]]
        if text and others:
            changed = copy.copy(node)
            setattr(changed, field, [*cells[:place], cells[others[0]], *cells[place + 1 :]])
            yield "cell", changed


def _is_read(node: ast.Tuple | ast.List) -> bool:
    return isinstance(node.ctx, ast.Load)


def _renamed(node: ast.Call, name: str) -> ast.AST:
    func: ast.expr = (
        ast.Attribute(node.func.value, OPPOSITE[name], ast.Load())
        if isinstance(node.func, ast.Attribute)
        else ast.Name(OPPOSITE[name], ast.Load())
    )
    return ast.Call(func, node.args, node.keywords)


def _statement(site: Site) -> ast.stmt:
    """The innermost statement around a place, itself included."""
    if isinstance(site.old, ast.stmt):
        return site.old
    inner = [step.node for step in site.steps if isinstance(step.node, ast.stmt)]
    return inner[-1]


def _shown(site: Site, statement: ast.AST) -> tuple[str, str]:
    """The statement before and after, cut to the difference and its surroundings."""
    before = _header(statement)
    old = site.old
    if old is statement:
        return before, _header(site.new)
    site.set(site.new)
    after = _header(statement)
    site.set(old)
    return _window(before, after)


def _header(statement: ast.AST) -> str:
    """A statement in one line; of a compound one the part before its block."""
    if isinstance(statement, ast.If | ast.While):
        return f"{type(statement).__name__.lower()} {ast.unparse(statement.test)}"
    if isinstance(statement, ast.For):
        return f"for {ast.unparse(statement.target)} in {ast.unparse(statement.iter)}"
    if isinstance(statement, ast.FunctionDef):
        return f"def {statement.name}({ast.unparse(statement.args)})"
    return " ".join(ast.unparse(statement).split())


def _window(before: str, after: str, around: int = 40) -> tuple[str, str]:
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    room = min(len(before), len(after)) - start
    while end < room and before[-1 - end] == after[-1 - end]:
        end += 1
    first = max(0, start - around)
    last = max(0, end - around)
    return before[first : len(before) - last], after[first : len(after) - last]
