"""The first operation of a function whose result is not finite, and the layer that it belongs to.

The function's program (jaxpr) is evaluated operation by operation, and each result is looked at. That is slow, and
rounds otherwise than the compiled program, which joins operations: it is for one step, after the fact.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

#: The parameters of operations that are functions of their own, called once.
_CALLS = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "checkpoint": "jaxpr",
    "remat2": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}  # fmt: skip
#: Where a loop stands in the source, and what its iterations are.
_LOOPS = {"stack.py": "layer", "encoder_decoder.py": "layer", "gradients.py": "micro-batch"}


@dataclass(frozen=True)
class BrokenOperation:
    """An operation whose result is not finite although its operands are."""

    found: str
    """`NaN` or `infinity`."""
    operation: str
    """As XLA calls it, such as `exp`."""
    place: str
    """`file.py:line (function)`."""
    backward: bool
    """Whether it belongs to the backward pass."""
    loops: tuple[tuple[str, int], ...]
    """The loops around it, the outermost first: what their iterations are, and which one it is, from 0."""

    def in_words(self) -> str:
        """Return a sentence about it."""
        where = "".join(f", {what} {number}" for what, number in self.loops)
        backward = " in the backward pass" if self.backward else ""
        return f"the first {self.found} is the result of {self.operation}{backward}{where}, at {self.place}"


@dataclass
class _Search:
    origins: dict[str, BrokenOperation] = field(default_factory=dict)
    loops: tuple[tuple[str, int], ...] = ()


class _FoundError(Exception):
    """The search is over."""


def find_origins(function: Callable[..., Any], *arguments: Any) -> list[BrokenOperation]:
    """Return the first operation whose result is an infinity, and the first whose result is NaN, in their order.

    An operand that is already broken makes no origin of its operation. Infinities may be intended, as in a mask.
    """
    program = jax.make_jaxpr(function)(*arguments)
    search = _Search()
    with contextlib.suppress(_FoundError):
        _evaluate(search, program.jaxpr, program.consts, jax.tree.leaves(arguments))
    return list(search.origins.values())


def _evaluate(search: _Search, jaxpr: Jaxpr, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in jaxpr.eqns:
        operands = [read(variable) for variable in equation.invars]
        results = _results(search, equation, operands)
        values |= dict(zip(equation.outvars, results, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _results(search: _Search, equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        return _scan(search, equation, operands)
    if name == "cond":
        branch = params["branches"][int(operands[0])]
        return _evaluate(search, branch.jaxpr, branch.consts, operands[1:])
    if name in _CALLS and (inner := params.get(_CALLS[name])) is not None:
        closed = isinstance(inner, ClosedJaxpr)
        return _evaluate(search, inner.jaxpr if closed else inner, inner.consts if closed else (), operands)
    bound = equation.primitive.get_bind_params(params)  # earlier versions of jax also return functions
    functions, others = bound if isinstance(bound, tuple) else ((), bound)
    found = equation.primitive.bind(*functions, *operands, **others)
    results = list(found) if equation.primitive.multiple_results else [found]
    _look(search, equation, operands, results)
    return results


def _scan(search: _Search, equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    params, body = equation.params, equation.params["jaxpr"]
    consts, carry = operands[: params["num_consts"]], operands[params["num_consts"] :][: params["num_carry"]]
    over = operands[params["num_consts"] + params["num_carry"] :]
    outer, what = search.loops, _LOOPS.get(PurePath(_place(equation).split(":")[0]).name, "iteration")
    order = range(params["length"])
    rows: dict[int, list[Any]] = {}
    for number in reversed(order) if params["reverse"] else order:
        search.loops = (*outer, (what, number))
        found = _evaluate(search, body.jaxpr, body.consts, [*consts, *carry, *(x[number] for x in over)])
        carry, rows[number] = found[: params["num_carry"]], found[params["num_carry"] :]
    search.loops = outer
    if not rows:
        shapes: list[Any] = [variable.aval for variable in equation.outvars[params["num_carry"] :]]
        return [*carry, *(jnp.zeros(each.shape, each.dtype) for each in shapes)]
    return [*carry, *(jnp.stack(column) for column in zip(*(rows[number] for number in order), strict=True))]


def _look(search: _Search, equation: JaxprEqn, operands: list[Any], results: list[Any]) -> None:
    """Note the operation if it is an origin; the search ends with the first NaN."""
    for found, is_broken, was_broken in (
        ("NaN", jnp.isnan, jnp.isnan),
        ("infinity", jnp.isinf, lambda x: ~jnp.isfinite(x)),
    ):
        if found in search.origins or not any(map(_any(is_broken), results)) or any(map(_any(was_broken), operands)):
            continue
        backward = "transpose(" in str(equation.source_info.name_stack)
        search.origins[found] = BrokenOperation(
            found, equation.primitive.name, _place(equation), backward, search.loops
        )
    if any(map(_any(jnp.isnan), results)):
        raise _FoundError


def _any(is_broken: Callable[[Any], Any]) -> Callable[[Any], bool]:
    def judge(value: Any) -> bool:
        dtype = getattr(value, "dtype", None)
        if dtype is None:
            return isinstance(value, float) and bool(is_broken(value))
        return bool(jnp.issubdtype(dtype, jnp.inexact)) and bool(is_broken(value).any())

    return judge


def _place(equation: JaxprEqn) -> str:
    """Return where an operation stands in trainkit's source or a plugin's."""
    from jax._src import source_info_util  # jax has no public name for it

    return str(source_info_util.summarize(equation.source_info))
