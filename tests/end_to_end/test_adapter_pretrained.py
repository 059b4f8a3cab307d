"""Runs and answers that begin with an adapter as PEFT keeps it, on the model that it is for."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from fake_hub import COMMIT, serving
from small_families import model
from tokenizers import Tokenizer
from trainer import BARE, arrays, environment, trainkit, workplace

from trainkit import models
from trainkit.cli import run as running
from trainkit.cli.check import check as check_recipe
from trainkit.cli.export import ExportFormat, export
from trainkit.errors import TrainkitError
from trainkit.export.adapter import export_adapter
from trainkit.hub import adapter_config, peft
from trainkit.hub import load as loading
from trainkit.hub.load import load_adapter, load_base, load_params
from trainkit.hub.recipe import load, notes
from trainkit.hub.safetensors import Tensors, read_header
from trainkit.hub.save import save
from trainkit.infer import adapted
from trainkit.infer.trained_model import open_pretrained
from trainkit.models.adapters import adapted_layers
from trainkit.models.nf4 import Nf4, quantise
from trainkit.parallel import devices, mesh
from trainkit.plan import DataSize, make_plan
from trainkit.recipe.families.llama import Llama
from trainkit.run.setup import rehearse
from trainkit.rundir.directory import recipe_of
from trainkit.train.build import build, model_shapes, new_state

SPEC = Llama(layers=2, hidden=32, heads=4, kv_heads=2, intermediate=48, context_length=64, vocab_size=320)
_FAMILY = 'type = "gpt2"\nlayers = 2\nhidden = 32\nheads = 2\n'
_TOKENIZER = "[tokenizer]\ntrain = { vocab_size = 300 }\n"
STEPS, BEFORE = 6, 3
FRESH = '[adapter]\nrank = 2\nalpha = 60.0\nvariant = "rslora"\ntargets = ["query", "down"]\n'
BEGUN = '[adapter]\npretrained = "adapter"\nlearning_rate_ratio = 4.0\n'


def recipe(adapter: str, name: str) -> str:
    text = BARE.replace(_FAMILY, 'pretrained = "base"\n').replace(_TOKENIZER, adapter).replace('"tiny"', f'"{name}"')
    return text.replace("steps = 24", f"steps = {STEPS}").replace("keep_every = 6", f"keep_every = {BEFORE}")


def begun(spec: Any) -> Any:
    """Weights of the size that models begin with, but of one that is sure of what it says."""
    small = jax.tree.map(lambda leaf: leaf * 0.2 if isinstance(leaf, jax.Array) else leaf, model(spec))
    return eqx.tree_at(lambda model: model.output, small, replace_fn=lambda leaf: 60 * leaf)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`base`, a checkpoint with a tokenizer; `adapter`, which a run trained on it; recipes that begin with either."""
    place = workplace(tmp_path_factory.mktemp("begun"), BARE)
    (place / "first.toml").write_text(recipe(FRESH, "first"))
    (place / "on.toml").write_text(recipe(BEGUN, "on"))
    base = place / "base"
    base.mkdir()
    save(base, begun(SPEC), SPEC, dtype="float32", sequence_length=64)
    export = ("export", "first", "adapter", "--format", "peft")
    for words in (("cache-data", "tiny.toml"), ("run", "first.toml", "--plain"), export):
        if words[0] == "run":
            shutil.copy(next((place / "cache" / "tokenizers").glob("*/tokenizer.json")), base)
        done = trainkit(place, *words)
        assert done.returncode == 0, done.stdout + done.stderr
    return place


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    return place


def changed(place: Path, name: str, changes: dict[str, Any]) -> Path:
    """A copy of the adapter whose config says something else."""
    copy = place / name
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(place / "adapter", copy)
    file = copy / adapter_config.FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return copy


def pointers(tree: Any) -> set[int]:
    """Where the arrays are in memory."""
    shards = (shard for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards)
    return {shard.data.unsafe_buffer_pointer() for shard in shards}


# the recipe


def test_the_resolved_recipe_holds_what_the_adapter_says_and_where_it_was_said(here: Path) -> None:
    loaded = load(Path("on.toml"))
    found = loaded.recipe.adapter
    assert found is not None
    assert (found.rank, found.alpha, found.variant) == (2, 60.0, "rslora")
    assert found.targets == ("attention.query", "mlp.down") and found.learning_rate_ratio == 4.0
    assert found.pretrained == str(here / "adapter")
    assert loaded.origins["adapter.rank"] == str(here / "adapter" / adapter_config.FILE)
    assert loaded.origins["adapter.pretrained"].startswith("on.toml:")


def test_what_the_recipe_says_too_may_be_said_in_its_own_words(here: Path) -> None:
    loaded = load(Path("on.toml"), ["adapter.rank=2", "adapter.alpha=60", 'adapter.targets=["que*", "mlp.down"]'])
    assert loaded.recipe.adapter is not None and loaded.recipe.adapter.targets == ("que*", "mlp.down")
    assert loaded.origins["adapter.rank"] == "--set"


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["adapter.rank=4", 'adapter.variant="dora"'],
         ["[adapter] contradicts", "rank = 4: the checkpoint has 2", 'variant = "dora": the checkpoint has "rslora"']),
        (['adapter.targets="all-linear"'],
         ['targets = "all-linear": the checkpoint has ["attention.query", "mlp.down"]']),
        (["adapter.alpha=32.0"], ["alpha = 32.0: the checkpoint has 60.0"]),
        (['adapter.pretrained="./nowhere"'], ["there is no directory", "adapter_model.safetensors"]),
        (['adapter.pretrained="base"'], ["there is no adapter_config.json", "adapter.pretrained"]),
        (['adapter.revision="main"'], ["adapter.revision is for hub ids", "--set adapter.revision"]),
        (["adapter.rang=4"], ["adapter.rang = 4: no such key", "rank"]),
    ],
    ids=["rank", "targets", "alpha", "nowhere", "no adapter", "revision", "no such key"],
)  # fmt: skip
def test_what_the_recipe_says_otherwise_is_reported_with_both(
    here: Path, overrides: list[str], told: list[str]
) -> None:
    with pytest.raises(TrainkitError) as raised:
        load(Path("on.toml"), overrides)
    assert all(word in str(raised.value) for word in told), str(raised.value)


@pytest.mark.parametrize("config", [None, "{", '{"peft_type": "IA3"}'], ids=["none", "no JSON", "another kind"])
def test_of_an_adapter_that_cannot_be_used_the_line_and_the_key_are_named(here: Path, config: str | None) -> None:
    Path("broken").mkdir(exist_ok=True)
    if config is not None:
        (Path("broken") / adapter_config.FILE).write_text(config)
    lines = Path("on.toml").read_text().replace(BEGUN, BEGUN.replace('"adapter"', '"broken"')).splitlines()
    Path("broken.toml").write_text("\n".join(lines))
    with pytest.raises(TrainkitError) as raised:
        load(Path("broken.toml"))
    line = lines.index('pretrained = "broken"') + 1
    assert str(raised.value).startswith(f"broken.toml:{line}: adapter.pretrained: ")


def test_an_adapter_goes_on_no_model_that_begins_at_random(here: Path) -> None:
    text = Path("on.toml").read_text().replace('pretrained = "base"\n', _FAMILY).replace(BEGUN, _TOKENIZER + BEGUN)
    Path("random.toml").write_text(text)
    with pytest.raises(TrainkitError, match=r"\[model\] begins at random") as raised:
        load(Path("random.toml"))
    assert str(here / "base") in raised.value.hint and raised.value.where.endswith(": adapter.pretrained")
    text = Path("first.toml").read_text().replace("[adapter]\n", '[adapter]\nrevision = "main"\n')
    Path("alone.toml").write_text(text)
    with pytest.raises(TrainkitError, match="revision goes with pretrained"):
        load(Path("alone.toml"))


def test_of_an_adapter_for_another_model_check_and_run_say_so(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(here, "other", {"base_model_name_or_path": "them/\x1bother"})
    changed(here, "moved", {"base_model_name_or_path": "/elsewhere/base"})
    note = f"note: the adapter was made for them/␛other; here it is applied to {here / 'base'}"
    assert check_recipe(Path("on.toml"), ['adapter.pretrained="other"']).splitlines()[1:] == [note]
    for own in ("adapter", "moved"):
        assert "note" not in check_recipe(Path("on.toml"), [f'adapter.pretrained="{own}"'])
    monkeypatch.setattr(running, "follow", lambda *_, **__: 0)
    running.run(Path("on.toml"), ['adapter.pretrained="other"'], name="noted", plain=True)
    assert capsys.readouterr().err == f"{note}\n"


def test_check_needs_nothing_that_trains(place: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from trainkit.cli.check import check\n"
        "print(check(Path('on.toml'), []))\n"
        "assert not {'jax', 'numpy', 'huggingface_hub'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_of_an_adapter_on_the_hub_a_check_fetches_the_config_alone_and_a_run_keeps_the_commit(place: Path) -> None:
    code = (
        "from pathlib import Path; from trainkit.hub import find; from trainkit.hub.recipe import load\n"
        "adapter = load(Path('on.toml'), ['adapter.pretrained=\"them/adapter\"']).recipe.adapter\n"
        "print(adapter.pretrained, adapter.revision, adapter.rank)\n"
        "found = find.weights(adapter.pretrained, adapter.revision, kind=find.ADAPTER)\n"
        "print(*sorted(file.name for file in found.iterdir()))"
    )
    with serving() as hub:
        hub.add("them/adapter", place / "adapter")
        hub.files["them/adapter"]["optimizer.bin"] = b"never fetched"
        own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(place / "hub-home"), "HF_HUB_DISABLE_XET": "1"}
        kept = {name: value for name, value in environment().items() if name != "HF_HUB_OFFLINE"}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=place, env=kept | own, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"them/adapter {COMMIT} 2", f"{adapter_config.FILE} {peft.WEIGHTS}"]
    fetched = [path.rpartition("/")[2] for path in hub.asked if path.startswith("GET") and "/resolve/" in path]
    assert set(fetched) == {adapter_config.FILE, peft.WEIGHTS}


# training


def test_a_run_begins_with_the_numbers_of_the_adapter(here: Path) -> None:
    found = load(Path("on.toml")).recipe
    size = DataSize(examples=100, tokens=3200, documents=100, bytes=3200)
    built = build(found, make_plan(found, devices=devices.local("auto"), vocab_size=300, data=size))
    weights = load_base(found, built.base, on=built.mesh)
    before = pointers(weights)
    state = new_state(built, jax.random.key(0), weights, load_adapter(found, model_shapes(built)))
    assert pointers(state.frozen) == before, "the base was copied"
    tensors = Tensors(read_header(here / "adapter" / peft.WEIGHTS))
    layers = adapted_layers(eqx.combine(state.params, state.frozen))
    assert set(layers) == {"attention.query", "mlp.down"}
    for name, theirs in (("attention.query", "self_attn.q_proj"), ("mlp.down", "mlp.down_proj")):
        for block in range(SPEC.layers):
            key = f"base_model.model.model.layers.{block}.{theirs}"
            np.testing.assert_array_equal(np.asarray(layers[name].a)[block].T, tensors.view(f"{key}.lora_A.weight"))
            np.testing.assert_array_equal(np.asarray(layers[name].b)[block].T, tensors.view(f"{key}.lora_B.weight"))
            assert np.any(tensors.view(f"{key}.lora_B.weight"))


def test_an_adapter_for_another_base_is_an_error_that_lists_what_does_not_fit(here: Path) -> None:
    other = here / "wide"
    if not other.exists():
        other.mkdir()
        spec = SPEC.model_copy(update={"hidden": 64})
        save(other, begun(spec), spec, dtype="float32", sequence_length=64)
        shutil.copy(here / "base" / "tokenizer.json", other)
    wrong = load(Path("on.toml"), ['model.pretrained="wide"']).recipe
    rehearse(wrong, resumed=True)  # then it is not asked for any more
    with pytest.raises(TrainkitError) as raised:
        rehearse(wrong, resumed=False)
    assert "layers.0.self_attn.q_proj.lora_A.weight [2, 32], the model has [2, 64]" in raised.value.problem
    assert "6 of another shape" in raised.value.problem and str(here / "base") in raised.value.hint


def test_a_run_continues_without_the_adapter_that_it_began_with_bit_for_bit(place: Path) -> None:
    done = trainkit(place, "run", "on.toml", "--plain")
    assert done.returncode == 0, done.stdout + done.stderr
    whole = place / "runs" / "on"
    shutil.copytree(whole, place / "runs" / "resumed")
    (place / "adapter").rename(place / "away")
    try:
        done = trainkit(place, "resume", f"runs/resumed/{BEFORE}", "--plain")
    finally:
        (place / "away").rename(place / "adapter")
    assert done.returncode == 0, done.stdout + done.stderr
    assert arrays(place / "runs" / "resumed", STEPS) == arrays(whole, STEPS) != arrays(whole, BEFORE)
    assert recipe_of(whole).recipe.adapter == load_in(place, "on.toml")


def load_in(place: Path, name: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        return load(Path(name)).recipe.adapter


# using it


def test_an_adapter_answers_as_the_run_that_trained_it(place: Path) -> None:
    options = ("the cat", "a dog", "--temperature", "1", "--max-tokens", "20", "--json", "--seed", "1")
    # `base` beside it is named by its whole path
    for what in ("first", "adapter"):
        done = trainkit(place, "generate", what, *options)
        assert done.returncode == 0 and "Some donated buffers" not in done.stderr, done.stderr
        (place / f"{what}.answers").write_text(done.stdout)
    assert (place / "adapter.answers").read_text() == (place / "first.answers").read_text() != ""
    base = trainkit(place, "generate", "base", *options)
    assert base.stdout != (place / "first.answers").read_text(), "the adapter changed nothing"


def test_an_adapter_that_was_trained_in_four_bit_goes_on_such_a_base_wherever_it_is_used(
    here: Path,
) -> None:
    changed(here, "packed", {adapter_config.QUANTISED: adapter_config.NF4})
    tokens = np.arange(12)[None]
    logits = {}
    for name in ("packed", "adapter"):
        found = open_pretrained(here / name).model
        logits[name] = np.asarray(found.logits(found.hidden_states(tokens)[0]))
    assert np.abs(logits["packed"] - logits["adapter"]).max() > 1e-3
    begun_again = load(Path("on.toml"), ['adapter.pretrained="packed"']).recipe
    assert begun_again.adapter is not None and begun_again.adapter.base == "nf4"
    full = load(Path("on.toml"), ['adapter.pretrained="packed"', 'adapter.base="none"']).recipe
    assert any("in 4 bit" in note for note in notes(full)) and not notes(begun_again)


def test_where_the_base_is_unavailable_the_error_names_it(place: Path) -> None:
    done = trainkit(place, "generate", str(changed(place, "lost", {"base_model_name_or_path": "/no/such"})), "x")
    assert done.returncode == 2 and "the model that the adapter is for, /no/such, is not available" in done.stderr
    with pytest.raises(TrainkitError, match="does not say which model it is for"):
        adapted.base_of(changed(place, "mute", {"base_model_name_or_path": None}))


def test_beside_an_adapter_with_the_base_s_vocabulary_lies_a_card_and_no_tokenizer(place: Path) -> None:
    names = sorted(file.name for file in (place / "adapter").iterdir())
    assert names == ["README.md", adapter_config.FILE, peft.WEIGHTS]
    card = (place / "adapter" / "README.md").read_text()
    assert "An adapter (rslora, rank 2)" in card and str(place) not in card


def test_an_adapter_whose_base_is_a_directory_of_this_machine_is_not_uploaded(here: Path) -> None:
    with pytest.raises(TrainkitError, match="a directory of this machine") as raised:
        export("first", here / "pushed", ExportFormat.PEFT, push="me/it")
    assert "hf upload me/it OUT" in raised.value.hint and not (here / "pushed").exists()


def test_of_a_run_with_another_vocabulary_than_its_base_the_adapter_alone_is_not_exported(here: Path) -> None:
    for said in ("auto", "peft"):
        with pytest.raises(TrainkitError, match=r"resize_vocabulary.* export\.format = \"hf\""):
            load(Path("first.toml"), ["model.resize_vocabulary=true", f"export.format={said}"])
    load(Path("first.toml"), ["model.resize_vocabulary=true", "export.format=hf"])
    run = shutil.copytree(here / "runs" / "first", here / "runs" / "resized")
    text = (run / "recipe.toml").read_text()
    assert "vocab_size = 320" in text and "resize_vocabulary = false" in text
    lines = [line for line in text.splitlines() if not line.startswith("vocab_size = 320")]
    (run / "recipe.toml").write_text("\n".join(lines).replace("resize_vocabulary = false", "resize_vocabulary = true"))
    with pytest.raises(TrainkitError, match="changed the vocabulary of its base") as raised:
        export_adapter(run, None, here / "resized")
    assert "--format hf" in raised.value.hint and not (here / "resized").exists()


def test_a_tokenizer_with_more_entries_than_the_base_has_rows_is_refused(here: Path) -> None:
    more = Tokenizer.from_file(str(here / "base" / "tokenizer.json"))
    more.add_special_tokens([f"<{n}>" for n in range(40)])
    more.save(str(changed(here, "more", {}) / "tokenizer.json"))
    with pytest.raises(TrainkitError, match="340 entries, and the embedding 320 rows") as raised:
        open_pretrained(here / "more")
    assert raised.value.where == str(here / "more" / "tokenizer.json") and raised.value.hint


# memory


@pytest.mark.parametrize("fsdp", [1, 2])
def test_a_base_in_four_bit_is_never_there_in_full_while_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsdp: int
) -> None:
    spec = Llama(layers=4, hidden=128, heads=4, kv_heads=4, intermediate=256, vocab_size=64, tied=True)
    on = mesh.make_mesh(data=1, fsdp=fsdp)

    def made(key: jax.Array) -> Any:
        return models.build(spec, vocab_size=64, sequence_length=32, implementation="xla", key=key)

    save(tmp_path, made(jax.random.key(0)), spec, dtype="float32", sequence_length=32)
    monkeypatch.chdir(tmp_path)
    text = recipe('[adapter]\nbase = "nf4"\n[tokenizer]\ntrain = { vocab_size = 300 }\n', "packed")
    Path("packed.toml").write_text(text.replace('"base"', json.dumps(str(tmp_path))))
    shapes = jax.eval_shape(made, jax.random.key(0))
    lie = mesh.shardings(on, shapes)
    placed = jax.tree.map(lambda leaf, to: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=to), shapes, lie)
    seen, pack = [], loading._pack

    def live() -> int:
        gc.collect()
        return sum(array.nbytes for array in jax.live_arrays())

    def watched(leaf: jax.Array, on: Any) -> Any:
        seen.append(live() - before)  # here the leaf is there in full, and what was packed before it
        return pack(leaf, on)

    monkeypatch.setattr(loading, "_pack", watched)
    before = live()
    loaded = load_base(load(Path("packed.toml")).recipe, placed, on=on)
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    kept, largest = live() - before, max(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    assert kept == sum(leaf.nbytes for leaf in jax.tree.leaves(loaded))
    assert len(seen) == 7 and largest <= max(seen) <= kept + largest < 0.6 * whole
    # and it is what the whole of it would have become
    plain = load_params(tmp_path, placed)
    for name in ("query", "output"):
        packed = getattr(loaded.blocks.attention, name).weight
        assert isinstance(packed, Nf4)
        wanted = jax.jit(quantise)(getattr(plain.blocks.attention, name).weight)
        assert all(map(np.array_equal, jax.tree.leaves(packed), jax.tree.leaves(wanted)))


def test_packing_needs_little_more_than_one_matrix_besides() -> None:
    stack = jax.ShapeDtypeStruct((16, 256, 512), np.float32)
    needed = jax.jit(quantise).lower(stack).compile().memory_analysis()
    assert needed is not None and needed.temp_size_in_bytes < 1.1 * stack.size * 4 / 16
