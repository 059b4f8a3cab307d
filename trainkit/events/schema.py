"""The kinds of event and their fields. One event is one JSON object on one line of `events.jsonl`.

Every event has `type`, `t` (Unix seconds), `step` (updates done when it happened) and `attempt` (from 1). The first
event of an attempt is `run_started`, which also carries `schema`; it is written again where the attempt has to go on
from further back than it meant to. Readers ignore kinds and fields that they do not know.

Metric names are paths, the same here, in the dashboard, in Aim and in the docs: `train/loss`, `validation/NAME/loss`,
`validation/NAME/perplexity`, `validation/NAME/bits_per_byte`, `optimizer/learning_rate`, `gradients/norm`,
`parameters/norm`, `updates/norm`, `throughput/tokens_per_second`, `throughput/mfu`, `time/step`, `time/data_wait`,
`memory/host` (bytes), `memory/device/0` (bytes), `host/cpu` (cores in use by the trainer).
"""

from __future__ import annotations

from typing import Any, TypeAlias

SCHEMA = 1

Event: TypeAlias = dict[str, Any]

#: kind -> its own fields, beside type, t, step and attempt.
FIELDS: dict[str, frozenset[str]] = {
    # schema: int; name: str; pid: int; process_started: Unix seconds or None, tells a living trainer from a reused pid;
    # host: str; recipe: fingerprint; resumed_from: the checkpoint's step, or None; versions: {package: version}
    "run_started": frozenset(
        {"schema", "name", "pid", "process_started", "host", "recipe", "resumed_from", "versions"}
    ),
    # total_steps: int; plan: Plan.summary(), plain JSON; devices: [str]
    "planned": frozenset({"total_steps", "plan", "devices"}),
    # what: set name; documents, bytes, tokens: so far; total_bytes: int or None; done: bool
    "cache_progress": frozenset({"what", "documents", "bytes", "tokens", "total_bytes", "done"}),
    # what: "train step" …; seconds: float
    "compiled": frozenset({"what", "seconds"}),
    # metrics: {path: number}; not finite ones are written as the strings "nan", "inf", "-inf"
    "step": frozenset({"metrics"}),
    # name: of the validation set
    "evaluation_started": frozenset({"name"}),
    # name: of the validation set; metrics: {path: number}; seconds: float
    "evaluated": frozenset({"name", "metrics", "seconds"}),
    # prompt, text: str; seconds: float
    "sampled": frozenset({"prompt", "text", "seconds"}),
    # kind: "rolling" | "permanent" | "final" | "requested"
    "checkpoint_started": frozenset({"kind"}),
    # kind; path: within the run directory; bytes: int; seconds: float, from snapshot to rename
    "checkpoint_saved": frozenset({"kind", "path", "bytes", "seconds"}),
    # command: "save" | "pause" | "continue" | "evaluate" | "stop"; detail: what was done about it
    "control": frozenset({"command", "detail"}),
    # kind: short word such as "aim", "nan", "checkpoint"; message: str
    "alert": frozenset({"kind", "message"}),
    # level: "info" | "warning" | "error"; message: str
    "log": frozenset({"level", "message"}),
    # status: "finished" | "stopped" | "interrupted" | "failed"; exit_code: int; message: str
    "run_finished": frozenset({"status", "exit_code", "message"}),
}
