"""What a probe sees inside a model: each value equals its formula in float64 numpy, of tokens that are no padding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_families

from trainkit.models.decoder_block import LayerContext
from trainkit.models.loss import blocked_cross_entropy
from trainkit.models.probe import Reports, collect_reports
from trainkit.models.rope import rotary_tables, rotate
from trainkit.models.stack import LanguageModel
from trainkit.parallel import mesh
from trainkit.recipe.families.bert import Bert
from trainkit.recipe.families.deberta_v3 import Deberta
from trainkit.recipe.families.modernbert import ModernBert
from trainkit.recipe.families.t5 import T5

ROWS, LENGTH, LAYERS = 3, 16, 3
SIZES: dict[str, Any] = {"vocab_size": small_families.VOCAB, "layers": LAYERS, "hidden": 32, "heads": 4}
chance = np.random.default_rng(0)
TOKENS = jnp.asarray(chance.integers(0, small_families.VOCAB, (ROWS, LENGTH)))
#: Two documents and padding in each row.
SEGMENTS = jnp.asarray([[1] * a + [2] * b + [0] * (LENGTH - a - b) for a, b in ((9, 7), (5, 8), (3, 4))])
COUNTED = np.asarray(SEGMENTS) > 0
SAME = np.asarray(SEGMENTS)[:, :, None] == np.asarray(SEGMENTS)[:, None, :]
AGO = np.arange(LENGTH)[:, None] - np.arange(LENGTH)


@eqx.filter_jit
def probe(model: Any, tokens_BT: jax.Array = TOKENS) -> tuple[Reports, jax.Array]:
    weights_BT = jnp.asarray(COUNTED, jnp.float32)
    with collect_reports() as reports:
        hidden_BTD, _ = model.hidden_and_penalty(tokens_BT, segments_BT=SEGMENTS)
        if isinstance(model, LanguageModel):
            arrays = hidden_BTD, model.output_matrix(), tokens_BT, weights_BT
            blocked_cross_entropy(*arrays, block=8, entries=99, softcap=model.final_softcap)
    return reports, hidden_BTD


def layers_of(model: Any) -> list[Any]:
    arrays, rest = eqx.partition(model.blocks, eqx.is_array)
    return [eqx.combine(jax.tree.map(lambda leaf, i=i: leaf[i], arrays), rest) for i in range(LAYERS)]


def attention_in_numpy(q: Any, k: Any, visible_BTS: np.ndarray, *, scale: float, softcap: float | None = None):
    """Mean entropy and largest score; q is (B, T, H, K), k may have fewer heads."""
    q, k = np.asarray(q, np.float64), np.asarray(k, np.float64)
    scores = np.einsum("bthk,bshk->bhts", q, np.repeat(k, q.shape[2] // k.shape[2], 2)) * scale
    scores = softcap * np.tanh(scores / softcap) if softcap else scores
    scores = np.where(visible_BTS[:, None], scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(-1)
    of_tokens = np.broadcast_to(COUNTED[:, None], entropy.shape)
    return entropy[of_tokens].mean(), scores[of_tokens].max()


def check_layer(reports: Reports, layer: int, *, attention: Any, units: Any, hidden: Any) -> None:
    kept = np.asarray(hidden, np.float64)[COUNTED]
    expected = {
        "activations/mean/hidden": kept.mean(),
        "activations/rms/hidden": np.sqrt(np.square(kept).mean()),
        "activations/max/hidden": np.abs(kept).max(),
        "activations/dead/mlp": (np.asarray(units)[COUNTED] <= 0).all(0).mean(),
        "attention/entropy/attention": attention[0],
        "attention/max_logit/attention": attention[1],
    }
    for name, value in expected.items():
        path, _, part = name.rpartition("/")
        np.testing.assert_allclose(reports[path][f"blocks.{part}"][layer], value, rtol=1e-4, atol=1e-6, err_msg=name)


def heads(x: Any, width: int) -> Any:
    return x.reshape(ROWS, LENGTH, -1, width)


def test_a_probe_of_gpt2_sees_what_numpy_computes() -> None:
    model = small_families.model(small_families.SPECS["gpt2"])
    reports, hidden_BTD = probe(model)
    positions = jnp.broadcast_to(jnp.arange(LENGTH), TOKENS.shape)

    @eqx.filter_jit
    def layer(block: Any, x: Any) -> Any:
        q, k, _ = jnp.split(block.attention.qkv(block.attention_norm(x)), 3, -1)
        inner, _ = block.attention(block.attention_norm(x), positions, SEGMENTS, None)
        return q, k, block.mlp_in(block.mlp_norm(x + inner)), block(x, positions, SEGMENTS, None)[0]

    x = model.token_embedding[TOKENS] + model.position_embedding[:LENGTH]
    for number, block in enumerate(layers_of(model)):
        q, k, units, x = layer(block, x)
        found = attention_in_numpy(heads(q, 8), heads(k, 8), SAME & (AGO >= 0), scale=8**-0.5)
        check_layer(reports, number, attention=found, units=units, hidden=x)
    logits = np.asarray(model.logits(hidden_BTD))
    np.testing.assert_allclose(reports["logits/max"][""], logits[COUNTED].max(), rtol=1e-5)
    assert reports["activations/rms"]["blocks.hidden"].shape == (LAYERS,)


def test_a_probe_of_gemma2_sees_grouped_queries_windows_and_soft_caps() -> None:
    model = small_families.model(small_families.SPECS["gemma2"])
    reports, hidden_BTD = probe(model)
    positions = jnp.broadcast_to(jnp.arange(LENGTH), TOKENS.shape)
    tables = rotary_tables(model.ropes[0], 16)

    @eqx.filter_jit
    def layer(block: Any, x: Any, window: Any) -> Any:
        place = LayerContext(positions, SEGMENTS, window, tables, jnp.asarray(COUNTED))
        inner, own = block.attention_norm(x), block.attention
        q, k = (rotate(heads(project(inner), 16), positions, tables) for project in (own.query, own.key))
        y, _ = own(inner, place, None)
        units = block.mlp.gate(block.mlp_norm(x + block.attention_post_norm(y)))
        return q, k, units, block(x, place, None)[0]

    x = model.token_embedding[TOKENS] * jnp.sqrt(32.0)
    for number, (block, window) in enumerate(zip(layers_of(model), model.windows, strict=True)):
        q, k, units, x = layer(block, x, jnp.asarray(window or 0))
        visible, own = SAME & (AGO >= 0) & ((window or LENGTH) > AGO), block.attention
        found = attention_in_numpy(q, k, visible, scale=own.scale, softcap=own.softcap)
        check_layer(reports, number, attention=found, units=units, hidden=x)
    assert {model.windows[0], model.windows[1]} == {8, None}
    logits = np.asarray(model.logits(hidden_BTD))
    np.testing.assert_allclose(reports["logits/max"][""], logits[COUNTED].max(), rtol=1e-5)


def test_a_probe_of_bert_sees_both_directions() -> None:
    model = small_families.model(Bert(**SIZES, context_length=64))
    reports, _ = probe(model)
    x = model.token_embedding[TOKENS] + model.type_embedding[0] + model.position_embedding[:LENGTH]

    @eqx.filter_jit
    def layer(block: Any, x: Any) -> Any:
        own = block.attention
        units = block.mlp_in(block.attention_norm(x + own(x, SEGMENTS)))
        return own.query(x), own.key(x), units, block(x, SEGMENTS)

    x = model.embedding_norm(x)
    for number, block in enumerate(layers_of(model)):
        q, k, units, x = layer(block, x)
        found = attention_in_numpy(heads(q, 8), heads(k, 8), SAME, scale=8**-0.5)
        check_layer(reports, number, attention=found, units=units, hidden=x)


def uniform(model: Any) -> Any:
    """The model with scores of 0 everywhere, so that it attends to all that it sees equally."""
    flat = ("query", "key", "qkv", "distance_embedding")

    def zero(path: Any, leaf: Any) -> Any:
        names = {getattr(step, "name", "") for step in path}
        return jnp.zeros_like(leaf) if eqx.is_array(leaf) and names.intersection(flat) else leaf

    return jax.tree_util.tree_map_with_path(zero, model)


def mean_log(visible_BTS: np.ndarray, counted: np.ndarray = COUNTED) -> float:
    return float(np.log(visible_BTS.sum(-1))[counted].mean())


@pytest.mark.parametrize("family", ["qwen3-moe", "modernbert", "deberta"])
def test_attention_without_preferences_has_the_entropy_of_what_it_sees(family: str) -> None:
    specs = {
        **small_families.SPECS,
        "modernbert": ModernBert(**SIZES, context_length=64, window=8, global_every=2),
        "deberta": Deberta(**SIZES, context_length=64, position_buckets=16),
    }
    model = uniform(small_families.model(specs[family]))
    reports, _ = probe(model)
    seen = {"qwen3-moe": [SAME & (AGO >= 0)] * LAYERS, "deberta": [SAME] * LAYERS}
    if family == "modernbert":
        seen[family] = [SAME & (abs(AGO) < (window or LENGTH)) for window in model.windows]
        assert None in model.windows and len(set(model.windows)) == 2
    expected = [mean_log(visible) for visible in seen[family]]
    np.testing.assert_allclose(reports["attention/entropy"]["blocks.attention"], expected, rtol=1e-5)
    np.testing.assert_array_equal(reports["attention/max_logit"]["blocks.attention"], np.zeros(LAYERS))
    assert set(reports["activations/dead"]) == {"blocks.experts" if family == "qwen3-moe" else "blocks.mlp"}


def test_both_stacks_of_an_encoder_decoder_and_the_attention_between_them_are_seen() -> None:
    model = uniform(small_families.model(T5(**SIZES)))
    reports, _ = probe(model)
    to_source = np.broadcast_to(COUNTED[:, None], SAME.shape)
    seen = {
        "blocks.encoder.attention": mean_log(SAME),
        "blocks.decoder.attention": mean_log(np.broadcast_to(AGO >= 0, SAME.shape)),
        "blocks.decoder.cross": mean_log(to_source),
    }
    for part, expected in seen.items():
        np.testing.assert_allclose(reports["attention/entropy"][part], [expected] * LAYERS, rtol=1e-5, err_msg=part)
    for path, part in (("mean", "hidden"), ("rms", "hidden"), ("max", "hidden"), ("dead", "mlp")):
        assert set(reports[f"activations/{path}"]) == {f"blocks.{stack}.{part}" for stack in ("encoder", "decoder")}


def test_a_unit_is_dead_if_no_token_but_padding_uses_it() -> None:
    model = small_families.model(small_families.SPECS["gpt2"])
    units = model.blocks.mlp_in.bias.shape[-1]
    bias = jnp.where(jnp.arange(units) < units // 4, -1e3, 1e3) * jnp.ones((LAYERS, 1))
    reports, _ = probe(replace(model, blocks=eqx.tree_at(lambda b: b.mlp_in.bias, model.blocks, bias)))
    np.testing.assert_array_equal(reports["activations/dead"]["blocks.mlp"], np.full(LAYERS, 0.25))
    # the padding of these rows is a token of its own, and the only one with this embedding
    pads = jnp.where(jnp.asarray(COUNTED), TOKENS % 7, 300)
    quiet, _ = probe(model, pads)
    loud, _ = probe(replace(model, token_embedding=model.token_embedding.at[300].mul(1e3)), pads)
    del quiet["logits/max"], loud["logits/max"]  # the output matrix is the embedding
    for path, parts in quiet.items():
        for part, value in parts.items():
            np.testing.assert_array_equal(loud[path][part], value, err_msg=path)


def test_a_unit_of_an_expert_is_dead_if_none_of_its_tokens_uses_it() -> None:
    model = small_families.model(small_families.SPECS["qwen3-moe"])
    # a fourth of the units are 0 for every token
    model = eqx.tree_at(lambda m: m.blocks.mlp.gate, model, replace_fn=lambda gate: gate.at[..., :6].set(0))
    reports, _ = probe(model)
    positions = jnp.broadcast_to(jnp.arange(LENGTH), TOKENS.shape)
    tables = rotary_tables(model.ropes[0], 16)

    @eqx.filter_jit
    def layer(block: Any, x: Any) -> Any:
        place = LayerContext(positions, SEGMENTS, jnp.asarray(0), tables, jnp.asarray(COUNTED))
        y, _ = block.attention(block.attention_norm(x), place, None)
        return block.mlp_norm(x + y), block(x, place, None)[0]

    x = model.token_embedding[TOKENS]
    for number, block in enumerate(layers_of(model)):
        inner, x = layer(block, x)
        inner_ND = np.asarray(inner)[COUNTED]
        chosen_NC = np.argsort(-inner_ND @ np.asarray(block.mlp.router.weight), -1)[:, : block.mlp.per_token]
        dead = []
        for expert, gate_DF in enumerate(np.asarray(block.mlp.gate)):
            own_ND = inner_ND[(chosen_NC == expert).any(-1)]
            dead.append((own_ND @ gate_DF <= 0).all(0).mean())
        assert np.mean(dead) >= 0.25
        np.testing.assert_allclose(reports["activations/dead"]["blocks.experts"][number], np.mean(dead), rtol=1e-6)


@pytest.mark.parametrize("family", ["gpt2", "qwen3-moe"])
def test_a_probe_sees_the_same_on_eight_devices(family: str) -> None:
    model = small_families.model(small_families.SPECS[family])
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, small_families.VOCAB, (8, LENGTH)))
    segments = jnp.asarray([[1] * filled + [0] * (LENGTH - filled) for filled in range(9, 17)])

    @eqx.filter_jit
    def reports_of(model: Any, tokens: jax.Array, segments: jax.Array) -> Reports:
        with collect_reports() as reports:
            model.hidden_and_penalty(tokens, segments_BT=segments)
        return reports

    one = reports_of(model, tokens, segments)
    device_mesh = mesh.make_mesh(data=2, fsdp=4)
    with jax.set_mesh(device_mesh):
        rows = mesh.NamedSharding(device_mesh, mesh.PartitionSpec(("data", "fsdp")))
        arrays, rest = eqx.partition(model, eqx.is_array)
        placed = eqx.combine(jax.device_put(arrays, mesh.shardings(device_mesh, arrays)), rest)
        eight = reports_of(placed, *jax.device_put((tokens, segments), rows))
    assert {path: set(parts) for path, parts in eight.items()} == {path: set(parts) for path, parts in one.items()}
    for path, parts in one.items():
        for part, value in parts.items():
            np.testing.assert_allclose(eight[path][part], value, rtol=1e-5, atol=1e-6, err_msg=f"{path}/{part}")


def test_a_pass_that_nobody_probes_is_the_same_program() -> None:
    model = small_families.model(small_families.SPECS["gpt2"])

    def program() -> str:
        return jax.jit(lambda: model.hidden_and_penalty(TOKENS, segments_BT=SEGMENTS)[0]).lower().as_text()

    before = program()
    with collect_reports():
        assert program() == before, "reports that nobody returns are no part of the program"
    assert program() == before
