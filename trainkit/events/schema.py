"""The kinds of event and their fields. One event is one JSON object on one line of `events.jsonl`.

Every event has `type`, `t` (Unix seconds), `step` (updates done when it happened) and `attempt` (from 1). The first
event of an attempt is `run_started`, which also carries `schema`; it is written again if the attempt has to continue
from further back than it announced. Readers ignore kinds and fields that they do not know.

Metric names are paths, the same here, in the dashboard, in Aim and in the docs: `train/loss`, `validation/NAME/loss`,
`validation/NAME/perplexity`, `validation/NAME/bits_per_byte`, `optimizer/learning_rate`, `gradients/norm`,
`parameters/norm`, `updates/norm`, `throughput/tokens_per_second`, `throughput/samples_per_second`,
`throughput/model_tflops` (10^12 analytic FLOP/s), `throughput/mfu` (their share of the devices' peak, if known),
`time/step` and its parts `time/data_wait`, `time/dispatch`, `time/device`; between the previous step and this one
`time/evaluation`, `time/checkpoint`; `memory/host` (bytes), `memory/device/0` (bytes; the peak so far is
`memory/device_peak/0`), `power/device/0` (watts), `temperature/device/0` (degrees Celsius), `utilization/device/0`
(share of the time), `host/cpu` (cores that the trainer uses), `host/core/0` (share of the time in use by anyone); with
`[guard]` `guard/skipped`, `guard/skipped_in_a_row`, `guard/score`, `guard/drift`, and `guard/left_out` of steps left
out.
"""

from __future__ import annotations

from types import NoneType
from typing import Any, TypeAlias

SCHEMA = 1

Event: TypeAlias = dict[str, Any]
Types: TypeAlias = tuple[type, ...]

_TEXT: Types = (str,)
_WHOLE: Types = (int,)
_NUMBER: Types = (int, float)
_OBJECT: Types = (dict,)
_LIST: Types = (list,)
_MAYBE: Types = (NoneType,)
#: Numbers in fields are at least 0 and below this, so that a float holds them exactly; times are before the year 10000.
_LIMIT, _LAST_SECOND = 2**53, 253_402_300_800

#: The fields of every event: its kind, Unix seconds, updates done when it happened, the attempt's number.
COMMON: dict[str, Types] = {"type": _TEXT, "t": _NUMBER, "step": _WHOLE, "attempt": _WHOLE}
#: kind -> its own fields besides those, and the JSON types of each.
FIELDS: dict[str, dict[str, Types]] = {
    "run_started": {
        "schema": _WHOLE,
        "name": _TEXT,
        "pid": _WHOLE,
        # Unix seconds; distinguishes a living trainer from a reused pid
        "process_started": _NUMBER + _MAYBE,
        "host": _TEXT,
        # fingerprint
        "recipe": _TEXT,
        # the checkpoint's step
        "resumed_from": _WHOLE + _MAYBE,
        # {package: version}
        "versions": _OBJECT,
        # [{command, argument, step, attempt}], those of earlier attempts that this one will repeat
        "orders": _LIST,
    },
    # plan: Plan.summary(), plain JSON; devices: [str]
    "planned": {"total_steps": _WHOLE, "plan": _OBJECT, "devices": _LIST},
    # what: set name; documents, bytes, tokens: so far
    "cache_progress": {
        "what": _TEXT,
        "documents": _WHOLE,
        "bytes": _WHOLE,
        "tokens": _WHOLE,
        "total_bytes": _WHOLE + _MAYBE,
        "done": (bool,),
    },
    # what: "train step", or the kind of work in the loop that compiled: "evaluation" …
    "compiled": {"what": _TEXT, "seconds": _NUMBER},
    # metrics: {path: number}; not finite ones are written as the strings "nan", "inf", "-inf"
    "step": {"metrics": _OBJECT},
    # name: of the validation set
    "evaluation_started": {"name": _TEXT},
    "evaluated": {"name": _TEXT, "metrics": _OBJECT, "seconds": _NUMBER},
    "sampled": {"prompt": _TEXT, "text": _TEXT, "seconds": _NUMBER},
    # values: {path: {"low": float, "high": float, "counts": [int]}}: in bins of equal width from low to high, at most
    # 512; the paths are not those of metrics
    "distributions": {"values": _OBJECT},
    # values: {path: [number]}, with the number of each layer of a parameter, or one number outside the layers: such as
    # gradients/l2/blocks.mlp_in.weight
    "statistics": {"values": _OBJECT},
    # kind: "rolling" | "permanent" | "final" | "requested"
    "checkpoint_started": {"kind": _TEXT},
    # path: within the run directory; seconds: from snapshot to rename
    "checkpoint_saved": {"kind": _TEXT, "path": _TEXT, "bytes": _WHOLE, "seconds": _NUMBER},
    # path: within the run directory; format: "hf" | "peft"; difference: the largest of a logit to the checkpoint's, as
    # a share of the largest; seconds: of the process that exported
    "exported": {"path": _TEXT, "format": _TEXT, "bytes": _WHOLE, "difference": _NUMBER, "seconds": _NUMBER},
    # command: see commands.COMMANDS; argument: the prompt of "sample", the factor of "rate"; detail: what the trainer
    # did; total_steps: of the whole run from here on, None where that has not changed
    "control": {
        "command": _TEXT,
        "argument": _TEXT + _NUMBER + _MAYBE,
        "detail": _TEXT,
        "total_steps": _WHOLE + _MAYBE,
    },
    # the run went back to an earlier step; left_out: the steps that no attempt computes from now on; message: why
    "rolled_back": {"left_out": _LIST, "message": _TEXT},
    # kind: short word such as "aim", "nan", "checkpoint"
    "alert": {"kind": _TEXT, "message": _TEXT},
    # level: "info" | "warning" | "error"
    "log": {"level": _TEXT, "message": _TEXT},
    # status: "finished" | "stopped" | "interrupted" | "failed"; of an attempt that was refused, that of the one before,
    # which is "crashed" if it recorded none
    "run_finished": {"status": _TEXT, "exit_code": _WHOLE, "message": _TEXT},
}

#: kind -> fields that it may have beside those. Of a sample, tasks write them where it is more than text.
OPTIONAL: dict[str, dict[str, Types]] = {
    # forgotten: [{command, argument, step, attempt}], those that came after the step of `resumed_from`, or right at it
    # and are not in its checkpoint, and which this attempt omits because a person asked for it
    "run_started": {"forgotten": _LIST},
    # image: path within the run directory; predictions: [[label, probability]], the likeliest first; expected: label
    "sampled": {"image": _TEXT, "predictions": _LIST, "expected": _TEXT},
    # memory: {category: bytes of one device}, from the compiler; of work in the loop count: of programs; functions:
    # [name]; cause: which arguments have changed, where it had compiled all it needs
    "compiled": {"memory": _OBJECT, "count": _WHOLE, "functions": _LIST, "cause": _TEXT},
    # attention: its implementation; attention_reason: why no faster one
    "planned": {"attention": _TEXT, "attention_reason": _TEXT},
}
_OF_KIND = {kind: fields | OPTIONAL.get(kind, {}) for kind, fields in FIELDS.items()}

#: The errors that an event may raise whose fields are well formed but which no trainer wrote.
FOREIGN = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError)


def well_formed(event: object) -> bool:
    """Return whether a value has the fields of every event, with types that some version of this schema allows.

    A `run_started` must also say from which step it begins, because that decides which earlier events count.
    """
    if not isinstance(event, dict):
        return False
    kind = event.get("type")
    of_kind = _OF_KIND.get(kind, {}) if isinstance(kind, str) else {}
    return (
        all(_fits(event.get(field), types) for field, types in COMMON.items())
        and event["t"] < _LAST_SECOND
        and (kind != "run_started" or "resumed_from" in event)
        and all(_fits(event[field], types) for field, types in of_kind.items() if field in event)
    )


def _fits(value: object, types: Types) -> bool:
    return isinstance(value, types) and (not isinstance(value, (int, float)) or 0 <= value < _LIMIT)
