"""A run that begins with a checkpoint, from the recipe to the export: in real processes."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from places import FIXTURES
from small_families import arrays, model, shapes
from tokenizers import Tokenizer, processors
from trainer import RECIPE, command, environment, trainkit, workplace

from trainkit.checkpoint import store
from trainkit.data.tokenizer import vocabulary
from trainkit.errors import FAILED, TrainkitError
from trainkit.events.tail import read
from trainkit.hub import tokenizer
from trainkit.hub.load import load_params, read_spec
from trainkit.hub.recipe import load, notes
from trainkit.hub.save import save
from trainkit.infer.text_format import keep_tokenizer, pad_of, template_of, text_format_of
from trainkit.recipe.families.llama import Llama
from trainkit.recipe.sections.document import Chat
from trainkit.run.setup import rehearse
from trainkit.rundir.directory import recipe_of

SPEC = Llama(layers=2, hidden=32, heads=4, kv_heads=2, intermediate=48, context_length=64, vocab_size=320)
_FAMILY = 'type = "gpt2"\nlayers = 2\nhidden = 32\nheads = 2\n'
_TOKENIZER = "[tokenizer]\ntrain = { vocab_size = 300 }\n"
FINE = RECIPE.replace(_FAMILY, 'pretrained = "base"\n').replace(_TOKENIZER, "").replace('"tiny"', '"fine"')
FINE = FINE.replace("steps = 24", "steps = 6").replace("learning_rate = 1e-2", "learning_rate = 1e-3")
CONFIGS = FIXTURES / "configs"
TEMPLATE = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, a checkpoint with a tokenizer in `base`, and the recipe `fine.toml` that begins with it."""
    directory = workplace(tmp_path_factory.mktemp("pretrained"), FINE)
    (directory / "tiny.toml").rename(directory / "fine.toml")
    base = directory / "base"
    base.mkdir()
    save(base, small(), SPEC, dtype="float32", sequence_length=64)
    (directory / "own.toml").write_text(RECIPE)
    made = trainkit(directory, "cache-data", "own.toml")
    assert made.returncode == 0, made.stderr
    shutil.copy(next((directory / "cache" / "tokenizers").glob("*/tokenizer.json")), base)
    (base / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>", "chat_template": TEMPLATE}))
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": [5], "temperature": 0.6}))
    return directory


def small() -> object:
    """Weights of the size that models begin with."""
    return jax.tree.map(lambda leaf: leaf * 0.2 if isinstance(leaf, jax.Array) else leaf, model(SPEC))


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    done = trainkit(place, "run", "fine.toml", "--plain")
    assert done.returncode == 0, done.stdout + done.stderr
    return place / "runs" / "fine"


@pytest.fixture(scope="module")
def exported(place: Path, run: Path) -> subprocess.CompletedProcess[str]:
    done = trainkit(place, "export", "fine", "out")
    assert done.returncode == 0, done.stderr
    return done


def here(place: Path, monkeypatch: pytest.MonkeyPatch, recipe: str = FINE, *overrides: str):  # type: ignore[no-untyped-def]
    monkeypatch.chdir(place)
    (place / "other.toml").write_text(recipe)
    return load(Path("other.toml"), overrides)


# the recipe


def test_the_resolved_recipe_holds_what_the_config_says_and_where_it_was_said(place, monkeypatch):
    loaded = here(place, monkeypatch)
    found = loaded.recipe.model
    assert found.model_dump(exclude={"pretrained"}) == SPEC.model_dump(exclude={"pretrained"})
    assert found.pretrained == str(place / "base")
    assert loaded.origins["model.layers"] == str(place / "base" / "config.json")
    assert loaded.origins["model.pretrained"].startswith("other.toml:")
    assert loaded.recipe.tokenizer.path == str(place / "base")


def test_a_tokenizer_that_is_given_goes_before_the_one_beside_the_weights(place, monkeypatch):
    loaded = here(place, monkeypatch, FINE + _TOKENIZER)
    assert loaded.recipe.tokenizer.path is None and loaded.recipe.tokenizer.train is not None


def test_what_no_shape_hangs_on_may_be_said_otherwise(place, monkeypatch):
    loaded = here(place, monkeypatch, FINE, "model.rope_theta=5e5", "model.context_length=128")
    assert (loaded.recipe.model.rope_theta, loaded.recipe.model.context_length) == (5e5, 128)
    assert loaded.origins["model.rope_theta"] == "--set"


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (FINE.replace('"base"', '"base"\nlayers = 3\ntype = "gpt2"'), ["layers = 3: the checkpoint has 2", "gpt2"]),
        (FINE.replace('"base"', '"./nowhere"'), ["there is no directory", "other.toml:6"]),
        (FINE.replace('"base"', '"base/tokenizer.json"'), ["is a file"]),
        (FINE.replace('"base"', '"text"'), ["there is no config.json", "other.toml:6: model.pretrained: "]),
        (FINE.replace('"base"', '""'), ["it is empty", "other.toml:6"]),
        (FINE.replace('"base"', '"base"\nrevision = "main"'), ["model.revision is for hub ids", "other.toml:7"]),
        (FINE.replace('"base"', '"base"\nlayerz = 3'), ["model.layerz = 3: no such key", "layers"]),
        (RECIPE.replace("heads = 2", 'heads = 2\nrevision = "main"'), ["revision goes with pretrained"]),
        (RECIPE.replace("heads = 2", 'heads = 2\nmodel_name_or_path = "x"'), ["it is called pretrained here"]),
    ],
    ids=["otherwise", "nowhere", "file", "no config", "empty", "revision", "no such key", "revision alone", "foreign"],
)
def test_what_is_wrong_is_reported_with_its_place(place, monkeypatch, recipe, words):
    with pytest.raises(TrainkitError) as caught:
        here(place, monkeypatch, recipe)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_check_needs_nothing_that_trains(place):
    code = (
        "import sys; from pathlib import Path; from trainkit.cli.check import check\n"
        "print(check(Path('fine.toml'), []))\n"
        "assert not {'jax', 'numpy', 'huggingface_hub'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "llama" in done.stdout, done.stderr


# the vocabulary


def test_a_tokenizer_with_more_entries_than_the_embedding_has_rows_is_refused(place, monkeypatch):
    recipe = here(place, monkeypatch).recipe
    assert recipe.model.rows(300) == 320 == recipe.model.rows(320)
    with pytest.raises(TrainkitError, match="resize_vocabulary = true"):
        recipe.model.rows(321)
    resized = here(place, monkeypatch, FINE, "model.resize_vocabulary=true").recipe
    assert resized.model.rows(321) == 321 and resized.model.rows(300) == 300


def test_an_embedding_that_is_cut_to_the_tokenizer_keeps_its_first_rows(place):
    asked = ("--set", "model.resize_vocabulary=true", "--set", "optimizer.learning_rate=1e-9", "--set", "train.steps=1")
    done = trainkit(place, "run", "fine.toml", "--plain", "--name", "cut", *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    done = trainkit(place, "export", "cut", "cut-out")
    assert done.returncode == 0, done.stderr
    found = arrays(load_params(place / "cut-out", shapes(SPEC, vocab=300)))
    np.testing.assert_allclose(found["token_embedding"], arrays(small())["token_embedding"][:300], atol=1e-6)


def test_the_positions_that_gpt2_has_learned_cannot_be_others(place, monkeypatch):
    (place / "gpt2").mkdir()
    shutil.copy(CONFIGS / "gpt2.json", place / "gpt2" / "config.json")
    recipe = FINE.replace('"base"', '"gpt2"')
    with pytest.raises(TrainkitError, match="context_length = 512: the checkpoint has 1024"):
        here(place, monkeypatch, recipe, "model.context_length=512")
    with pytest.raises(TrainkitError, match=r"these may differ: (?!.*context_length)"):
        here(place, monkeypatch, recipe, "model.layers=2")


# training


def test_a_run_begins_with_the_weights_of_the_checkpoint(place):
    asked = ("--set", "optimizer.learning_rate=1e-9", "--set", "train.steps=1")
    done = trainkit(place, "run", "fine.toml", "--plain", "--name", "still", *asked, devices=2)
    assert done.returncode == 0, done.stdout + done.stderr
    done = trainkit(place, "export", "still", "still-out")
    assert done.returncode == 0, done.stderr
    found, wanted = arrays(load_params(place / "still-out", shapes(SPEC))), arrays(small())
    for name, numbers in wanted.items():
        np.testing.assert_allclose(found[name], numbers, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("damage", "words"),
    [("pickled", "may run any code"), ("cut off", "it is cut off"), ("of another shape", "of another shape")],
)
def test_weights_that_are_unavailable_are_reported_before_any_text_is_tokenised(place, run, damage, words):
    base = place / damage
    shutil.copytree(place / "base", base)
    weights = base / "model.safetensors"
    if damage == "pickled":
        weights.rename(base / "pytorch_model.bin")
    elif damage == "cut off":
        weights.write_bytes(weights.read_bytes()[:-100])
    else:
        save(base, model(SPEC.model_copy(update={"intermediate": 56})), SPEC, dtype="float32", sequence_length=64)
    asked = ("--set", f'model.pretrained="{damage}"', "--set", f'data.cache="cache {damage}"', "--name", base.name)
    done = trainkit(place, "run", "fine.toml", "--plain", *asked)
    assert done.returncode == 2 and words in done.stderr, done.stdout + done.stderr
    assert not (place / f"cache {damage}" / "shards").exists() and (place / "cache" / "shards").exists()


def test_a_resume_needs_neither_the_weights_nor_their_config(place, run):
    copy = place / "runs" / "copy"
    shutil.copytree(run, copy)
    hidden = {name: (place / "base" / name).read_bytes() for name in ("config.json", "model.safetensors")}
    try:
        for name in hidden:
            (place / "base" / name).unlink()
        assert recipe_of(copy).recipe == recipe_of(run).recipe
        done = trainkit(place, "resume", "runs/copy", "--plain", "--set", "train.steps=8", "--raise-rate")
        assert done.returncode == 0 and "finished at step 8" in done.stdout, done.stdout + done.stderr
    finally:
        for name, content in hidden.items():
            (place / "base" / name).write_bytes(content)


# the export


def test_an_export_is_the_checkpoint_and_says_that_it_was_compared(place, run, exported):
    assert "its logits differ from the checkpoint's by at most 0.0e+00 of the largest" in exported.stdout
    out = place / "out"
    names = {file.name for file in out.iterdir()}
    assert names == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert read_spec(out) == SPEC
    newest = store.newest(run)
    assert newest is not None and newest.step == 6
    assert f"step {newest.step}" in exported.stdout


def test_tokenizer_template_and_generation_config_come_along(place, exported):
    out = place / "out"
    config = json.loads((out / "tokenizer_config.json").read_text())
    assert config["chat_template"] == TEMPLATE and config["eos_token"] == "<|endoftext|>"
    generation = json.loads((out / "generation_config.json").read_text())
    # the token that ended every document in training, and what the checkpoint had besides
    assert generation == {"eos_token_id": [0, 5], "bos_token_id": 0, "temperature": 0.6}
    assert json.loads((out / "config.json").read_text())["eos_token_id"] == [0, 5]
    assert (out / "tokenizer.json").read_bytes() == (place / "base" / "tokenizer.json").read_bytes()


def test_an_export_says_how_the_checkpoint_began_and_was_padded_and_training_has_its_dropout(place, tmp_path):
    codec = vocabulary.load(place / "base" / "tokenizer.json")
    text = FINE.replace('pretrained = "base"', f'pretrained = "{place / "base"}"')
    (tmp_path / "r.toml").write_text(text)
    config = json.loads((place / "base" / "config.json").read_text())
    before = (place / "base" / "config.json").read_bytes()
    changes = {"pad_token_id": 7, "initializer_range": 0.01, "attention_dropout": 0.1}
    (place / "base" / "config.json").write_text(json.dumps(config | changes))
    try:
        recipe = load(tmp_path / "r.toml").recipe
        assert recipe.model.attention_dropout == 0.1 and not notes(recipe)
        assert load(tmp_path / "r.toml", ["model.attention_dropout=0.0"]).recipe.model.attention_dropout == 0
        assert (pad_of(recipe, codec), recipe.model.initializer_range) == (7, 0.01)
        # of another tokenizer it is another token, and of a smaller vocabulary none
        own = load(tmp_path / "r.toml", [f'tokenizer.path="{place / "base" / "tokenizer.json"}"']).recipe
        assert pad_of(own, codec) is None
        few = load(tmp_path / "r.toml", ["model.pad_token_id=5000"]).recipe
        assert pad_of(few, codec) is None
    finally:
        (place / "base" / "config.json").write_bytes(before)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "of another model", "pad_token": "a"}))
    shutil.copy(place / "base" / "tokenizer.json", tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    for pad, written in ((7, 7), (None, codec.encode("a")[0])):
        said = tokenizer.write(out, tmp_path, codec, begin=(), ends=[0], template=None, context_length=64, pad=pad)
        assert said == {"eos_token_id": 0, "bos_token_id": codec.beginning_of_text, "pad_token_id": written}
        assert json.loads((out / "generation_config.json").read_text())["pad_token_id"] == written
        assert json.loads((out / "tokenizer_config.json").read_text())["eos_token"] == "<|endoftext|>"


def test_the_card_holds_the_recipe_and_the_last_evaluation(place, run, exported):
    card = (place / "out" / "README.md").read_text()
    last = [event for event in read(run) if event["type"] == "evaluated"][-1]
    assert f"{last['metrics']['validation/held-out/loss']:.4f}" in card
    assert "steps = 6" in card and card.startswith("---\nlibrary_name: transformers\n")


def test_bfloat16_is_exported_where_it_is_asked_for(place, exported):
    done = trainkit(place, "export", "runs/fine/6", "half", "--dtype", "bfloat16")
    assert done.returncode == 0 and "rounding the weights changed the logits by" in done.stdout, done.stderr
    assert json.loads((place / "half" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    whole, half = (arrays(load_params(place / out, shapes(SPEC), dtype=jnp.bfloat16)) for out in ("out", "half"))
    assert all((half[name] == numbers).all() for name, numbers in whole.items())


def test_nothing_is_written_over_and_nothing_is_left_of_what_failed(place, run, exported):
    done = trainkit(place, "export", "fine", "out")
    assert done.returncode == 2 and "this path exists already" in done.stderr
    done = trainkit(place, "export", "fine/5", "new")
    assert done.returncode == 2 and not (place / "new").exists()
    assert not [path for path in place.iterdir() if path.name.startswith(".")]


def test_an_export_that_gives_other_logits_fails_loudly(place, run, monkeypatch):
    from trainkit.export import model as room

    def wrong(directory: Path, model: object, spec: Llama, **more: object) -> object:
        return save(directory, model, spec.model_copy(update={"rope_theta": 2e4}), **more)  # type: ignore[arg-type]

    monkeypatch.setattr(room, "save", wrong)
    with pytest.raises(TrainkitError, match="does not reproduce the model's logits") as caught:
        room.export(run, None, place / "wrong", dtype="float32")
    assert caught.value.exit_code == 1 and not (place / "wrong").exists()


def held() -> dict[int, int]:
    """Where arrays are in memory, and how many bytes they have there."""
    parts = [shard.data for array in jax.live_arrays() for shard in array.addressable_shards]
    return {part.unsafe_buffer_pointer(): part.nbytes for part in parts}


def test_while_an_export_is_compared_there_is_one_copy_of_the_model(place, run, monkeypatch):
    from trainkit.export import model as room

    gc.collect()
    before = held()
    bytes_of: dict[str, list[int]] = {"computed": [], "read": []}

    def noting(what, function):
        def noted(*given, **more):
            bytes_of[what].append(sum(size for place, size in held().items() if place not in before))
            return function(*given, **more)

        return noted

    monkeypatch.setattr(room, "_logits", noting("computed", room._logits))
    monkeypatch.setattr(room, "load_params", noting("read", room.load_params))
    done = room.export(run, None, place / "lean", dtype="bfloat16")
    assert done.rounding > 0
    whole = sum(numbers.nbytes for numbers in arrays(small()).values())
    # of the weights as they were, rounded, and read back; small leaves are on each of eight devices
    assert all(whole <= size < 1.2 * whole for size in bytes_of["computed"]) and len(bytes_of["computed"]) == 3
    # before they are read nothing is left of the others
    assert len(bytes_of["read"]) == 1 and bytes_of["read"][0] < 0.1 * whole


def test_an_empty_directory_is_filled_and_stays_the_one_that_it_was(place, exported):
    (place / "here").mkdir()
    before = (place / "here").stat().st_ino
    done = trainkit(place / "here", "export", "../runs/fine", ".")
    assert done.returncode == 0, done.stderr
    assert (place / "here").stat().st_ino == before
    here, out = (
        # the card tells the recipe, in which paths are as they are from here
        {path.name: path.name == "README.md" or path.read_bytes() for path in (place / name).iterdir()}
        for name in ("here", "out")
    )
    assert here == out


def test_a_disk_that_takes_no_more_is_reported_as_such(place, run):
    script = "import os, resource, sys\nresource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
    script += "os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", script, *command("export", "fine", "full")],
        cwd=place,
        env=environment() | {"JAX_ENABLE_COMPILATION_CACHE": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == FAILED and "bug in trainkit" not in done.stderr
    assert f"{place}/full: the export cannot be written: File too large" in done.stderr
    assert not (place / "full").exists() and not list(place.glob(".full*"))


# how texts begin and end


def test_how_texts_end_is_kept_when_a_run_begins_and_is_what_counts_from_then_on(place, monkeypatch, tmp_path):
    base, run = tmp_path / "base", tmp_path / "run"
    shutil.copytree(place / "base", base)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"eos_token_id": [5, 7]}))
    run.mkdir()
    recipe = here(place, monkeypatch, FINE.replace('"base"', json.dumps(str(base)))).recipe
    codec = vocabulary.load(base / "tokenizer.json")
    keep_tokenizer(codec, recipe, run)
    kept = text_format_of(recipe, run, codec)
    assert kept.ends == (0, 5, 7)
    assert json.loads((run / "generation_config.json").read_text()) == {"eos_token_id": [5, 7], "temperature": 0.6}
    # other files where it is from, and none
    (base / "config.json").write_text(json.dumps(config | {"eos_token_id": 8}))
    (base / "generation_config.json").write_text('{"eos_token_id": 9}')
    (base / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}<|end|>{% endfor %}")
    keep_tokenizer(codec, recipe, run)
    assert text_format_of(recipe, run, codec) == kept
    shutil.rmtree(base)
    keep_tokenizer(codec, recipe, run)
    assert text_format_of(recipe, run, codec) == kept


def test_beside_a_tokenizer_s_file_that_is_named_by_itself_no_config_says_how_texts_end(place, monkeypatch, tmp_path):
    shutil.copy(place / "base" / "tokenizer.json", tmp_path)
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    (run := tmp_path / "run").mkdir()
    file, directory = (
        f"[tokenizer]\npath = {json.dumps(str(path))}\n" for path in (tmp_path / "tokenizer.json", tmp_path)
    )
    codec, recipe = vocabulary.load(tmp_path / "tokenizer.json"), here(place, monkeypatch, FINE + file).recipe
    keep_tokenizer(codec, recipe, run)
    assert text_format_of(recipe, run, codec).ends == (0,)
    (tmp_path / "config.json").write_text("of something else")
    rehearse(recipe, resumed=False)
    recipe = here(place, monkeypatch, FINE + directory).recipe
    rehearse(recipe, resumed=True)
    with pytest.raises(TrainkitError) as raised:  # and not after hours of tokenising
        rehearse(recipe, resumed=False)
    assert str(tmp_path / "config.json") in str(raised.value)


def test_of_a_run_that_kept_no_template_of_its_training_the_recipe_s_goes_before_the_tokenizer_s(tmp_path):
    own = "{{ messages }} of the tokenizer"
    (tmp_path / tokenizer.CONFIG).write_text(json.dumps({"chat_template": own}))
    (source := tmp_path / "chat.jinja").write_text("{{ messages }} of the file")
    inline, file = Chat(type="chat", template="{{ messages }} of the recipe"), Chat(type="chat", template=str(source))

    def found(chat: Chat) -> str:
        template = template_of(chat.chat_template, (tmp_path,))
        assert template is not None
        return template.text.rpartition(" of ")[2]

    assert [found(chat) for chat in (inline, file, Chat(type="chat"))] == ["the recipe", "the file", "the tokenizer"]
    source.unlink()
    assert found(file) == "the tokenizer"
    source.write_text("{{ messages }} of another day")
    (tmp_path / tokenizer.TEMPLATE).write_text("{{ messages }} of training")
    assert [found(chat) for chat in (inline, file)] == ["the recipe", "training"]


BYTES = processors.ByteLevel(trim_offsets=False)


def putting(before: str, after: str = "") -> processors.PostProcessor:
    names = [name for name in (before, after) if name]
    single = f"{before} $A {after}".strip()
    return processors.TemplateProcessing(single, f"{single} $B:1", [(name, NAMED[name]) for name in names])


NAMED = {"<|endoftext|>": 0, "<s>": 300}
PROCESSORS = {
    "none": None,
    "bytes": BYTES,
    "begins": putting("<s>"),
    "begins, padded": putting("<s>"),
    "begins otherwise": putting("<|endoftext|>"),
    "begins and ends": putting("<s>", "<|endoftext|>"),
    "bytes, begins": processors.Sequence([BYTES, putting("<s>")]),
    "as RoBERTa": processors.RobertaProcessing(("<|endoftext|>", 0), ("<s>", 300)),
}


@pytest.mark.parametrize("bos", [False, True], ids=["without", "with a token before"])
@pytest.mark.parametrize("name", PROCESSORS)
def test_an_exported_tokenizer_begins_a_text_as_training_did(place, tmp_path, name, bos):
    own = Tokenizer.from_file(str(place / "base" / "tokenizer.json"))
    own.add_special_tokens(["<s>"])
    assert own.token_to_id("<s>") == NAMED["<s>"]
    if PROCESSORS[name] is not None:
        own.post_processor = PROCESSORS[name]
    if name.endswith("padded"):
        own.enable_padding(length=16)
        own.enable_truncation(max_length=2)
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    out.mkdir()
    own.save(str(source / "tokenizer.json"))
    (source / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|endoftext|>", "add_bos_token": not bos}))
    (source / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<|endoftext|>"}}))
    codec = vocabulary.load(source / "tokenizer.json")
    begin = [NAMED["<s>"]] if bos else []
    tokenizer.write(out, source, codec, begin=begin, ends=[0, 5], template=None, context_length=64, pad=None)
    written = Tokenizer.from_file(str(out / "tokenizer.json"))
    written.no_padding()  # as transformers has it where neither is asked for
    written.no_truncation()
    for text in ("", "the cat", " sat\n"):
        assert written.encode(text).ids == [*begin, *codec.encode(text)]
    assert written.decode(codec.encode(" sat\n")) == " sat\n"
    config, names = (json.loads((out / file).read_text()) for file in (tokenizer.CONFIG, tokenizer.NAMES))
    assert (config["add_bos_token"], config["add_eos_token"]) == (bos, False)
    said = {"bos_token": "<s>"} if bos else {"bos_token": {"content": "<|endoftext|>"}}
    assert names == said and (config["bos_token"] == "<s>") == bos
    as_it_was = (out / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert as_it_was == (name in (("begins", "begins, padded", "bytes, begins") if bos else ("none", "bytes")))
