"""`[[evaluate.metrics]]`: a metric that does not fit the task is refused before anything is tokenised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sample_recipe import TEXT, changed, write

from trainkit.errors import TrainkitError
from trainkit.recipe.sections.task import Task
from trainkit.recipe.spec import type_of
from trainkit.recipe.toml.load import load
from trainkit.recipe.union import members_of
from trainkit.tasks import build
from trainkit.tasks.statistics import Ratio

WRONG = {
    'type = "f1"': 'type = "f1" needs label and predicted, which task.type = "causal-lm" does not predict: no'
    " metric fits it",
    'type = "f2"': 'expected "accuracy"',
    'average = "macro"': 'metrics.0.type is missing: expected "accuracy"',
    'type = "mcc"\nname = "a/b"': 'metrics.0.name = "a/b": use letters',
    'type = "mcc"\n[[evaluate.metrics]]\ntype = "f1"\nname = "mcc"': 'two metrics are named "mcc"',
}


@pytest.mark.parametrize("keys", WRONG)
def test_a_metric_that_cannot_be_computed_is_an_error_of_its_line(tmp_path: Path, keys: str) -> None:
    with pytest.raises(TrainkitError) as raised:
        load(write(tmp_path, f"{TEXT}\n[[evaluate.metrics]]\n{keys}\n"))
    assert WRONG[keys] in str(raised.value), raised.value
    assert "sample.toml:" in str(raised.value)


def test_a_task_with_classes_says_that_they_are_missing(tmp_path: Path) -> None:
    document = 'path = "a.jsonl"\ndocument = { type = "labelled", texts = ["text"] }'
    text = changed(
        ('type = "python-stdlib"', document),
        ("held_out = 0.1", 'held_out = 0.1\nencoding = { type = "pad" }'),
        ('type = "gpt2"', 'type = "bert"'),
        ('[sample]\nevery = 10\nprompts = ["def main("]\n', ""),
        ("train = { vocab_size = 300 }", 'path = "t"'),
    )
    text += '[task]\ntype = "sequence-classification"\n'
    with pytest.raises(TrainkitError) as raised:
        load(write(tmp_path, text))
    assert "task.classes is missing" in str(raised.value)
    assert "mistakes" not in str(raised.value), "the class that stands in for the missing ones is no mistake"


@pytest.mark.parametrize("spec", members_of(Task), ids=type_of)
def test_a_task_s_spec_names_what_an_evaluation_reports(spec: type) -> None:
    task = build(spec.model_validate({"type": type_of(spec)}))
    metrics = {name: Ratio(np.float32(1), np.float32(1)) for name in task.metrics}
    # exact match and F1 are those of the texts that an evaluation makes of predicted answers
    of_texts = {"exact_match", "f1"} if spec.text_report else set()
    assert set(task.report(loss=1.0, metrics=metrics, targets=1, bytes=1)) == spec.reports - of_texts
