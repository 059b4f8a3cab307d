"""Other forms of a value that may have been meant: without quotes, as a list, a number without its unit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trainkit.recipe.toml.values import toml_value

#: What a unit multiplies a number by.
_UNITS = {"%": 0.01, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_BYTES = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_MINUTES = {"s": 1 / 60, "sec": 1 / 60, "second": 1 / 60, "m": 1, "min": 1, "minute": 1, "h": 60, "hour": 60}
_MINUTES |= {"d": 1440, "day": 1440}
#: What people count.
_NOUNS = re.compile("(step|epoch|token|sequence|sample|example|layer|head|device|gpu)s?")
#: Keys in which 4k is 4096.
_BINARY = re.compile("length|window|context")


def candidates(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (how to say it in a hint, what the value may mean)."""
    match value:
        case str():
            text = value.strip()
            if text.lower() in ("true", "false", "yes", "no", "on", "off"):
                yield "write", text.lower() in ("true", "yes", "on")
            if _is_number(text) and len(text) < 40:
                yield "write the number without quotes", _number(text)
                yield "write the number without quotes", float(_number(text))
            yield from _with_unit(name, text)
            yield from _calculated(text)
            if text.endswith((",", ";")):
                yield from candidates(name, text[:-1])
            if "," in text.strip("()[],; "):
                yield "write a list", [_number(part.strip()) for part in text.strip("()[],; ").split(",")]
            yield "write a list", [value]
        case float() if value.is_integer():
            yield "write it without a decimal point or exponent", int(value)
        case list():
            yield "write a list of lists", [value]
            if len(value) == 1:
                yield "write it without brackets", value[0]
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield "write a string", toml_value(value)
        yield "write a list", [value]
        if 1 < value <= 100:
            yield "write a share of 1, not percent", value / 100


def _calculated(text: str) -> Iterator[tuple[str, Any]]:
    """Yield the number that a fraction or a power stands for, such as 0.5 for `1/2` and 0.0001 for `10^-4`."""
    if found := re.fullmatch(r"(\d{1,9}) ?/ ?([1-9]\d{0,8})", text):
        yield "write the number alone", int(found[1]) / int(found[2])
    if found := re.fullmatch(r"([1-9]\d{0,2}) ?(?:\^|\*\*) ?(-?\d{1,2})", text):
        power = float(found[1]) ** int(found[2])
        yield "write the number alone", int(power) if power.is_integer() else power


def _with_unit(name: str, text: str) -> Iterator[tuple[str, Any]]:
    """Yield the number that a text with a unit stands for, such as 4096 for `4k` and 0.1 for `10%`."""
    found = re.fullmatch(r"(\d[\d_]{0,14}(?:\.\d{1,9})?)\s*([A-Za-z%]{1,9})", text)
    if found is None:
        return
    number, unit = float(found[1].replace("_", "")), found[2].lower()
    units = _UNITS | _BYTES
    if "minutes" in name:
        units, unit = _MINUTES, unit if unit in _MINUTES else unit.removesuffix("s")
    if _NOUNS.fullmatch(unit):
        units = {unit: 1}
    if unit not in units:
        return
    factor = 1024 if unit == "k" and _BINARY.search(name) else units[unit]
    meant = round(number * factor, 9)
    yield "write the number alone", int(meant) if meant.is_integer() else meant


def _number(text: str) -> Any:
    """Return the number that a text is, whole where it can be, or the text if it is none."""
    if not _is_number(text) or len(text) >= 40:
        return text
    number = float(text.replace("_", ""))
    return int(number) if number.is_integer() else number


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d[\d_]*(\.\d+)?([eE][+-]?\d+)?", text.strip()) is not None
