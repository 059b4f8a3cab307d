"""Reads a repository back with Aim's own SDK, in a process of its own: `python aim_child.py REPOSITORY [QUERY]` prints
JSON of its runs, or of those that the query selects."""

from __future__ import annotations

import json
import sys
from typing import Any

from aim import Repo, Run
from aim.sdk.sequences.distribution_sequence import Distributions
from aim.sdk.sequences.image_sequence import Images
from aim.sdk.sequences.text_sequence import Texts


def objects(run: Run, kind: Any, get: Any, tell: Any) -> dict[str, Any]:
    found = {}
    for name, context, _ in run.iter_sequence_info_by_type(kind.allowed_dtypes()):
        sequence = get(name, context)
        steps, values = sequence.values.sparse_list() if sequence else ([], [])
        found[f"{name} {context.to_dict()}"] = [[step, tell(it)] for step, it in zip(steps, values, strict=True)]
    return found


def told(run: Run) -> dict[str, Any]:
    metrics = {}
    for metric in run.metrics():
        steps, (values, *_) = metric.data.numpy()
        metrics[metric.name] = [metric.context.to_dict(), list(map(int, steps)), list(map(str, values))]
    records = run.get_log_records()
    return {
        "hash": run.hash,
        "name": run.name,
        "experiment": run.experiment,
        "ended": run.end_time is not None,
        "parameters": {key: run.get(key) for key in ("recipe", "plan", "run", "status", "sweep")},
        "metrics": metrics,
        "texts": objects(run, Texts, run.get_text_sequence, lambda text: text.data),
        "images": objects(run, Images, run.get_image_sequence, lambda image: [*image.size, image.caption]),
        "distributions": objects(
            run, Distributions, run.get_distribution_sequence, lambda it: [*it.range, it.weights.tolist()]
        ),
        "artifacts": {
            name: {key: it.storage[key] for key in ("path", "uri", "step", "kind", "bytes", "metrics")}
            for name, it in run.artifacts.items()
        },
        "messages": [[r.json()["log_level"], r.message] for r in records.values.values_list()] if records else [],
    }


if __name__ == "__main__":
    repository, *query = sys.argv[1:]
    repo = Repo.from_path(repository)
    runs = [found.run for found in repo.query_runs(*query, report_mode=0).iter_runs()] if query else repo.iter_runs()
    print(json.dumps([told(run) for run in runs]))
