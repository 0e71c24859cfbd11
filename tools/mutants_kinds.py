"""What can be broken in a file: every way to drop, shrink or confuse one term of its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

KINDS = ("summand", "factor", "argument", "coefficient", "outward", "end", "guard", "chunk")

CHOICES = {  # functions of several arguments, each of which matters
    "maximum", "minimum", "fmax", "fmin", "max", "min", "hypot", "minkowski", "row_minkowski", "largest", "where",
}  # fmt: skip
LISTS = {"sum", "sum_of", "cat", "stack"}  # functions of a list whose terms matter
RELAXED = {"clamp", "clamp_min", "clamp_max", "masked_fill", "nan_to_num"}  # methods: without them, the value
OUTWARD = {"up", "symmetrised", "widened", "rounded_out", "nextafter", "length"}  # functions: the first argument
WIDTHS = {"gamma", "gammas", "least"}  # what rounding takes at most; their arguments count operations
LAYOUT = {  # what these are given are numbers of entries
    "view", "reshape", "expand", "arange", "zeros", "ones", "new_zeros", "new_ones", "range", "split", "chunk",
    "chunks", "unflatten", "eye", "narrow", "repeat_interleave", "permute", "transpose", "unsqueeze", "squeeze",
    "empty", "full",
}  # fmt: skip
ENDS = {"lower": "upper", "low": "high", "least": "most", "a_min": "a_max", "A": "B", "convex": "concave"}
ENDS |= {there: here for here, there in ENDS.items()}
LOOSER = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
Part = ast.expr | ast.stmt


@dataclass(frozen=True)
class Mutant:
    file: str  # below src
    line: int
    kind: str
    function: str
    old: str
    new: str
    source: bytes  # of the whole file

    @property
    def name(self) -> str:
        """What it is, wherever in the file it stands."""
        change = " -> ".join(" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.file} {self.function}: {self.kind}: {change}"


def mutants_of(file: str, source: bytes) -> Iterator[Mutant]:
    """Every mutant that is another program, once."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    seen = {source}

    def span(node: Part) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def text(node: Part) -> str:
        first, last = span(node)
        return source[first:last].decode()

    for node, function, in_index in parts(ast.parse(source)):
        for kind, place, new in chunk_changes(node) if in_index else changes(node, text):
            first, last = span(place)
            inserted = new if isinstance(place, ast.stmt) else f"({new})"
            mutated = source[:first] + inserted.encode() + source[last:]
            if mutated not in seen:
                seen.add(mutated)
                yield Mutant(file, place.lineno, kind, function, text(place), new, mutated)


def parts(tree: ast.AST, function: str = "", in_slice: bool = False) -> Iterator[tuple[Part, str, bool]]:
    """Whatever computes, the function that it stands in, and whether it is an index: no types, layouts, messages."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params") or isinstance(tree, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Raise | ast.Assert):
                continue
            if not function and isinstance(child, ast.BinOp) and isinstance(child.op, ast.BitOr):  # a union of types
                continue
            index = in_slice or name == "slice"
            inside = child.name if isinstance(child, ast.FunctionDef | ast.ClassDef) else function
            if isinstance(child, ast.Call) and called(child).endswith("_like"):
                child.args = child.args[1:]  # of the first only the layout counts
            if isinstance(child, ast.expr | ast.stmt):
                yield child, inside, index
            if not isinstance(child, ast.Call) or called(child) not in LAYOUT | WIDTHS | OUTWARD:
                yield from parts(child, inside, index)
            elif called(child) in OUTWARD and child.args:  # further arguments count operations
                yield child.args[0], inside, index
                yield from parts(child.args[0], inside, index)
            elif isinstance(child.func, ast.Attribute):
                yield from parts(ast.Expr(child.func.value), inside, index)


def called(call: ast.expr) -> str:
    """The name of the function or method."""
    if not isinstance(call, ast.Call):
        return ""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def changes(node: Part, text: Callable[[Part], str]) -> Iterator[tuple[str, Part, str]]:
    """(kind, what is replaced, by what)."""
    match node:
        case ast.BinOp(left, ast.Add(), right):
            yield from (("summand", node, text(side)) for side in (left, right))
        case ast.BinOp(left, ast.Sub(), _):
            yield "summand", node, text(left)
        case ast.BinOp(left, ast.Mult() | ast.Div(), right) if number(left) or number(right):
            yield "coefficient", node, f"0.5 * ({text(node)})"
        case ast.BinOp(left, ast.Mult(), right):
            yield from (("factor", node, text(side)) for side in (left, right))
        case ast.BinOp(left, ast.Div(), _):
            yield "factor", node, text(left)
        case ast.BinOp(left, ast.BitAnd() | ast.BitOr(), right):
            yield from (("guard", node, text(side)) for side in (left, right))
        case ast.UnaryOp(ast.USub(), operand) if not number(operand):
            yield "factor", node, text(operand)
        case ast.AugAssign(target, ast.Add() | ast.Sub(), value):
            yield "summand", node, "pass"
            yield "chunk", node, f"{text(target)} = {text(value)}"
        case ast.AugAssign():
            yield "factor", node, "pass"
        case ast.Expr(ast.Call()):
            yield "guard", node, "pass"
        case ast.Assign([target], value) if not isinstance(target, ast.Name) or target.id in names(value):
            if not isinstance(target, ast.Tuple):
                yield "factor", node, "pass"
        case ast.If(test):
            yield "guard", test, "False"
        case ast.Compare(left, [op], [right]) if type(op) in LOOSER:
            yield "guard", node, f"{text(left)} {LOOSER[type(op)]} {text(right)}"
        case ast.For(_, over):
            yield "chunk", over, f"[*({text(over)})][:-1]"
        case ast.BoolOp(values=values):
            yield from (("guard", node, text(value)) for value in values)
        case ast.IfExp(_, body, orelse):
            yield from (("argument", node, text(side)) for side in (body, orelse))
        case ast.Name(name, ast.Load()) if name in ENDS:
            yield "end", node, ENDS[name]
        case ast.Attribute(value, name, ast.Load()) if name in ENDS:
            yield "end", node, f"{text(value)}.{ENDS[name]}"
        case ast.Call(_, args):
            yield from call_changes(node, args, text)
    yield from (("factor", term, f"0 * ({text(term)})") for term in terms(node))


def call_changes(node: ast.Call, args: list[ast.expr], text: Callable[[Part], str]) -> Iterator[tuple[str, Part, str]]:
    name = called(node)
    if name in CHOICES and len(args) > 1:
        taken = args[1:] if name == "where" else args
        yield from (("argument", node, text(one)) for one in taken if not isinstance(one, ast.Starred))
    if name in LISTS and args and isinstance(args[0], ast.List | ast.Tuple) and len(args[0].elts) > 1:
        yield from (("summand", term, f"0 * ({text(term)})") for term in args[0].elts)
    reduced = name in ("amax", "sum", "mean") and any(k.arg == "keepdim" for k in node.keywords)
    if (reduced or name.removesuffix("_") in RELAXED) and isinstance(node.func, ast.Attribute):
        yield "argument", node, text(node.func.value)
    if name in OUTWARD and args:
        yield "outward", node, text(args[0])
    if name in WIDTHS:
        yield "outward", node, f"0 * {text(node)}"


def terms(node: Part) -> Iterator[ast.expr]:
    """What an assignment, an argument, a display or a return hands on, where it is computed there."""
    computed = (ast.Call, ast.BinOp)
    read = (*computed, ast.Attribute, ast.Subscript)
    match node:
        case ast.Return(value) | ast.Assign(value=value) if isinstance(value, computed):
            yield value
        case ast.Call(args=args, keywords=keywords) if called(node) not in LAYOUT | WIDTHS | OUTWARD:
            kept = (ast.Name, *read) if called(node)[:1].isupper() else read  # all of a set, of a step
            yield from (a for a in [*args, *(k.value for k in keywords)] if isinstance(a, kept) and not layout(a))
        case ast.Dict(values=values) | ast.List(elts=values) | ast.Tuple(elts=values, ctx=ast.Load()):
            yield from (value for value in values if isinstance(value, (ast.Name, *read)) and not layout(value))


def chunk_changes(node: Part) -> Iterator[tuple[str, Part, str]]:
    """In an index: every chunk is the first."""
    if isinstance(node, ast.Name) and node.id == "part":
        yield "chunk", node, "slice(part.stop - part.start)"


def layout(node: ast.expr) -> bool:
    """Whether it says how numbers are held."""
    return isinstance(node, ast.Attribute) and node.attr in ("dtype", "device", "shape")


def names(node: ast.AST) -> set[str]:
    return {found.id for found in ast.walk(node) if isinstance(found, ast.Name)}


def number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)
