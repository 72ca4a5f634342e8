"""The rules of mutation: what may take the place of a node of a syntax tree."""

import ast
import copy
from collections.abc import Callable, Iterator

# Where such a call is left out, its first argument or its object takes its place.
REMOVED_CALLS = {
    *("abs", "any", "all", "clamp", "clamp_min", "clone", "detach", "double", "flatten", "float"),
    *("long", "neg", "reciprocal", "reshape", "sqrt", "square", "sum", "to", "copied", "cumsum"),
}

# The order of their arguments does not matter.
SYMMETRIC = {"addcmul_", "equal", "max", "min", "promote_types"}

_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may take the place of a node, of the same kind of syntax."""
    for kind, rule in _RULES:
        if isinstance(node, kind):
            yield from rule(node)


def _operator(node: ast.BinOp) -> Iterator[ast.AST]:
    if isinstance(node.op, ast.MatMult):
        yield ast.BinOp(node.right, node.op, node.left)
    elif type(node.op) in _OPERATORS:
        yield ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right)


def _in_place(node: ast.AugAssign) -> Iterator[ast.AST]:
    if type(node.op) in _OPERATORS:
        yield ast.AugAssign(node.target, _OPERATORS[type(node.op)](), node.value)
    yield _never(node)


def _comparison(node: ast.Compare) -> Iterator[ast.AST]:
    for index, operator in enumerate(node.ops):
        for other in _COMPARISONS[type(operator)]:
            ops = [*node.ops[:index], other(), *node.ops[index + 1 :]]
            yield ast.Compare(node.left, ops, node.comparators)


def _constant_value(node: ast.Constant) -> Iterator[ast.AST]:
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
    elif isinstance(value, float):
        yield ast.Constant(2 * value if value else 1.0)
    elif isinstance(value, str):
        yield ast.Constant(f"other {value}")


def _unary(node: ast.UnaryOp) -> Iterator[ast.AST]:
    yield node.operand


def _logic(node: ast.BoolOp) -> Iterator[ast.AST]:
    yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)


def _condition(node: ast.If | ast.IfExp | ast.While) -> Iterator[ast.AST]:
    changed = copy.copy(node)
    changed.test = ast.UnaryOp(ast.Not(), node.test)
    yield changed


def _call(node: ast.Call) -> Iterator[ast.AST]:
    if isinstance(node.func, ast.Attribute) and node.func.attr in REMOVED_CALLS:
        yield node.func.value
    name = ast.unparse(node.func).rpartition(".")[2]
    is_ordered = name not in SYMMETRIC and len(node.args) > 1
    if is_ordered and not any(isinstance(one, ast.Starred) for one in node.args[:2]):
        first, second, *rest = node.args
        yield ast.Call(node.func, [second, first, *rest], node.keywords)
    for keyword in node.keywords:
        if keyword.arg == "dtype":
            others = [one for one in node.keywords if one is not keyword]
            yield ast.Call(node.func, node.args, others)


def _transpose(node: ast.Attribute) -> Iterator[ast.AST]:
    if node.attr in {"T", "mT"} and isinstance(node.ctx, ast.Load):
        yield node.value


def _new_axis(node: ast.Subscript) -> Iterator[ast.AST]:
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
    is_none = [isinstance(one, ast.Constant) and one.value is None for one in parts]
    if any(is_none):
        yield node.value


def _result(node: ast.Return) -> Iterator[ast.AST]:
    if node.value is not None and not _is_none(node.value):
        yield ast.Return(ast.Constant(None))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _statement(node: ast.stmt) -> Iterator[ast.AST]:
    is_plain = isinstance(node, ast.Assign) and all(map(_is_name, node.targets))
    if not is_plain:  # without a name that is needed later, every test fails
        yield _never(node)


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) or (
        isinstance(node, ast.Tuple) and all(map(_is_name, node.elts))
    )


def _never(node: ast.stmt) -> ast.If:
    """Return a statement that is there for the names that it binds, and never runs."""
    return ast.If(ast.Constant(False), [node], [])


_RULES: tuple[
    tuple[type[ast.AST] | tuple[type[ast.AST], ...], Callable[..., Iterator[ast.AST]]], ...
]
_RULES = (
    (ast.BinOp, _operator),
    (ast.AugAssign, _in_place),
    (ast.Compare, _comparison),
    (ast.Constant, _constant_value),
    (ast.UnaryOp, _unary),
    (ast.BoolOp, _logic),
    ((ast.If, ast.IfExp, ast.While), _condition),
    (ast.Call, _call),
    (ast.Attribute, _transpose),
    (ast.Subscript, _new_axis),
    (ast.Return, _result),
    ((ast.Expr, ast.Assign, ast.Raise), _statement),
)
