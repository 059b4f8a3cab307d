"""The dashboard's colours, in one place: one hue for one thing, everywhere.

The names below are variables that a theme gives a value, for the style sheet and for `Content`; what draws cells itself
asks `rich_style`. Of the themes, colour-blind has the colours of Okabe and Ito ("Color Universal Design", 2008), which
people who confuse red and green tell apart; its vermilion is a little lighter, to be read on the ground. Plain has
none at all, for terminals and eyes without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from rich.style import Style
from textual.app import App
from textual.theme import Theme

GROUND, EDGE, FAINT = "$ground", "$edge", "$faint"
DIM, TEXT, BRIGHT = "$dim", "$ink", "$bright"

TRAIN, TRAIN_BAND = "$train", "$train-band"
VALIDATION = ("$validation-1", "$validation-2", "$validation-3", "$validation-4")
RATE = "$rate"
NORM, NORM_BAND = "$norm", "$norm-band"
SPEED, SPEED_BAND = "$speed", "$speed-band"

GOOD, BUSY, WARN, BAD = "$good", "$busy", "$warn", "$bad"

#: state -> (symbol, colour)
STATES = {
    "waiting": ("○", DIM),
    "starting": ("◌", BUSY),
    "caching": ("◌", BUSY),
    "compiling": ("◌", BUSY),
    "running": ("●", GOOD),
    "evaluating": ("●", BUSY),
    "saving": ("●", BUSY),
    "paused": ("‖", WARN),
    "stopping": ("◍", WARN),
    "stalled": ("▲", WARN),
    "crashed": ("✗", BAD),
    "finished": ("✓", GOOD),
    "stopped": ("■", WARN),
    "interrupted": ("■", WARN),
    "failed": ("✗", BAD),
}

_DARK = {
    "ground": "#0e1216", "raised": "#151b21", "chosen": "#2a343e", "edge": "#2a343e", "faint": "#3b4855",
    "dim": "#8f9eac", "ink": "#cdd6df", "bright": "#f2f6fa",
    "train": "#5fb3f9", "train-band": "#27506f",
    "validation-1": "#ffb454", "validation-2": "#f78fb3", "validation-3": "#e6db74", "validation-4": "#9ee8d6",
    "rate": "#5fd3bc", "norm": "#b99cff", "norm-band": "#4b4070", "speed": "#95d475", "speed-band": "#3a5a35",
    "good": "#95d475", "busy": "#5fb3f9", "warn": "#ffb454", "bad": "#ff6b6b",
}  # fmt: skip
_LIGHT = {
    "ground": "#fbfaf7", "raised": "#f0eee8", "edge": "#d4d0c6", "chosen": "#e4e1d9", "faint": "#b9b4a8",
    "dim": "#5a564f", "ink": "#33312c", "bright": "#000000",
    "train": "#0a5fb4", "train-band": "#a9cbea",
    "validation-1": "#9d4e00", "validation-2": "#b3246a", "validation-3": "#726200", "validation-4": "#006f64",
    "rate": "#006f62", "norm": "#6a3fc0", "norm-band": "#cfc0ee", "speed": "#366e11", "speed-band": "#c3ddb0",
    "good": "#366e11", "busy": "#0a5fb4", "warn": "#9d4e00", "bad": "#c4161c",
}  # fmt: skip
_COLOR_BLIND = {
    **_DARK, "chosen": "#1b232a",
    "train": "#56b4e9", "train-band": "#254f66",
    "validation-1": "#e69f00", "validation-2": "#f0e442", "validation-3": "#cc79a7", "validation-4": "#ffffff",
    "rate": "#009e73", "norm": "#cc79a7", "norm-band": "#5a3a4c", "speed": "#009e73", "speed-band": "#0a4636",
    "good": "#56b4e9", "busy": "#56b4e9", "warn": "#f0e442", "bad": "#e57628",
}  # fmt: skip
_PLAIN = {
    **dict.fromkeys(_DARK, "#d0d0d0"), "ground": "#000000", "raised": "#000000", "bright": "#ffffff",
    **dict.fromkeys(("edge", "faint", "chosen"), "#505050"),
    **dict.fromkeys(("dim", "train-band", "norm-band", "speed-band"), "#909090"),
}  # fmt: skip

DEFAULT, PLAIN = "dark", "plain"
THEMES = {
    name: Theme(
        name, primary=colors["train"], warning=colors["warn"], error=colors["bad"], success=colors["good"],
        accent=colors["warn"], foreground=colors["ink"], background=colors["ground"], surface=colors["raised"],
        panel=colors["raised"], dark=name != "light", variables=colors,
    )
    for name, colors in {DEFAULT: _DARK, "light": _LIGHT, "colour-blind": _COLOR_BLIND, PLAIN: _PLAIN}.items()
}  # fmt: skip


def install(app: App[Any]) -> None:
    """Give an application these themes and no others, which lack the names above."""
    for theme in THEMES.values():
        app.register_theme(theme)
    app.theme = DEFAULT
    for name in app.available_themes.keys() - THEMES.keys():
        app.unregister_theme(name)


def rich_style(variables: Mapping[str, str], color: str) -> Style:
    """The style of a cell in one of the colours above; `variables` are those of the application's theme."""
    return _style(variables[color.removeprefix("$")], variables["ground"])


@cache
def _style(color: str, ground: str) -> Style:
    return Style(color=color, bgcolor=ground)
