"""A run that begins with a checkpoint and adds tokens to its tokenizer: its embedding, its resume and its export."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import data_room as room
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from reference import Reference
from trainer import BARE, arrays, inputs_copied, killed_and_resumed, run_of, trainkit, workplace

from trainkit import models
from trainkit.data.tokenizer import vocabulary
from trainkit.errors import WRONG_INPUT
from trainkit.hub.load import load_params, read_spec
from trainkit.hub.save import save
from trainkit.recipe.families.llama import Llama

KNOWN, NEW = 300, ("<positive>", "<negative>")
SPEC = Llama(layers=1, hidden=32, heads=4, kv_heads=2, intermediate=48, context_length=64, vocab_size=KNOWN)
RECIPE = BARE.replace('type = "gpt2"\nlayers = 2\nhidden = 32\nheads = 2\n', 'pretrained = "base"\n')
RECIPE = RECIPE.replace("train = { vocab_size = 300 }", f"new_tokens = {json.dumps(NEW)}")
RECIPE = RECIPE.replace("steps = 24", "steps = 4").replace("keep_every = 6", "keep_every = 2")


def test_new_tokens_are_learned_resumed_bit_for_bit_and_read_by_transformers(
    reference: Reference, tmp_path: Path
) -> None:
    place = workplace(tmp_path / "killed", RECIPE, documents=8)
    for file in (place / "text").iterdir():  # a new token before each line
        lines = file.read_text().splitlines()
        file.write_text("\n".join(f"{NEW[number % 2]} {line}" for number, line in enumerate(lines)))
    (place / "base").mkdir()
    before = jax.tree.map(np.asarray, _built(KNOWN, jax.random.key(0)))
    save(place / "base", before, SPEC, dtype="float32", sequence_length=64)
    (place / "base" / "tokenizer.json").write_text(room.tokenizer_json(), encoding="utf-8")
    done = trainkit(place, "run", "tiny.toml", "--plain")
    assert done.returncode == WRONG_INPUT and "resize_vocabulary = true" in done.stderr, done.stdout + done.stderr
    assert not (place / "cache").exists(), "before anything is tokenised"

    (place / "tiny.toml").write_text(RECIPE.replace('"base"\n', '"base"\nresize_vocabulary = true\n'))
    whole = run_of(inputs_copied(place, tmp_path / "whole"))
    run = killed_and_resumed(place, saved=2)
    assert arrays(run, 4) == arrays(whole, 4) != arrays(run, 2)

    done = trainkit(place, "export", "tiny", "out")
    assert done.returncode == 0, done.stderr
    assert read_spec(place / "out").vocab_size == KNOWN + 2
    after = load_params(place / "out", eqx.filter_eval_shape(_built, KNOWN + 2, jax.random.key(0)))
    for leaf in ("token_embedding", "output"):
        mean = getattr(before, leaf).mean(0)
        first, second = np.asarray(getattr(after, leaf))[KNOWN:]
        assert (first != second).any() and (first != mean).any(), "they have learned"

    prompt = f"{NEW[0]} the cat{NEW[1]} sat"
    ids = vocabulary.load(place / "out" / "tokenizer.json", config=True).encode(prompt)
    assert [id_ for id_ in ids if id_ >= KNOWN] == [KNOWN, KNOWN + 1]
    (theirs,) = reference.answer(place / "out", [prompt], tokens=4)["answers"]
    assert theirs["prompt"] == ids
    logits, _ = reference.loads(place / "out", np.asarray([ids]))
    segments, positions = jnp.ones((1, len(ids)), jnp.int32), jnp.arange(len(ids))[None]
    hidden, _ = after.hidden_states(jnp.asarray([ids]), positions_BT=positions, segments_BT=segments)
    np.testing.assert_allclose(after.logits(hidden), logits, rtol=1e-4, atol=1e-5)


def _built(rows: int, key: jax.Array) -> Any:
    build = partial(models.build, SPEC, sequence_length=64, implementation="xla")
    return build(vocab_size=rows, key=key)
