"""Training a reward model by a recipe: it ranks answers that it has not seen, in transformers too."""

from __future__ import annotations

import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from data_room import write_rows
from paired_rows import answer_pairs, recipe_text
from reference import Reference
from trainer import evaluations, losses, run_of, trainkit

from trainkit import models
from trainkit.hub.load import load_params, read_spec

RECIPE = recipe_text(
    task='type = "reward"\ncentring = 0.01',
    document='type = "preference", chosen = " {chosen}", rejected = " {rejected}"',
    steps=20,
    rate=3e-3,
    encoding='type = "pad", eos = false',
    more='[checkpoint]\nbest = { metric = "validation/held-out/accuracy", mode = "max" }',
)


def scored(out: Path, rows: list[list[int]]) -> np.ndarray:
    """What our model of an export makes of rows of tokens."""
    spec = read_spec(out)
    shapes = eqx.filter_eval_shape(
        lambda key: models.build(spec, vocab_size=spec.vocab_size, sequence_length=32, implementation="xla", key=key),
        jax.random.key(0),
    )
    model = load_params(out, shapes, head=spec.head)
    filled = np.array([len(row) for row in rows])
    tokens = np.array([row + [0] * (filled.max() - len(row)) for row in rows])
    segments = jnp.asarray(np.arange(tokens.shape[1]) < filled[:, None], jnp.int32)
    hidden, _ = model.hidden_and_penalty(jnp.asarray(tokens), segments_BT=segments)
    return np.asarray(model.scores(hidden, segments))


def test_an_exported_reward_model_ranks_answers_in_transformers_with_the_same_scores(
    tmp_path: Path, reference: Reference
) -> None:
    pairs = list(answer_pairs(62))
    write_rows(tmp_path / "rows.jsonl", pairs)
    (tmp_path / "tiny.toml").write_text(RECIPE)
    run = run_of(tmp_path)
    assert losses(run)[20] < 0.3 < losses(run)[1]
    last = evaluations(run)[20]
    apart = last["validation/held-out/chosen_score"] - last["validation/held-out/rejected_score"]
    assert last["validation/held-out/accuracy"] == 1
    assert abs(last["validation/held-out/margin"] - apart) < 1e-4
    done = trainkit(tmp_path, "export", "tiny", "out")
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["GPT2ForSequenceClassification"] and len(config["id2label"]) == 1
    assert "problem_type" not in config
    texts = [f"{pair['prompt']} {pair[side]}" for pair in pairs for side in ("chosen", "rejected")]
    found = [reference.classify(tmp_path / "out", [text], head="sequence") for text in texts[:8]]
    theirs = np.concatenate([one["scores"] for one in found])
    assert theirs.shape == (8, 1) and (theirs[::2] > theirs[1::2]).all()
    np.testing.assert_allclose(scored(tmp_path / "out", [one["ids"][0] for one in found]), theirs, rtol=1e-4, atol=1e-5)
