"""Every family's checkpoints: out and in again is the identity; what cannot be had is refused by name."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_families import LENGTH, SPECS, VOCAB, arrays, model, shapes

from trainkit.errors import TrainkitError
from trainkit.hub import source
from trainkit.hub.config import family_of, family_of_spec, read_config, spec_values
from trainkit.hub.load import check, load_params, read_spec
from trainkit.hub.safetensors import FILE, TensorEntry, Tensors, open_directory, write_file
from trainkit.hub.save import save
from trainkit.parallel import mesh
from trainkit.recipe.families import families

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}

#: What `AutoModel` of transformers calls the class of each family without its head.
HEADLESS = {
    "gpt2": "GPT2Model",
    "llama": "LlamaModel",
    "mistral": "MistralModel",
    "qwen2": "Qwen2Model",
    "qwen3": "Qwen3Model",
    "olmo2": "Olmo2Model",
    "gemma2": "Gemma2Model",
    "gemma3_text": "Gemma3TextModel",
    "mixtral": "MixtralModel",
    "qwen3_moe": "Qwen3MoeModel",
    "mpt": "MptModel",
}


def saved(directory: Path, name: str = "llama", dtype: str = "float32", **more: Any) -> Any:
    """A model, written to `directory`."""
    made = model(SPECS[name], DTYPES[dtype])
    directory.mkdir(exist_ok=True)
    save(directory, made, SPECS[name], dtype=dtype, sequence_length=LENGTH, **more)
    return made


def rewritten(directory: Path, change: Any) -> None:
    """The checkpoint with `change`d tensors, by name."""
    found = open_directory(directory)
    tensors = change({name: np.array(found.view(name)) for name in found})
    write_file(directory / FILE, [TensorEntry(n, t.shape, t.dtype, lambda t=t: t) for n, t in tensors.items()])


def said(directory: Path, **keys: Any) -> None:
    """Keys of the checkpoint's config.json."""
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | keys))


def problem(directory: Path, name: str = "llama", **more: Any) -> str:
    with pytest.raises(TrainkitError) as caught:
        load_params(directory, shapes(SPECS[name], **more))
    return str(caught.value)


def refused(directory: Path) -> str:
    with pytest.raises(TrainkitError) as caught:
        read_spec(directory)
    return str(caught.value)


def same(left: Any, right: Any) -> None:
    a, b = arrays(left), arrays(right)
    assert a.keys() == b.keys()
    for name, numbers in a.items():
        assert numbers.dtype == b[name].dtype, name
        np.testing.assert_array_equal(numbers.view(np.uint8), b[name].view(np.uint8), err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECS)
def test_out_and_in_again_is_the_identity_bit_for_bit(tmp_path, name, dtype):
    made, spec = saved(tmp_path / "one", name, dtype), SPECS[name]
    assert read_spec(tmp_path / "one") == spec
    first = load_params(tmp_path / "one", shapes(spec), dtype=DTYPES[dtype])
    same(first, made)
    (tmp_path / "two").mkdir()
    save(tmp_path / "two", first, read_spec(tmp_path / "one"), dtype=dtype, sequence_length=LENGTH)
    for file in ("config.json", FILE):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


@pytest.mark.parametrize("name", SPECS)
def test_what_was_read_gives_the_logits_of_what_was_written(tmp_path, name):
    made = saved(tmp_path, name)
    read = load_params(tmp_path, shapes(read_spec(tmp_path)))
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, VOCAB, (2, 20)))
    np.testing.assert_array_equal(*(np.asarray(m.logits(m.hidden_states(tokens)[0])) for m in (made, read)))


def test_every_causal_family_has_a_test_here():
    causal = {family.model_type for family in families() if family.spec.kind == "causal"}
    assert {family_of_spec(spec).model_type for spec in SPECS.values()} == causal


@pytest.mark.parametrize("name", SPECS)
def test_names_say_each_tensor_once(name):
    names = [named.theirs for named in family_of_spec(SPECS[name]).names]
    assert len(names) == len(set(names))


def test_matrices_are_turned_and_layers_and_experts_stacked(tmp_path):
    made = saved(tmp_path, "mixtral")
    found = open_directory(tmp_path)
    one = found.view("model.layers.2.block_sparse_moe.experts.1.w2.weight")
    np.testing.assert_array_equal(one, np.asarray(made.blocks.mlp.down[2, 1]).T)
    assert saved(tmp_path / "gpt2", "gpt2").blocks.mlp_in.weight.shape[1:] == (32, 128)
    assert open_directory(tmp_path / "gpt2")["transformer.h.0.mlp.c_fc.weight"].shape == (32, 128)


def test_bfloat16_is_read_into_float32_without_loss_and_float32_rounded_to_the_nearest(tmp_path):
    made = saved(tmp_path, dtype="bfloat16")
    same(load_params(tmp_path, shapes(SPECS["llama"])), jax.tree.map(_in(jnp.float32), made))
    made = saved(tmp_path)
    same(load_params(tmp_path, shapes(SPECS["llama"]), dtype=jnp.bfloat16), jax.tree.map(_in(jnp.bfloat16), made))


def _in(dtype: Any) -> Any:
    return lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_leaves_go_where_their_sharding_says(tmp_path, name):
    made, on = saved(tmp_path, name), mesh.make_mesh(data=2, fsdp=4)
    shape = shapes(SPECS[name])
    lie = mesh.shardings(on, eqx.filter(shape, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct)))
    read = load_params(tmp_path, eqx.filter(shape, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct)), lie)
    for leaf, sharding in zip(jax.tree.leaves(read), jax.tree.leaves(lie), strict=True):
        assert leaf.sharding == sharding
    assert any(not leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(read))
    same(read, made)


def test_shards_are_read_as_one_file_is(tmp_path):
    made = saved(tmp_path, shard_bytes=20_000)
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    same(load_params(tmp_path, shapes(SPECS["llama"])), made)


@pytest.mark.parametrize(("name", "prefix"), [("gpt2", "transformer."), ("qwen2", "model.")])
def test_names_may_come_without_their_prefix(tmp_path, name, prefix):
    made = saved(tmp_path, name)
    rewritten(tmp_path, lambda tensors: {key.removeprefix(prefix): value for key, value in tensors.items()})
    same(load_params(tmp_path, shapes(SPECS[name])), made)


def test_what_older_versions_saved_besides_is_passed_over(tmp_path):
    made = saved(tmp_path, "gpt2")
    rewritten(tmp_path, lambda t: t | {"transformer.h.0.attn.bias": np.ones((1, 1, 4, 4), np.uint8)})
    same(load_params(tmp_path, shapes(SPECS["gpt2"])), made)


def test_a_tied_embedding_may_be_there_twice_but_not_in_two_versions(tmp_path):
    made = saved(tmp_path, "qwen2")
    embedding = np.asarray(made.token_embedding)
    rewritten(tmp_path, lambda tensors: tensors | {"lm_head.weight": embedding})
    same(load_params(tmp_path, shapes(SPECS["qwen2"])), made)
    rewritten(tmp_path, lambda tensors: tensors | {"lm_head.weight": embedding + 1})
    assert "tied" in problem(tmp_path, "qwen2") and "lm_head.weight" in problem(tmp_path, "qwen2")


def test_a_tied_embedding_may_be_there_under_the_name_of_the_output_alone(tmp_path):
    made = saved(tmp_path, "qwen2")
    rewritten(tmp_path, lambda tensors: {"lm_head.weight": tensors.pop("model.embed_tokens.weight"), **tensors})
    same(load_params(tmp_path, shapes(SPECS["qwen2"])), made)
    saved(tmp_path)
    rewritten(tmp_path, lambda t: {name: tensor for name, tensor in t.items() if "embed" not in name})
    assert "model.embed_tokens.weight [320, 32]" in problem(tmp_path)


def test_a_check_finds_what_loading_would_and_reads_no_numbers(tmp_path, monkeypatch):
    saved(tmp_path)
    with monkeypatch.context() as without:
        without.setattr(Tensors, "view", None)
        check(tmp_path, shapes(SPECS["llama"]))
        check(tmp_path, shapes(SPECS["llama"], vocab=VOCAB + 1), resize=True)
        for wrong in (shapes(SPECS["llama"], vocab=VOCAB + 1), shapes(SPECS["llama-biased"]), shapes(SPECS["qwen3"])):
            with pytest.raises(TrainkitError) as caught:
                check(tmp_path, wrong)
            with pytest.raises(TrainkitError) as again:
                load_params(tmp_path, wrong)
            assert str(caught.value) == str(again.value)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[:-1])
    with pytest.raises(TrainkitError, match="cut off"):
        check(tmp_path, shapes(SPECS["llama"]))
    (tmp_path / FILE).unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(TrainkitError, match="may run any code"):
        check(tmp_path, shapes(SPECS["llama"]))


def test_missing_and_extra_tensors_and_those_of_another_shape_are_listed_with_their_shapes(tmp_path):
    saved(tmp_path)

    def change(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        del tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(32, np.float32)
        tensors["model.norm.weight"] = np.zeros(33, np.float32)
        return tensors

    rewritten(tmp_path, change)
    lines = problem(tmp_path).splitlines()
    assert "1 missing:" in lines and "  model.layers.1.mlp.up_proj.weight [48, 32]" in lines
    assert "1 not known:" in lines and "  model.layers.0.self_attn.q_proj.bias [32]" in lines
    assert "  model.norm.weight [33], the model has [32]" in lines


def test_weights_that_are_whole_numbers_are_none(tmp_path):
    saved(tmp_path)
    rewritten(tmp_path, lambda t: t | {"model.norm.weight": np.zeros(32, np.int8)})
    assert "model.norm.weight is of int8" in problem(tmp_path)


# the vocabulary


def test_another_vocabulary_is_refused_unless_it_is_asked_for(tmp_path):
    made = saved(tmp_path)
    assert "resize_vocabulary = true" in problem(tmp_path, vocab=VOCAB + 3)
    wide = load_params(tmp_path, shapes(SPECS["llama"], vocab=VOCAB + 3), resize=True)
    narrow = load_params(tmp_path, shapes(SPECS["llama"], vocab=VOCAB - 3), resize=True)
    for leaf in ("token_embedding", "output"):
        before = np.asarray(getattr(made, leaf))
        np.testing.assert_array_equal(getattr(wide, leaf)[:VOCAB], before)
        np.testing.assert_allclose(getattr(wide, leaf)[VOCAB:], np.tile(before.mean(0), (3, 1)), rtol=1e-5)
        np.testing.assert_array_equal(getattr(narrow, leaf), before[: VOCAB - 3])
    np.testing.assert_array_equal(wide.blocks.mlp.up.weight, made.blocks.mlp.up.weight)


def test_what_new_rows_are_is_computed_once_for_an_embedding_in_however_many_pieces(tmp_path, monkeypatch):
    class Watched(np.ndarray):
        def mean(self, *given: Any, **more: Any) -> Any:
            means.append(self.shape)
            return np.asarray(super().mean(*given, **more))

    made, means, view = saved(tmp_path, dtype="bfloat16"), list[tuple[int, ...]](), Tensors.view
    monkeypatch.setattr(Tensors, "view", lambda tensors, name: view(tensors, name).view(Watched))
    monkeypatch.setattr(source, "PIECE", 700)
    wide = load_params(tmp_path, shapes(SPECS["llama"], vocab=VOCAB + 40), dtype=jnp.float32, resize=True)
    assert means == [(VOCAB, 32), (VOCAB, 32)]
    for leaf in ("token_embedding", "output"):
        before = np.asarray(getattr(made, leaf)).astype(np.float32)
        np.testing.assert_array_equal(getattr(wide, leaf)[:VOCAB], before)
        np.testing.assert_allclose(getattr(wide, leaf)[VOCAB:], np.tile(before.mean(0), (40, 1)), rtol=1e-5)


# the config


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("llama", {"quantization_config": {"bits": 4}}),
        ("llama", {"auto_map": {"AutoModelForCausalLM": "code.Model"}}),
        ("llama", {"hidden_act": "relu"}),
        ("llama", {"a_new_feature": 3}),
        ("llama", {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "beyond": 1}}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        ("gpt2", {"add_cross_attention": True}),
        ("qwen2-window", {"layer_types": ["sliding_attention"] * 3}),
        ("gemma3", {"layer_types": ["full_attention", "full_attention", "sliding_attention"]}),
        ("qwen3-moe", {"mlp_only_layers": [1]}),
        ("qwen3-moe", {"decoder_sparse_step": 2}),
        ("mpt", {"no_bias": False}),
        ("mpt", {"attn_config": {"alibi": True, "qk_ln": True}}),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_what_is_unavailable_is_refused_by_its_key(tmp_path, name, keys):
    saved(tmp_path, name)
    assert read_spec(tmp_path)
    said(tmp_path, **keys)
    assert next(iter(keys)) in refused(tmp_path)


def test_all_that_is_wrong_with_a_config_is_reported_at_once(tmp_path):
    saved(tmp_path)
    said(tmp_path, hidden_act="relu", a_new_feature=3, quantization_config={})
    text = refused(tmp_path)
    assert all(key in text for key in ("hidden_act", "a_new_feature = 3", "quantization_config"))


def test_keys_that_mean_nothing_for_the_logits_are_passed_over(tmp_path):
    saved(tmp_path)
    said(tmp_path, id2label={"0": "a"}, transformers_version="9", another_switch=None)
    assert read_spec(tmp_path) == SPECS["llama"]


@pytest.mark.parametrize("config", [{"model_type": "led", "architectures": ["LEDForConditionalGeneration"]}, {}])
def test_another_architecture_is_named_with_those_that_are_supported(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    text = refused(tmp_path)
    assert all(family.model_type in text for family in families()) and config.get("model_type", "null") in text


def test_another_head_is_refused(tmp_path):
    saved(tmp_path)
    said(tmp_path, architectures=["LlamaForQuestionAnswering"])
    assert "LlamaForQuestionAnswering" in refused(tmp_path)


def test_newer_configs_say_rotary_positions_in_one_table(tmp_path):
    saved(tmp_path, "llama-3")
    old = read_config(tmp_path)
    table = {**old.pop("rope_scaling"), "rope_theta": old.pop("rope_theta")}
    (tmp_path / "config.json").write_text(json.dumps(old | {"rope_parameters": table}))
    assert read_spec(tmp_path) == SPECS["llama-3"]
    saved(tmp_path, "gemma3")
    old = read_config(tmp_path)
    whole, local = old.pop("rope_theta"), old.pop("rope_local_base_freq")
    both = {"full_attention": {"rope_theta": whole}, "sliding_attention": {"rope_theta": local}}
    (tmp_path / "config.json").write_text(json.dumps(old | {"rope_parameters": both}))
    assert read_spec(tmp_path) == SPECS["gemma3"]


def test_where_a_config_says_nothing_its_librarys_default_counts():
    config = {"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    config |= {"intermediate_size": 8, "max_position_embeddings": 16, "vocab_size": 9}
    values = spec_values(config, family_of(config, where=""), where="")
    assert (values["head_width"], values["rms_norm_eps"], values["rope_theta"], values["tied"]) == (
        128,
        1e-6,
        1e4,
        False,
    )
    del config["vocab_size"], config["hidden_size"]
    with pytest.raises(TrainkitError, match=r"hidden_size is missing\n  vocab_size is missing"):
        spec_values(config, family_of(config, where=""), where="")


@pytest.mark.parametrize(("name", "key", "value"), [("mpt", "expansion_ratio", 2), ("gemma2", "query_scale", 24.5)])
def test_of_a_model_that_transformers_cannot_load_nothing_is_written(tmp_path, name, key, value):
    spec = SPECS[name].model_copy(update={key: value})
    with pytest.raises(TrainkitError, match=f"{key} = {value}"):
        save(tmp_path, model(spec), spec, dtype="float32", sequence_length=LENGTH)
    assert not list(tmp_path.iterdir())


def test_writing_holds_one_leaf_on_the_host_and_leaves_none_there(tmp_path):
    on = mesh.make_mesh(data=2, fsdp=4)
    arrays = eqx.filter(model(SPECS["llama"].model_copy(update={"layers": 8, "intermediate": 512})), eqx.is_array)
    made = jax.device_put(arrays, mesh.shardings(on, arrays))
    sizes = [leaf.nbytes for leaf in jax.tree.leaves(made)]
    tracemalloc.start()
    try:
        save(tmp_path, made, SPECS["llama"], dtype="float32", sequence_length=LENGTH)
        left, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < max(sizes) / 2, "an array keeps what it was asked for"
    assert most < 2 * max(sizes) + 200_000 < sum(sizes)


@pytest.mark.parametrize("name", SPECS)
def test_what_auto_model_saves_is_read_as_the_family_that_it_is(tmp_path, name):
    """`AutoModel` has no head: it names the class without it, and its tensors have no prefix."""
    spec = SPECS[name].model_copy(update={"tied": True})
    made = model(spec)
    save(tmp_path, made, spec, dtype="float32", sequence_length=LENGTH)
    family = family_of_spec(spec)
    rewritten(tmp_path, lambda t: {name.removeprefix(family.prefix): array for name, array in t.items()})
    said(tmp_path, architectures=[HEADLESS[family.model_type]])
    assert read_spec(tmp_path) == spec
    same(load_params(tmp_path, shapes(spec)), made)
    said(tmp_path, architectures=["Gemma3ForConditionalGeneration"])
    assert "Gemma3ForConditionalGeneration" in refused(tmp_path)
