"""The dashboard's colours, in one place: one hue for one thing, everywhere."""

from __future__ import annotations

GROUND = "#0e1216"
RAISED = "#151b21"
EDGE = "#2a343e"
FAINT = "#313d49"
DIM = "#71808f"
TEXT = "#cdd6df"
BRIGHT = "#f2f6fa"

#: For the style sheet.
CSS = {"ground": GROUND, "raised": RAISED, "edge": EDGE, "dim": DIM, "ink": TEXT, "bright": BRIGHT}

TRAIN, TRAIN_BAND = "#5fb3f9", "#27506f"
VALIDATION = ("#ffb454", "#f78fb3", "#e6db74", "#9ee8d6")
RATE = "#5fd3bc"
NORM, NORM_BAND = "#b99cff", "#4b4070"
SPEED, SPEED_BAND = "#95d475", "#3a5a35"

GOOD, BUSY, WARN, BAD = "#95d475", "#5fb3f9", "#ffb454", "#ff6b6b"

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
