"""A run with an average of its parameters: what uses the average, and how to use the parameters instead."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from trainer import RECIPE, edit_manifest, evaluations, trainkit, workplace

from trainkit.checkpoint import restore, store
from trainkit.checkpoint.leaves import named_leaves
from trainkit.errors import TrainkitError
from trainkit.events.tail import read
from trainkit.export.model import export
from trainkit.infer.generator import Request
from trainkit.infer.sampling import Sampling
from trainkit.infer.trained_model import TrainedModel, open_pretrained, open_run

RECIPE = RECIPE.replace("steps = 24", "steps = 4").replace("[sample]", "[sample]\ntemperature = 0.0")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained for four steps that are large, so that the last parameters are far from their mean."""
    place = workplace(tmp_path_factory.mktemp("average"), RECIPE + '[average]\ntype = "mean"\n')
    done = trainkit(place, "run", "tiny.toml", "--plain", "--set", "schedule.warmup=0")
    assert done.returncode == 0, done.stderr
    return place / "runs" / "tiny"


def part(run: Path, name: str) -> dict[str, np.ndarray]:
    """Return the leaves of a part of the last checkpoint, without its name before theirs."""
    info = store.newest(run)
    assert info is not None
    leaves = {leaf: of for leaf, of in info.manifest.leaves.items() if leaf.startswith(f"{name}.")}
    return {
        leaf.removeprefix(f"{name}."): np.asarray(
            restore.restore(info.directory, jax.ShapeDtypeStruct(of.shape, of.dtype), under=leaf)
        )
        for leaf, of in leaves.items()
    }


def same(model: TrainedModel, leaves: dict[str, np.ndarray]) -> bool:
    found = named_leaves(model.model)
    assert found.keys() == leaves.keys()
    return all(np.array_equal(found[name], leaves[name]) for name in leaves)


def test_models_are_opened_and_exported_with_the_average_unless_somebody_asks_for_the_parameters(run: Path) -> None:
    averages, params = part(run, "averages"), part(run, "params")
    assert same(open_run(run), averages) and same(open_run(run, average=True), averages)
    assert same(open_run(run, average=False), params)
    for name, average, leaves in (("mean", None, averages), ("last", False, params)):
        out = run.parent / name
        export(run, None, out, dtype="float32", average=average)
        assert same(open_pretrained(out), leaves)
        assert ("Its weights are the average of the parameters" in (out / "README.md").read_text()) == (name == "mean")
    assert "the evaluations used their average" in (run.parent / "last" / "README.md").read_text()


def test_a_run_can_begin_with_the_average_of_another_one(run: Path, tmp_path: Path) -> None:
    place = run.parent.parent
    settings = [
        "run.name=second", f"run.directory={tmp_path}", f'run.parameters_from="{run}"', "run.average_from=true",
        "train.steps=1", "optimizer.learning_rate=1e-30", "checkpoint.keep_every=1",
    ]  # fmt: skip
    overrides = [word for setting in settings for word in ("--set", setting)]
    done = trainkit(place, "run", "tiny.toml", *overrides, "--plain")
    assert done.returncode == 0, done.stderr
    second, averages = tmp_path / "second", part(run, "averages")
    found = part(second, "params")
    assert found.keys() == averages.keys() and all(np.array_equal(found[name], averages[name]) for name in found)


def test_evaluations_and_samples_are_of_the_average_in_training_and_afterwards(run: Path) -> None:
    (logged,) = evaluations(run).values()
    place = run.parent.parent
    found = [json.loads(trainkit(place, "eval", "tiny", "--json", *flag).stdout) for flag in ([], ["--no-average"])]
    by_average, by_params = (each["metrics"]["held-out"] for each in found)
    assert by_average["validation/held-out/loss"] == logged["validation/held-out/loss"]
    assert by_params["validation/held-out/loss"] != logged["validation/held-out/loss"]
    (sampled,) = (event for event in read(run) if event["type"] == "sampled")
    trained = open_run(run)
    (answer,) = trained.generator().answers(
        [Request(trained.prompt(sampled["prompt"]))], max_tokens=8, sampling=Sampling(temperature=0)
    )
    assert answer.text == sampled["text"]


def test_an_average_that_a_checkpoint_does_not_have_is_refused(run: Path) -> None:
    checkpoint = store.newest(run).directory
    manifest = checkpoint / "manifest.json"
    whole = manifest.read_text()
    try:
        edit_manifest(checkpoint, lambda text: text.replace('"averages.', '"others.'))
        with pytest.raises(TrainkitError, match="the checkpoint has no average of the parameters") as found:
            open_run(run, average=True)
        assert "[average]" in found.value.hint
    finally:
        manifest.write_text(whole)
    done = trainkit(run.parent.parent, "generate", "runs/mean", "the cat", "--average")
    assert done.returncode == 2 and "--average is for runs" in done.stderr
