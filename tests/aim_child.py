"""Reads a repository back with Aim's own SDK, in a process of its own: `python aim_child.py REPOSITORY` prints JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from aim import Repo, Run
from aim.sdk.sequences.text_sequence import Texts


def told(run: Run) -> dict[str, Any]:
    metrics = {}
    for metric in run.metrics():
        steps, (values, *_) = metric.data.numpy()
        metrics[metric.name] = [metric.context.to_dict(), list(map(int, steps)), list(map(str, values))]
    texts = {}
    for name, context, _ in run.iter_sequence_info_by_type(Texts.allowed_dtypes()):
        sequence = run.get_text_sequence(name, context)
        steps, samples = sequence.values.sparse_list() if sequence else ([], [])
        texts[f"{name} {context.to_dict()}"] = [[step, text.data] for step, text in zip(steps, samples, strict=True)]
    records = run.get_log_records()
    return {
        "hash": run.hash,
        "name": run.name,
        "experiment": run.experiment,
        "ended": run.end_time is not None,
        "parameters": {key: run.get(key) for key in ("recipe", "plan", "run", "status")},
        "metrics": metrics,
        "texts": texts,
        "messages": [[r.json()["log_level"], r.message] for r in records.values.values_list()] if records else [],
    }


if __name__ == "__main__":
    print(json.dumps([told(run) for run in Repo.from_path(sys.argv[1]).iter_runs()]))
