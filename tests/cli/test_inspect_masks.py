"""`trainkit inspect` shows which tokens a step of masked language modelling hides, and what the model reads instead."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from trainer import RECIPE, WORDS, workplace

from trainkit.cli.batch_rows import masks_legend, row_lines
from trainkit.cli.inspect import inspect
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache import build as caches
from trainkit.data.show import ShownPiece, ShownRow
from trainkit.hub.recipe import load
from trainkit.tasks import build

NAMES = ["[PAD]", "[UNK]", "[SEP]", "[MASK]", *dict.fromkeys(WORDS)]
TASK = """path = "tokenizer.json"
[task]
type = "masked-lm"
probability = 0.4
masked = 0.5
random = 0.2"""
MASKED = (
    RECIPE.replace('type = "gpt2"', 'type = "bert"\nintermediate = 32')
    .replace("train = { vocab_size = 300 }", TASK)
    .replace('[sample]\nevery = 12\nprompts = ["the cat"]\nmax_tokens = 8\n', "")
)


def test_what_the_step_hides_is_what_inspect_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace(tmp_path / "place", MASKED, documents=9))
    tokenizer = Tokenizer(models.WordLevel({name: id_ for id_, name in enumerate(NAMES)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(NAMES[:4])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save("tokenizer.json")
    shown = list(map(json.loads, inspect("tiny.toml", [], "full", step=5, first=1, rows=None, json=True)))
    recipe = load(Path("tiny.toml"), []).recipe
    cache = caches.build(recipe)
    batch = TrainSet(cache, recipe).batch(5)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(recipe.run.seed), 4), 5)  # 4: of the loss
    hidden = build(recipe.task, cache.tokenizer).hide(batch, key)
    fates = set()
    for number, row in enumerate(shown):
        learned = [text.strip() for piece in row["pieces"] for text, is_learned in piece["runs"] if is_learned]
        expected = []
        for at in np.flatnonzero(np.asarray(hidden.weights_BT)[number]):
            was, reads = NAMES[batch["tokens"][number, at]], NAMES[int(hidden.inputs_BT[number, at])]
            fate = "masked" if reads == "[MASK]" else "kept" if reads == was else f"random {reads}"
            expected.append(f"{was}[{fate}]")
            fates.add(fate.split()[0])
        assert learned == expected
    assert fates == {"masked", "random", "kept"}
    lines = list(inspect("tiny.toml", [], "full", step=5, first=1, rows=1, json=False))
    assert "[masked] the mask token replaces it" in lines[2] and re.search(r"⟪.*⟫ ?\w+\[masked\]", "\n".join(lines))


def test_each_fate_of_a_token_has_the_colour_that_the_legend_gives_it() -> None:
    runs = (("a ", False), ("b[masked]", True), ("c[random x]", True), ("d[kept]", True))
    row = ShownRow(0, 0, "train", 0, None, (ShownPiece("x.txt", 0, 4, runs),))
    text = list(row_lines(row, colour=True, masks=True))[-1]
    colours = re.findall(r"\x1b\[(\d+)m(\w)", text)
    assert colours == [("2", "a"), ("32", "b"), ("33", "c"), ("36", "d")]
    legend = "".join(masks_legend(colour=True))
    assert re.findall(r"\x1b\[(\d+)m\[(\w+)", legend) == [("32", "masked"), ("33", "random"), ("36", "kept")]
