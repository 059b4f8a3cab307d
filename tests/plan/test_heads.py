"""A plan of a model with a head of classes has the parameters, the bytes and the FLOPs of the model that is built."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit import models
from trainkit.plan import Devices, Plan, make_plan
from trainkit.recipe import Recipe

VOCAB, LENGTH = 31, 12
ENCODERS = ("bert", "roberta", "distilbert", "deberta-v3", "modernbert")
DECODERS = {"gpt2": {}, "llama": {"kv_heads": 1}, "gemma3": {"head_width": 8, "kv_heads": 1}}
ENCODER_DECODERS = {"t5": {"decoder_start": 0}, "bart": {"decoder_start": 2}}
PAIR = {"type": "preference", "prompt": "{a}", "chosen": "{b}", "rejected": "{c}"}
TASKS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "sequence-classification": ({"classes": 3}, {"type": "labelled"}, (*ENCODERS, *DECODERS, *ENCODER_DECODERS)),
    "token-classification": ({"classes": 4}, {"type": "tagged"}, ENCODERS),
    "reward": ({}, PAIR, (*ENCODERS, *DECODERS)),
}


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    task = draw(st.sampled_from(sorted(TASKS)))
    keys, document, families = TASKS[task]
    family = draw(st.sampled_from(families))
    heads = draw(st.integers(1, 3))
    model = {"type": family, "layers": draw(st.integers(2, 3)), "heads": heads, "hidden": heads * 8}
    more = (DECODERS | ENCODER_DECODERS).get(family, {})
    return Recipe.model_validate(
        {
            "schema": 1,
            "model": {**model, "intermediate": draw(st.sampled_from([20, 40])), **more}
            | ({"position_buckets": 4} if family == "deberta-v3" else {}),
            "tokenizer": {"train": {"vocab_size": 300}},
            "task": {"type": task, **keys},
            "data": {
                "sequence_length": LENGTH,
                "encoding": {"type": "pad", "eos": family not in DECODERS},
                "train": ({"type": "files", "path": "rows.jsonl", "document": document},),
            },
            "train": {"steps": 1, "batch_size": 4},
            "optimizer": {"learning_rate": 1e-3},
        }
    )


def planned(recipe: Recipe) -> Plan:
    return make_plan(recipe, devices=Devices(count=1), vocab_size=VOCAB, data=None)


def products(jaxpr: Any) -> int:
    """Return the FLOPs of all products of matrices, those of a scan as often as it repeats them."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
            total += 2 * int(np.prod(out)) * int(np.prod([left[axis] for axis in contracted]))
        repeated = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        inner = (value for value in equation.params.values() if hasattr(value, "eqns") or hasattr(value, "jaxpr"))
        total += repeated * sum(products(getattr(value, "jaxpr", value)) for value in inner)
    return total


def scores(recipe: Recipe, model: Any) -> jax.Array:
    tokens = jnp.zeros((1, LENGTH), jnp.int32)
    hidden, _ = model.hidden_and_penalty(tokens, segments_BT=jnp.ones_like(tokens))
    return model.scores(hidden, jnp.ones_like(tokens))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(recipes())
def test_parameters_bytes_and_flops_of_a_head_with_classes_are_those_of_the_model(recipe: Recipe) -> None:
    spec, plan = recipe.model, planned(recipe)
    built = jax.eval_shape(
        lambda key: models.build(spec, vocab_size=VOCAB, sequence_length=LENGTH, implementation="blockwise", key=key),
        jax.random.key(0),
    )
    leaves = jax.tree.leaves(built)
    assert (
        plan.parameters == plan.trainable == sum(leaf.size for leaf in leaves) == sum(plan.parameters_by_part.values())
    )
    assert plan.bytes["parameters"] == sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    forward = products(jax.make_jaxpr(lambda model: scores(recipe, model))(built).jaxpr)
    # a plan has whole numbers, some of them for each layer
    assert plan.flops_per_token <= 3 * forward / LENGTH
    if spec.kind == "encoder":
        assert plan.flops_per_token > 3 * forward / LENGTH - 3 * (spec.layers + 2)
    else:  # what the mask hides, less than half, is computed here, and a kernel need not do so
        hidden = spec.attention_flops_per_token(sequence_length=LENGTH)
        assert plan.flops_per_token > 3 * (forward / LENGTH - hidden)
