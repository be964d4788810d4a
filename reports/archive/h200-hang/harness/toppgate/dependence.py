"""Which hunks of a diff only compile together: the names and calls of a Python text, checked without importing it.

A cherry-pick can name what another hunk brings, or call a function as another hunk has it.  Such a text would die in
its worker whatever the row, and say nothing of the hunk.  So a hunk is taken with the others that it needs: whatever
mentions a name that does not fit is added until all fits, then each addition that is not needed is taken out again.
"""

import ast
import builtins
import inspect
import re
import symtable
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from toppgate.hunks import Hunk

#: Stands for a text that is no Python at all.
SYNTAX: Final = "syntax"

#: Keywords of a Triton launch that are not the kernel's own.
LAUNCH: Final = frozenset({"num_warps", "num_stages", "num_ctas", "maxnreg", "warmup", "launch_pdl"})

#: Names that every module has.
_MODULE: Final = frozenset({*dir(builtins), "__file__", "__name__", "__doc__"})

#: Indices of chosen hunks → the text with them.
TextOf = Callable[[frozenset[int]], str]


@lru_cache(maxsize=1024)
def problems(text: str) -> frozenset[str]:
    """Return the names in a text that do not fit: global ones that nothing defines, functions called otherwise.

    ``SYNTAX`` alone where it is no Python text.  Only top-level functions called by their own name are looked at, and
    kernels launched as ``name[grid](…)``; a call with starred arguments is taken to fit.
    """
    try:
        tree, table = ast.parse(text), symtable.symtable(text, "kernel", "exec")
    except (SyntaxError, ValueError):
        return frozenset({SYNTAX})
    return frozenset({*_undefined(table, set(_MODULE)), *_misfits(tree)})


def _undefined(table: symtable.SymbolTable, known: set[str]) -> Iterator[str]:
    """Yield the global names that are used and nowhere defined at top level."""
    if table.get_type() == "module":
        known |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
        known |= {child.get_name() for child in table.get_children()}
    for symbol in table.get_symbols():
        outside = symbol.is_global() or table.get_type() == "module"
        if symbol.is_referenced() and outside and symbol.get_name() not in known:
            yield symbol.get_name()
    for child in table.get_children():
        yield from _undefined(child, known)


def _misfits(tree: ast.Module) -> Iterator[str]:
    """Yield the functions that some call does not fit."""
    functions = {node.name: _signature(node.args) for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        launched = isinstance(node.func, ast.Subscript)
        callee = node.func.value if isinstance(node.func, ast.Subscript) else node.func
        if isinstance(callee, ast.Name) and callee.id in functions and not _fits(functions[callee.id], node, launched):
            yield callee.id


def _fits(signature: inspect.Signature, call: ast.Call, launched: bool) -> bool:
    names = [keyword.arg for keyword in call.keywords]
    if None in names or any(isinstance(argument, ast.Starred) for argument in call.args):
        return True
    keywords = {str(name): None for name in names if not (launched and name in LAUNCH)}
    try:
        signature.bind(*call.args, **keywords)
    except TypeError:
        return False
    return True


def _signature(arguments: ast.arguments) -> inspect.Signature:
    kind = inspect.Parameter
    every: list[tuple[ast.arg, Any]] = [(a, kind.POSITIONAL_ONLY) for a in arguments.posonlyargs]
    every += [(a, kind.POSITIONAL_OR_KEYWORD) for a in arguments.args]
    without = len(every) - len(arguments.defaults)
    found = [
        kind(a.arg, how, default=kind.empty if number < without else None) for number, (a, how) in enumerate(every)
    ]
    if arguments.vararg is not None:
        found.append(kind(arguments.vararg.arg, kind.VAR_POSITIONAL))
    for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append(kind(a.arg, kind.KEYWORD_ONLY, default=kind.empty if default is None else None))
    if arguments.kwarg is not None:
        found.append(kind(arguments.kwarg.arg, kind.VAR_KEYWORD))
    return inspect.Signature(found)


def together(start: frozenset[int], hunks: Sequence[Hunk], text_of: TextOf) -> frozenset[int] | None:
    """Return the hunks that must go with ``start`` for ``text_of`` of them to compile, ``start`` among them.

    No hunk of the result but ``start`` can be left out alone; that no other, smaller set would do is not claimed.
    None where the text does not compile whatever goes with it.  Problems that both ends have are none.
    """
    both = problems(text_of(frozenset())) | problems(text_of(frozenset(range(len(hunks)))))
    words = [set(re.findall(r"\w+", "".join((*hunk.old, *hunk.new)))) for hunk in hunks]
    chosen = start
    while found := problems(text_of(chosen)) - both:
        more = {at for at, named in enumerate(words) if SYNTAX in found or named & found} - chosen
        if not more:
            return None
        chosen |= more
    for at in sorted(chosen - start):
        if not problems(text_of(chosen - {at})) - both:
            chosen -= {at}
    return chosen


def code(text: str) -> str:
    """Return what a text does, as its syntax tree without docstrings; texts that differ in comments alone agree.

    Raises ``SyntaxError`` for what is no Python text.
    """
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def function_at(text: str, line: int) -> str | None:
    """Return the top-level function of a text in which a line stands, 1-based; None between functions."""
    for node in ast.parse(text).body:
        first = min((decorator.lineno for decorator in getattr(node, "decorator_list", [])), default=node.lineno)
        if isinstance(node, ast.FunctionDef) and first <= line <= (node.end_lineno or node.lineno):
            return node.name
    return None
