"""Jinja's sandbox with limits: a chat template that never ends, or makes texts without end, is stopped.

A template comes with a model from anywhere. Turns of loops, calls of macros and the characters that it writes are
counted, so whether it is stopped depends on the template and the conversation alone. Only a template whose turns are
very slow is stopped by the clock.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

#: Turns of loops and calls of macros, for one conversation.
MOST_TURNS = 1_000_000
#: Seconds, for one conversation.
MOST_SECONDS = 30.0
#: Characters of a text, and of all that is written for one conversation; entries of a list.
MOST_CHARACTERS = 1 << 26
#: The largest width that a filter, a method or a format takes.
WIDEST = 99_999
#: Bits of a whole number.
MOST_BITS = 4096

_COUNTS = threading.local()
#: Methods and filters whose numbers are widths or counts.
_TAKE_WIDTHS = frozenset({
    "center", "ljust", "rjust", "zfill", "expandtabs", "do_center", "do_indent", "do_batch", "do_slice",
    "sync_do_slice", "do_wordwrap", "tojson",
})  # fmt: skip
#: A width in a format, written out or taken from an argument.
_WIDE = re.compile(r"(\{[^{}]*:[^{}]*|%[-+ #0.\d]*?)(?P<width>\d{6,}|\{|\*)")


class LimitExceeded(Exception):
    """A template does more than any conversation needs."""


@contextmanager
def limits() -> Iterator[None]:
    """Count what a template does in this thread within the block. Templates raise LimitExceeded beyond the limits."""
    _COUNTS.turns, _COUNTS.characters, _COUNTS.until = 0, 0, time.monotonic() + MOST_SECONDS
    try:
        yield
    finally:
        del _COUNTS.turns, _COUNTS.characters, _COUNTS.until


class LimitedSandbox(ImmutableSandboxedEnvironment):
    """The environment that templates are compiled and run in, within `limits()`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, finalize=_write)
        self.globals.pop("lipsum")
        self.filters = {name: with_limits(function) for name, function in self.filters.items()}

    def take_turn(self, written: int) -> None:
        """Count a turn of a loop or a call of a macro, whose own text has so many characters."""
        _COUNTS.turns += 1
        if _COUNTS.turns > MOST_TURNS:
            raise LimitExceeded(f"it does not end: its loops took more than {MOST_TURNS:,} turns")
        if time.monotonic() > _COUNTS.until:
            raise LimitExceeded(f"it does not end: it took more than {MOST_SECONDS:g} seconds")
        _count_characters(written)

    def join_texts(self, *parts: Any) -> str:
        """Return what `~` makes of its operands."""
        _check_size(parts)
        return "".join(map(str, parts))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return the result of an operator, unless it would be huge."""
        if isinstance(left, int) and isinstance(right, int):
            bits = {"*": left.bit_length() + right.bit_length(), "**": left.bit_length() * abs(right)}
            if bits.get(operator, 0) > MOST_BITS:
                raise LimitExceeded(f"it computes a number of more than {MOST_BITS:,} bits")
        elif operator in ("+", "%"):
            _check_size((left, right))
            if operator == "%" and isinstance(left, str):
                _check_format(left)
        elif operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(many, str | list | tuple):
                    _check_size(many, times=times)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the result of a call, unless it would be huge."""
        _check_call(function, args, kwargs)
        result = super().call(context, function, *args, **kwargs)
        _check_size(result)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return what stands for `str.format` of a text, for any other value None."""
        function = super().wrap_str_format(value)
        if function is not None:
            _check_format(value.__self__)
        return function

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        counted: nodes.Template = _Counted().visit(tree)
        counted.set_environment(self)
        return counted


def with_limits(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that refuses huge numbers and gives no huge results."""

    @functools.wraps(function)  # Jinja marks filters that take more than a value by an attribute
    def filter_(*args: Any, **kwargs: Any) -> Any:
        _check_call(function, args, kwargs)
        result = function(*args, **kwargs)
        _check_size(result)
        return result

    return filter_


class _Counted(NodeTransformer):
    """Lets loops, macros and blocks count their turns, and `~` its characters."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._counted(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._counted(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._counted(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("join_texts", node.nodes, node.lineno)

    def _counted(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        written = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        turn = _call("take_turn", [nodes.Const(written, lineno=node.lineno)], node.lineno)
        node.body.insert(0, nodes.ExprStmt(turn, lineno=node.lineno))
        return node  # type: ignore[no-any-return]


def _call(method: str, arguments: list[Any], line: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method, lineno=line), arguments, [], None, None, lineno=line)


@pass_context  # so that constants are written, and counted, in each turn
def _write(context: Context, value: Any) -> str:
    _check_size(value)
    text = str(value)
    _count_characters(len(text))
    return text


def _count_characters(number: int) -> None:
    _COUNTS.characters += number
    if _COUNTS.characters > MOST_CHARACTERS:
        raise LimitExceeded(f"it writes more than {MOST_CHARACTERS:,} characters")


def _check_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a call of a method or a filter whose result would be huge."""
    name, texts = getattr(function, "__name__", ""), [value for value in args if isinstance(value, str)]
    if isinstance(text := getattr(function, "__self__", None), str):
        texts.insert(0, text)
    if name in _TAKE_WIDTHS:
        widths = (*(args[1:] if "do_" in name or name == "tojson" else args), *kwargs.values())
        if any(isinstance(width, int) and abs(width) > WIDEST for width in widths):
            raise LimitExceeded(f"it asks for a width of more than {WIDEST:,}")
    elif name in ("replace", "do_replace") and len(texts) >= 3:
        text, old, new = texts[:3]
        _check_size((text, new), times=1 if len(new) <= len(old) else 1 + text.count(old))
    elif name in ("join", "do_join", "sync_do_join"):
        entries = max((len(value) for value in args if isinstance(value, list | tuple)), default=1)
        _check_size(texts, times=max(1, entries))
    elif name == "do_format" and texts:
        _check_format(texts[0])


def _check_format(text: str) -> None:
    """Refuse a format with a huge width, or one that an argument gives."""
    if _WIDE.search(text):
        raise LimitExceeded(f"a format may have a width of at most {WIDEST:,}, and none from an argument")


def _check_size(value: Any, *, times: int = 1) -> None:
    """Refuse a text or a list that is too large, counted with all that it holds."""
    if _size(value, MOST_CHARACTERS // max(times, 1)) * max(times, 1) > MOST_CHARACTERS:
        raise LimitExceeded(f"it makes a text or a list of more than {MOST_CHARACTERS:,} characters or entries")


def _size(value: Any, most: int) -> int:
    """Return the characters and entries of a value, or a number above `most`."""
    if isinstance(value, str | bytes):
        return len(value)
    if not isinstance(value, list | tuple | dict):
        return 1
    size = len(value)
    for part in value.items() if isinstance(value, dict) else value:
        if size > most:
            break
        size += _size(part, most - size)
    return size
