"""A run that trains an adapter: what it saves, how it continues, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from sample_recipe import TEXT, write
from trainer import RECIPE, arrays, edit_manifest, trainkit, workplace

from trainkit.checkpoint import manifest
from trainkit.errors import WRONG_INPUT, TrainkitError
from trainkit.events.tail import read
from trainkit.hub import peft, tokenizer
from trainkit.hub.adapter_config import FILE
from trainkit.hub.adapter_config import read as read_adapter
from trainkit.recipe.toml.load import load
from trainkit.run.resume import prepare
from trainkit.rundir.directory import recipe_of

ADAPTER = '[adapter]\nrank = 2\nvariant = "dora"\nbase = "nf4"\nlearning_rate_ratio = 4.0\n'
STEPS, BEFORE = 8, 4


def with_adapter(text: str, adapter: str = ADAPTER) -> str:
    return text.replace("[tokenizer]", f"{adapter}[tokenizer]")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workplace with a finished run, and a copy of it."""
    recipe = with_adapter(RECIPE).replace("steps = 24", f"steps = {STEPS}")
    recipe = recipe.replace("[evaluate]\nevery = 10\n", "").replace("every = 12", "temperature = 0.0")
    directory = workplace(
        tmp_path_factory.mktemp("adapter"), recipe.replace("keep_every = 6", f"keep_every = {BEFORE}")
    )
    done = trainkit(directory, "run", "tiny.toml", "--plain")
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.copytree(directory / "runs" / "tiny", directory / "runs" / "copy")
    return directory


def test_a_checkpoint_holds_the_adapter_and_which_base_it_is_for(place: Path) -> None:
    found = manifest.read(place / "runs" / "tiny" / "checkpoints" / str(STEPS))
    assert found.base and not any(name.startswith("frozen") or ".base." in name for name in found.leaves)
    (plan,) = [event["plan"] for event in read(place / "runs" / "tiny") if event["type"] == "planned"]
    assert 0 < plan["trainable"] < plan["parameters"] / 10
    # the adapter and its two moments, float32, and a few numbers beside them
    assert 3 * 4 * plan["trainable"] <= found.bytes <= 3 * 4 * plan["trainable"] + 100


def test_the_plan_s_bytes_of_the_state_are_those_of_the_compiled_step(place: Path) -> None:
    events = list(read(place / "runs" / "tiny"))
    (planned,) = [event["plan"]["bytes"] for event in events if event["type"] == "planned"]
    (compiled,) = [event["memory"] for event in events if event["type"] == "compiled" and event["what"] == "train step"]
    for part in ("parameters", "frozen", "optimizer", "snapshot"):
        assert planned[part] == pytest.approx(compiled[part], abs=64), part
    assert "cast_parameters" not in planned


def test_resumed_it_ends_where_the_uninterrupted_run_ended_bit_for_bit(place: Path) -> None:
    whole = place / "runs" / "tiny"
    shutil.copytree(whole, place / "runs" / "resumed")
    done = trainkit(place, "resume", f"runs/resumed/{BEFORE}", "--plain")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"resuming from step {BEFORE}" in done.stdout + done.stderr
    assert arrays(place / "runs" / "resumed", STEPS) == arrays(whole, STEPS) != arrays(whole, BEFORE)


def test_an_adapter_does_not_continue_on_another_base(place: Path) -> None:
    checkpoint = place / "runs" / "copy" / "checkpoints" / str(BEFORE)
    base = manifest.read(checkpoint).base
    assert base
    edit_manifest(checkpoint, lambda text: text.replace(base, base[::-1]))
    done = trainkit(place, "resume", f"runs/copy/{BEFORE}", "--plain")
    assert done.returncode == WRONG_INPUT, done.stdout + done.stderr
    assert "the adapter was trained on top of another model: its checkpoint records the base" in done.stderr


def test_what_an_adapter_is_cannot_change_within_a_run_and_how_fast_it_learns_can(place: Path) -> None:
    def changed(*overrides: str) -> tuple[str, ...]:
        run = place / "runs" / "changed"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(place / "runs" / "tiny", run)
        begin = {"step": BEFORE, "reset_optimizer": False, "forget_commands": False, "raise_rate": False}
        return prepare(run, overrides=overrides, **begin).notes  # type: ignore[arg-type]

    for override in ("adapter.rank=4", "adapter.alpha=8.0", 'adapter.base="none"', 'adapter.targets=["qkv"]'):
        with pytest.raises(TrainkitError, match="cannot change within a run"):
            changed(override)
    assert any("learning_rate_ratio" in note for note in changed("adapter.learning_rate_ratio=2.0"))


def test_generation_uses_the_adapter_merged_into_its_base(place: Path) -> None:
    (sampled,) = [event for event in read(place / "runs" / "tiny") if event["type"] == "sampled"]
    done = trainkit(place, "generate", "runs/tiny", "the cat", "--temperature", "0", "--max-tokens", "8", "--json")
    assert done.returncode == 0, done.stderr
    assert json.dumps(sampled["text"]) in done.stdout
    assert "Some donated buffers" not in done.stderr


def test_the_adapter_alone_is_exported_as_peft_has_it_with_the_run_s_own_tokenizer(place: Path) -> None:
    done = trainkit(place, "export", "runs/tiny", "adapter", "--format", "peft", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step"] == STEPS
    out = place / "adapter"
    of_tokenizer = [tokenizer.TOKENIZER, tokenizer.CONFIG, tokenizer.GENERATION]
    assert {path.name for path in out.iterdir()} == {FILE, peft.WEIGHTS, "README.md", *of_tokenizer}
    assert (out / tokenizer.TOKENIZER).read_bytes() == (place / "runs" / "tiny" / tokenizer.TOKENIZER).read_bytes()
    assert f"after step {STEPS} of its training" in (out / "README.md").read_text()
    found = read_adapter(out, recipe_of(place / "runs" / "tiny").recipe.model)
    assert (found.rank, found.variant) == (2, "dora")
    assert not list(place.glob(".adapter*"))


@pytest.mark.parametrize(
    ("adapter", "told"),
    [
        ('[adapter]\ntargets = ["q_proj"]\n', "there are attention.qkv, attention.output, mlp_in, mlp_out"),
        ("[adapter]\nlora_r = 8\n", "it is called rank here"),
        ('[adapter]\ntarget_modules = ["qkv"]\n', "it is called targets here"),
        ("[adapter]\nload_in_4bit = true\n", 'it is called base here; write base = "nf4"'),
        ("[adapter]\nlora_dropout = 0.1\n", "it is called dropout here"),
        ("[lora]\nrank = 8\n", "it is called adapter here"),
    ],
)
def test_what_is_wrong_with_an_adapter_is_reported_before_anything_runs(
    tmp_path: Path, adapter: str, told: str
) -> None:
    with pytest.raises(TrainkitError) as raised:
        load(write(tmp_path, with_adapter(TEXT, adapter)))
    assert told in str(raised.value)
