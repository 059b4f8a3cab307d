"""[mup]: rates and random weights that follow the width (Yang et al. 2022)."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from places import ROOT
from sample_recipe import changed, write

from trainkit import models
from trainkit.errors import TrainkitError
from trainkit.recipe.optimizers.adam import AdamW
from trainkit.recipe.optimizers.first_order import Sgd
from trainkit.recipe.recipe import Recipe
from trainkit.recipe.sections.mup import rate_factor, weight_factor
from trainkit.recipe.toml.load import load

sys.path.insert(0, str(ROOT / "scripts"))

from coordinate_check import movements

MUP = "[mup]\nbase_width = 32\n"
UNTIED = ("heads = 4", "heads = 4\ntied = false")
LAMB = 'type = "lamb"\nlearning_rate = 1e-3'
SHORT = ("sequence_length = 64", "sequence_length = 16")


def recipe_of(directory: Path, width: int, *, mup: bool) -> Recipe:
    text = changed(
        SHORT, ("learning_rate = 1e-3", "learning_rate = 1e-2"), ("heads = 4", f"heads = {width // 8}\ntied = false"),
        ("hidden = 32", f"hidden = {width}"), ("warmup = 0.02", "warmup = 0"), ("layers = 2", "layers = 1"),
    )  # fmt: skip
    return load(write(directory, text + (MUP if mup else ""))).recipe


def test_outputs_move_alike_at_every_width_under_mup_alone(tmp_path: Path) -> None:
    """The coordinate check: in the first steps the logits of a wide model move further in the standard form."""
    cases = ((32, True), (64, True), (128, True), (128, False))
    moved = [np.array(movements(recipe_of(tmp_path, width, mup=mup), steps=4)) for width, mup in cases]
    for wider in moved[1:3]:
        assert (wider < 1.5 * moved[0]).all() and (wider > moved[0] / 1.5).all(), moved
    assert moved[3][1] > 3 * moved[0][1], moved


def test_learning_rates_follow_the_column_of_the_rule(tmp_path: Path) -> None:
    shapes = {"token_embedding": (9, 64), "blocks.mlp_in.weight": (2, 64, 96), "final_norm.weight": (64,)}
    names = {**shapes, "output": (9, 64)}
    adam, sgd = (
        {name: rate_factor(rule, name, shape, wider=4.0) for name, shape in names.items()}
        for rule in (AdamW(learning_rate=1.0), Sgd(type="sgd", learning_rate=1.0))
    )
    assert list(adam.values()) == [1.0, 0.25, 1.0, 0.25]
    assert list(sgd.values()) == [4.0, 1.0, 4.0, 0.25]


def test_a_wider_model_begins_with_smaller_hidden_and_output_weights(tmp_path: Path) -> None:
    build = partial(models.build, vocab_size=64, sequence_length=16, implementation="xla", key=jax.random.key(0))
    plain = build(recipe_of(tmp_path, 64, mup=False).model)
    scaled = models.scale(plain, partial(weight_factor, wider=4.0))
    for of, factor in (
        (lambda m: m.output, 0.25), (lambda m: m.blocks.mlp_in.weight, 0.5), (lambda m: m.token_embedding, 1.0),
        (lambda m: m.blocks.attention_norm.weight, 1.0),
    ):  # fmt: skip
        np.testing.assert_allclose(of(scaled), factor * of(plain), rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ((), "model.tied = true: [mup] gives the output matrix smaller weights"),
        ((UNTIED, ("learning_rate = 1e-3", LAMB)), '[mup] has no published scaling for optimizer.type = "lamb"'),
        ((UNTIED, ("[track]", "[adapter]\n\n[track]")), "this run begins with [adapter]: leave [mup] out"),
    ],
)
def test_mup_is_refused_where_no_scaling_is_published(
    tmp_path: Path, changes: tuple[tuple[str, str], ...], problem: str
) -> None:
    with pytest.raises(TrainkitError) as found:
        load(write(tmp_path, changed(*changes) + MUP))
    assert problem in found.value.problem and "sample.toml:" in found.value.where
