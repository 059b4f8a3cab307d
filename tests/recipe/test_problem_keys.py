"""`task.problem`: keys and labels that do not fit it are refused before anything is tokenised."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_recipe import TEXT, changed, write

from trainkit.errors import TrainkitError
from trainkit.recipe.recipe import Recipe
from trainkit.recipe.toml.load import load

NUMBER = 'label_type = "number"'
SET = 'label_type = "classes", classes = ["a", "b"]'


def recipe_of(directory: Path, document: str, task: str, metrics: str = "") -> Recipe:
    text = changed(
        ('type = "python-stdlib"', f'path = "a.jsonl"\ndocument = {{ type = "labelled", {document} }}'),
        ("held_out = 0.1", 'held_out = 0.1\nencoding = { type = "pad" }'),
        ('type = "gpt2"', 'type = "bert"'),
        ('[sample]\nevery = 10\nprompts = ["def main("]\n', ""),
        ("train = { vocab_size = 300 }", 'path = "t"'),
    )
    assert text != TEXT
    text += f'[task]\ntype = "sequence-classification"\n{task}\n'
    return load(
        write(directory, text + "".join(f"[[evaluate.metrics]]\n{keys}\n" for keys in metrics.split(";") if keys))
    ).recipe


@pytest.mark.parametrize(
    ("document", "task", "problem"),
    [
        (
            NUMBER,
            "",
            '"multi-class" learns from labels of type "class", and document.label_type = "number": change it,',
        ),
        (NUMBER, "", 'or write task.problem = "regression"'),
        (SET, 'problem = "regression"', 'or write task.problem = "multi-label"'),
        ("", 'problem = "multi-label"\nclasses = 3', 'type "classes" or "flags", and document.label_type = "class"'),
        (NUMBER, 'problem = "regression"\nclasses = 3', "task.classes changes nothing with task.problem"),
        (NUMBER, 'problem = "regression"\nlabel_smoothing = 0.1', "task.label_smoothing changes nothing"),
        (SET, 'problem = "multi-label"\nlabel_smoothing = 0.1', 'leave it out, or use "multi-class"'),
        (
            SET,
            "positive_weights = [1.0, 2.0]",
            'task.positive_weights changes nothing with task.problem = "multi-class"',
        ),
        (SET, 'problem = "multi-label"\npositive_weights = [1.0]', "task.positive_weights has 1 number for 2 classes"),
        (SET, 'problem = "multi-label"\nclass_weights = [1.0]', "task.class_weights has 1 number for 2 classes"),
        ("", "classes = 3\nlabel_smoothing = 1.0", "less than 1"),
    ],
)
def test_keys_and_labels_that_do_not_fit_the_problem_are_refused(
    tmp_path: Path, document: str, task: str, problem: str
) -> None:
    with pytest.raises(TrainkitError) as raised:
        recipe_of(tmp_path, document, task)
    assert problem in str(raised.value), raised.value
    assert "sample.toml" in str(raised.value)


@pytest.mark.parametrize(
    ("document", "problem", "width", "names", "reports"),
    [
        (NUMBER, "regression", 1, (), {"loss"}),
        (NUMBER + ', label = ["x", "y"]', "regression", 2, ("x", "y"), {"loss"}),
        (NUMBER + ", label_width = 2", "regression", 2, ("0", "1"), {"loss"}),
        (SET, "multi-label", 2, ("a", "b"), {"loss"}),
        ('label_type = "flags", label = ["x", "y", "z"]', "multi-label", 3, ("x", "y", "z"), {"loss"}),
        ('classes = ["x", "y"]', "multi-class", 2, ("x", "y"), {"loss", "accuracy"}),
    ],
)
def test_the_head_follows_from_the_labels(
    tmp_path: Path, document: str, problem: str, width: int, names: tuple[str, ...], reports: set[str]
) -> None:
    recipe = recipe_of(tmp_path, document, f'problem = "{problem}"')
    assert (recipe.model.head.kind, recipe.model.head.width) == ("sequence", width)
    assert recipe.task.class_names(recipe.data) == names
    assert recipe.task.reports_on(recipe.data.train, recipe.data) == reports


def test_a_metric_may_have_a_name_that_the_task_reports_of_other_problems_alone(tmp_path: Path) -> None:
    metric = 'type = "subset-accuracy"\nname = "accuracy"'
    assert recipe_of(tmp_path, SET, 'problem = "multi-label"', metric).evaluate.metrics[0].label == "accuracy"
    with pytest.raises(TrainkitError, match="reports accuracy already"):
        recipe_of(tmp_path, 'classes = ["x", "y"]', "", 'type = "mcc"\nname = "accuracy"')
