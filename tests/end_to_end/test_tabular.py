"""trainkit trains what is not text: a plugin adds a task of regression on tables, a multilayer perceptron, a metric."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from pyarrow import parquet
from trainer import arrays, killed_at, trainkit

from trainkit import models
from trainkit.cli.explain import explain
from trainkit.cli.schema import schema
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.batches.evaluation_set import EvalSet
from trainkit.data.batches.layout import longest_layout
from trainkit.data.cache import build as caches
from trainkit.errors import TrainkitError
from trainkit.evaluation.evaluator import Evaluator
from trainkit.events.log import EventLog
from trainkit.events.tail import read
from trainkit.parallel import mesh
from trainkit.recipe import Recipe
from trainkit.recipe.toml.load import load
from trainkit.tasks import build as build_task
from trainkit.tasks.metric import build_metrics
from trainkit.train.state import init

PLUGIN = Path(__file__).parents[2] / "docs" / "examples" / "tabular.py"
RECIPE = """
schema = 1
[plugins]
files = ["tabular.py"]
[run]
name = "table"
[model]
type = "mlp"
inputs = 3
hidden = [16]
[task]
type = "regression"
[data]
held_out = 0.1
[[data.train]]
path = "rows.csv"
document = { type = "columns", features = ["a", "b", "c"], target = "y" }
[train]
steps = 120
batch_size = 32
[optimizer]
learning_rate = 3e-2
[checkpoint]
keep_every = 40
[evaluate]
every = 60
predictions = true
[[evaluate.metrics]]
type = "r-squared"
[[evaluate.metrics]]
type = "within"
tolerance = 0.3
[track]
aim = false
"""
NAMES = ("a", "b", "c", "y")


def rows(count: int) -> list[list[float]]:
    """A linear function of three numbers with noise of a tenth of their spread."""
    chance = random.Random(0)
    found = []
    for _ in range(count):
        a, b, c = (chance.gauss(0, 1) for _ in range(3))
        found.append([round(number, 4) for number in (a, b, c, 2 * a - b + 0.5 * c + chance.gauss(0, 0.1))])
    return found


def workplace(directory: Path, recipe: str = RECIPE, *, count: int = 500) -> Path:
    directory.mkdir(exist_ok=True)
    lines = [",".join(NAMES), *(",".join(map(str, row)) for row in rows(count))]
    (directory / "rows.csv").write_text("\n".join(lines) + "\n")
    (directory / "tabular.py").write_bytes(PLUGIN.read_bytes())
    (directory / "table.toml").write_text(recipe)
    return directory


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    directory = workplace(tmp_path_factory.mktemp("tabular") / "here")
    done = trainkit(directory, "run", "table.toml", "--plain")
    assert done.returncode == 0, done.stderr
    return directory, done.stdout


def test_a_run_explains_a_linear_function_and_reports_the_task_s_metrics_by_name(trained: tuple[Path, str]) -> None:
    directory, output = trained
    events = list(read(directory / "runs" / "table"))
    last = [event["metrics"] for event in events if event["type"] == "evaluated"][-1]
    assert last["validation/held-out/r_squared"] > 0.95 and last["validation/held-out/mean_absolute_error"] < 0.5
    steps = [event["metrics"] for event in events if event["type"] == "step"]
    assert last["validation/held-out/within"] > 0.5
    assert steps[-1]["train/mean_absolute_error"] < 0.5 < steps[0]["train/mean_absolute_error"]
    assert "throughput/samples_per_second" in steps[-1] and "throughput/tokens_per_second" not in steps[-1]
    assert "r squared" in output and "mean absolute error" in output and "steps of 32 examples" in output


def test_every_evaluation_writes_its_metrics_and_each_prediction_with_its_row(trained: tuple[Path, str]) -> None:
    directory, _ = trained
    results = directory / "runs" / "table" / "results"
    assert {path.name for path in results.iterdir()} == {
        f"held-out-{step}.{kind}" for step in (60, 120) for kind in ("json", "parquet")
    }
    metrics = json.loads((results / "held-out-120.json").read_text())["metrics"]
    table = parquet.read_table(results / "held-out-120.parquet").to_pydict()
    data = rows(500)
    assert set(table["source"]) == {str(directory / "rows.csv")} and len(set(table["row"])) == len(table["row"]) > 20
    assert table["target"] == [np.float32(data[row][3]) for row in table["row"]]
    error = np.array(table["predicted"]) - np.array(table["target"])
    assert metrics["validation/held-out/within"] == np.mean(np.abs(error) <= 0.3)


def test_eval_gives_what_the_run_s_own_evaluation_gave_and_evaluates_other_files(trained: tuple[Path, str]) -> None:
    directory, _ = trained
    logged = [event for event in read(directory / "runs" / "table") if event["type"] == "evaluated"]
    done = trainkit(directory, "eval", "table", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"step": 120, "metrics": {"held-out": logged[-1]["metrics"]}}
    (directory / "other.csv").write_text("a,b,c,y\n1,2,3,1.5\n2,0,1,4.5\n3,1,0,5\n")
    changed = ("--set", 'evaluate.metrics=[{type="mean-squared-error"}]')
    done = trainkit(directory, "eval", "table/40", "--data", "other.csv", "--predictions", *changed)
    assert done.returncode == 0 and "other at step 40" in done.stdout and "mean_squared_error" in done.stdout, done
    table = parquet.read_table(directory / "runs" / "table" / "results" / "other-40.parquet").to_pydict()
    assert table["row"] == [0, 1, 2] and table["target"] == [1.5, 4.5, 5.0]
    for wrong, told in (
        (("--set", "train.steps=3"), "set only keys of [evaluate]"),
        (("--split", "test"), "is for a run whose data is a data set with splits"),
        (("--data", "missing.csv"), "missing.csv"),
    ):
        refused = trainkit(directory, "eval", "table", *wrong)
        assert refused.returncode != 0 and told in refused.stderr, refused.stderr


def test_a_killed_run_resumes_to_the_same_bits(trained: tuple[Path, str], tmp_path: Path) -> None:
    directory = workplace(tmp_path / "killed")
    killed_at("checkpoint_saved 40", directory, "run", "table.toml", "--plain", run="table")
    done = trainkit(directory, "resume", "runs/table/40", "--plain")
    assert done.returncode == 0, done.stderr
    assert arrays(directory / "runs" / "table", 120) == arrays(trained[0] / "runs" / "table", 120)


def test_commands_for_text_refuse_the_run_by_its_model(trained: tuple[Path, str]) -> None:
    directory, _ = trained
    for arguments in (["generate", "runs/table", "a"], ["export", "runs/table", "out"]):
        refused = trainkit(directory, *arguments)
        assert refused.returncode != 0 and 'type = "mlp" (plain)' in refused.stderr, refused.stderr


def test_plan_explain_and_schema_know_the_plugin(trained: tuple[Path, str]) -> None:
    directory, _ = trained
    planned = trainkit(directory, "plan", "table.toml")
    assert planned.returncode == 0 and "32 examples" in planned.stdout and "81" in planned.stdout, planned.stderr
    assert "Units of each hidden layer." in explain(directory / "table.toml", "model.hidden", [])
    assert "MLP" in {spec["title"] for spec in json.loads(schema(directory / "table.toml"))["$defs"].values()}


def opened(directory: Path, recipe: str = RECIPE, *, count: int = 500) -> Recipe:
    """The recipe of a workplace, with the paths of its data in full."""
    workplace(directory, recipe, count=count)
    paths = (f"data.train.0.path={directory}/rows.csv", f"data.cache={directory}/cache")
    return load(directory / "table.toml", paths).recipe


def built(recipe: Recipe, key: jax.Array) -> Any:
    return models.build(recipe.model, vocab_size=0, sequence_length=1, implementation="xla", key=key)


def test_the_spec_counts_the_parameters_of_the_model_and_the_layout_is_that_of_batches(tmp_path: Path) -> None:
    recipe = opened(tmp_path)
    made = built(recipe, jax.random.key(0))
    names = jax.tree.leaves(models.leaf_names(made))
    shapes = {name: leaf.shape for name, leaf in zip(names, jax.tree.leaves(made), strict=True)}
    assert shapes == recipe.model.leaf_shapes(vocab_size=0, sequence_length=1)
    data = TrainSet(caches.build(recipe), recipe)
    assert data.layouts() == {1: longest_layout(recipe.data, batch_size=32, vocab_size=0)}


def test_an_evaluation_over_eight_devices_and_a_ragged_last_batch_is_that_of_one(tmp_path: Path) -> None:
    recipe = opened(
        tmp_path,
        RECIPE.replace("held_out = 0.1\n", "").replace("[evaluate]\nevery = 60\npredictions = true\n", ""),
        count=45,
    )
    cache, task, metrics = caches.build(recipe), build_task(recipe.task), build_metrics(recipe.evaluate.metrics, ())
    identity, compute = optax.identity(), jnp.dtype("float32")
    state = init(jax.random.key(0), model=partial(built, recipe), optimizer=identity, compute=compute)
    reports = []
    for devices in (1, 8):
        (tmp_path / str(devices)).mkdir()
        log, on = EventLog(tmp_path / str(devices), attempt=1), mesh.make_mesh(data=devices, fsdp=1)
        data = EvalSet(cache.train, recipe.data.train[0], recipe.data, cache.directory, batch_size=16, at_once=8)
        settings: dict[str, Any] = {"batch_size": 8, "task": task, "metrics": metrics, "compute": compute, "mesh": on}
        evaluate = Evaluator({"all": data}, log=log, interrupted=lambda: False, **settings)
        evaluate(jax.device_put(state, mesh.replicated_sharding(on)), 1)
        log.close()
        reports += [event["metrics"] for event in read(tmp_path / str(devices)) if event["type"] == "evaluated"]
    model = built(recipe, jax.random.fold_in(jax.random.key(0), 0))
    table = np.array(rows(45), np.float32)
    error = np.asarray(model(table[:, :3])) - table[:, 3]
    by_hand = {
        "loss": np.mean(error**2),
        "r_squared": 1 - np.mean(error**2) / np.var(table[:, 3]),
        "mean_absolute_error": np.mean(np.abs(error)),
        "within": np.mean(np.abs(error) <= 0.3),
    }
    for report in reports:
        assert report == pytest.approx({f"validation/all/{name}": x for name, x in by_hand.items()}, rel=1e-4)


WRONG = {
    "documents": ('document = { type = "columns", features = ["a", "b", "c"], target = "y" }', "", "tokenizer"),
    "model": (
        'type = "mlp"\ninputs = 3\nhidden = [16]',
        'type = "gpt2"\nlayers = 1\nhidden = 16\nheads = 2',
        'does not train model.type = "gpt2", whose kind is causal: models that fit are mlp',
    ),
    "sizes": ("inputs = 3", "inputs = 4", "model.inputs = 4, but document.features are 3"),
    "metric": (
        'type = "within"',
        'type = "f1"',
        'needs label and predicted, which task.type = "regression" does not predict: metrics that fit are'
        ' "mean-absolute-error", "mean-squared-error", "r-squared", "pearson", "spearman", "within"',
    ),
    "metric's name": (
        'type = "r-squared"',
        'type = "mean-absolute-error"',
        'task.type = "regression" reports mean_absolute_error already',
    ),
    "twice": ('features = ["a", "b", "c"]', 'features = ["a", "y", "c"]', "'y' is named twice"),
    "tokens": ("steps = 120", "tokens = 1000", "train.tokens counts tokens, and the documents have none"),
    "adapter": ("[task]", '[adapter]\ntype = "lora"\n[task]', "[adapter] is for transformers"),
    "export": ("[task]", "[export]\n[task]", 'cannot load model.type = "mlp" (plain)'),
    "sample": (
        "[task]",
        '[sample]\nprompts = ["a"]\n[task]',
        'model.type = "mlp" (plain) with task.type = "regression" cannot do',
    ),
    "fp8": ("[task]", '[precision]\ncompute = "fp8"\n[task]', 'precision.compute = "fp8" is for transformers'),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_an_error_of_the_recipe(tmp_path: Path, change: tuple[str, str, str]) -> None:
    before, after, told = change
    assert RECIPE.count(before) == 1
    with pytest.raises(TrainkitError) as raised:
        opened(tmp_path, RECIPE.replace(before, after))
    assert told in str(raised.value) and "table.toml" in str(raised.value)
    assert not (tmp_path / "cache").exists()


def test_documents_of_text_need_a_tokenizer_and_a_length(tmp_path: Path) -> None:
    text = """schema = 1
[model]
type = "gpt2"
layers = 1
hidden = 16
heads = 2
[data]
[[data.train]]
path = "a.txt"
[train]
steps = 1
batch_size = 1
[optimizer]
learning_rate = 1e-3
"""
    with pytest.raises(TrainkitError) as raised:
        opened(tmp_path, text)
    told = str(raised.value)
    assert "section [tokenizer] is missing, needed because the documents are text" in told
    assert "data.sequence_length is missing, needed because the documents are text" in told
