"""Checkpoints from the hub, and exports to it, against a hub of our own on this machine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked
import jax
import pytest
from fake_hub import COMMIT, Hub, serving
from small_families import SPECS, model
from trainer import LIMIT, RECIPE, environment, workplace

from trainkit.errors import TrainkitError
from trainkit.hub import find
from trainkit.hub.save import save

_FAMILY = 'type = "gpt2"\nlayers = 2\nhidden = 32\nheads = 2\n'
_TOKENIZER = "[tokenizer]\ntrain = { vocab_size = 300 }\n"
FINE = RECIPE.replace(_FAMILY, 'pretrained = "them/base"\n').replace(_TOKENIZER, "").replace("steps = 24", "steps = 2")

#: What repositories hold besides: pickles, other copies of the weights, code.
UNWANTED = {"pytorch_model.bin", "consolidated.safetensors", "original/model.safetensors", "params.json", "modeling.py"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = workplace(tmp_path_factory.mktemp("remote"), FINE, documents=20)
    (directory / "own.toml").write_text(RECIPE)
    return directory


@pytest.fixture(scope="module")
def hub(place: Path) -> Iterator[Hub]:
    base, spec = place / "made", SPECS["llama"]
    base.mkdir()
    small = jax.tree.map(lambda leaf: leaf * 0.2 if isinstance(leaf, jax.Array) else leaf, model(spec))
    save(base, small, spec, dtype="float32", sequence_length=64, shard_bytes=40_000)
    with serving() as hub:
        done = ask(place, hub, "cache-data", "own.toml")
        assert done.returncode == 0, done.stderr
        shutil.copy(next((place / "cache" / "tokenizers").glob("*/tokenizer.json")), base)
        (base / "chat_template.jinja").write_text("{{ messages }}")
        hub.add("them/base", base)
        hub.files["them/base"] |= dict.fromkeys(UNWANTED, b"never fetched")
        yield hub


def ask(place: Path, hub: Hub, *arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return forked.run(arguments, cwd=place, env=around(place, hub, **how))


def around(place: Path, hub: Hub, *, offline: bool = False, home: str = "hub-home") -> dict[str, str]:
    """Return the environment of a command that finds this hub, and keeps what it fetches in `home`."""
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(place / home), "HF_TOKEN": "hf_none", "HF_HUB_DISABLE_XET": "1"}
    own |= dict.fromkeys(("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"), str(int(LIMIT)))
    own |= {"HF_HUB_OFFLINE": "1"} if offline else {}
    kept = {name: value for name, value in environment().items() if name != "HF_HUB_OFFLINE"}
    return kept | own


@pytest.fixture(scope="module")
def trained(place: Path, hub: Hub) -> list[str]:
    """Train runs/tiny, and return what that asked the hub for."""
    begin = len(hub.asked)
    done = ask(place, hub, "run", "tiny.toml", "--plain")
    assert done.returncode == 0, done.stdout + done.stderr
    return hub.asked[begin:]


@pytest.fixture(scope="module")
def asked_offline(place: Path, hub: Hub, trained: list[str]) -> list[str]:
    """Train once more without a network, by all that was fetched and by less; return what was asked."""
    begin = len(hub.asked)
    for known in (True, False):
        home = shutil.copytree(place / "hub-home", place / f"home-{known}", symlinks=True)
        absent = next(home.rglob(".no_exist"))
        assert any(absent.rglob("special_tokens_map.json"))
        if not known:
            shutil.rmtree(absent)
        again = ("--set", f'data.cache="offline-{known}"', "--name", f"offline-{known}")
        done = ask(place, hub, "run", "tiny.toml", "--plain", *again, offline=True, home=home.name)
        assert done.returncode == 0, done.stdout + done.stderr
    return hub.asked[begin:]


def test_checking_a_recipe_fetches_the_config_alone(place, hub):
    begin = len(hub.asked)
    done = ask(place, hub, "check", "tiny.toml", home="checked")
    assert done.returncode == 0 and "llama" in done.stdout, done.stderr
    assert {path.rpartition("/")[2] for path in hub.asked[begin:] if "/resolve/" in path} == {"config.json"}


def test_a_run_keeps_the_commit_that_it_found_and_fetches_no_pickle(place, trained):
    recipe = tomllib.loads((place / "runs" / "tiny" / "recipe.toml").read_text())
    assert recipe["model"]["pretrained"] == "them/base" and recipe["model"]["revision"] == COMMIT
    assert recipe["tokenizer"] == {"path": "them/base", "revision": COMMIT, "new_tokens": []}
    files = {path.rpartition(f"/resolve/{COMMIT}/")[2] for path in trained}
    weights = {file.name for file in (place / "made").glob("*.safetensors*")}
    assert {file for file in files if "safetensors" in file} == weights
    assert not files & UNWANTED
    assert (place / "runs" / "tiny" / "chat_template.jinja").read_text() == "{{ messages }}"


@pytest.mark.usefixtures("trained")
def test_an_export_is_uploaded_whole_and_names_what_it_began_with(place, hub):
    done = ask(place, hub, "export", "tiny", "out", "--push", "me/mine")
    assert done.returncode == 0 and "uploaded to" in done.stdout, done.stderr
    assert hub.files["me/mine"] == {file.name: file.read_bytes() for file in (place / "out").iterdir()}
    assert "base_model: them/base" in hub.files["me/mine"]["README.md"].decode()
    assert json.loads(hub.files["me/mine"]["config.json"])["architectures"] == ["LlamaForCausalLM"]


def test_what_the_hub_does_not_have_is_reported_with_its_name(place, hub):
    (place / "none.toml").write_text(FINE.replace("them/base", "them/none"))
    done = ask(place, hub, "check", "none.toml")
    assert done.returncode == 2 and "'them/none' is not a directory" in done.stderr


def test_what_was_fetched_once_is_enough_to_work_offline(place, asked_offline):
    assert asked_offline == []
    for known in (True, False):
        assert (place / "runs" / f"offline-{known}" / "chat_template.jinja").exists()
        assert bool(list((place / f"offline-{known}").rglob("not-asked.json"))) is not known


@pytest.mark.usefixtures("asked_offline")
def test_what_nobody_could_be_asked_for_offline_is_asked_for_when_somebody_can_be(place, hub, tmp_path):
    cache = shutil.copytree(place / "offline-False", tmp_path / "cache")
    kept = next((cache / "tokenizers").iterdir())
    hub.files["them/base"]["generation_config.json"] = b'{"eos_token_id": 5}'
    code = (
        "from pathlib import Path; from trainkit.data.tokenizer.load import for_files\n"
        "from trainkit.hub import recipe\n"
        f"recipe = recipe.load(Path('tiny.toml'), ['data.cache=\"{cache}\"']).recipe\n"
        "for_files(recipe, (), {})"
    )
    begin = len(hub.asked)
    command = [sys.executable, "-c", code]
    online = around(place, hub, home="home-False")
    done = subprocess.run(command, cwd=place, env=online, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert (kept / "generation_config.json").read_bytes() == hub.files["them/base"]["generation_config.json"]
    assert not (kept / "not-asked.json").exists()
    assert any(path.endswith(f"/resolve/{COMMIT}/special_tokens_map.json") for path in hub.asked[begin:])


def test_offline_weights_that_are_not_in_the_cache_are_not_said_to_be_nowhere(tmp_path, monkeypatch):
    from huggingface_hub import constants

    assert constants.HF_HUB_OFFLINE
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--them--base" / "snapshots" / COMMIT
    (snapshot.parents[1] / "refs").mkdir(parents=True)
    (snapshot.parents[1] / "refs" / "main").write_text(COMMIT)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    for missing in ("model.safetensors", "a.safetensors"):
        with pytest.raises(TrainkitError, match=f"{missing} is not in its client's cache, and HF_HUB_OFFLINE") as found:
            find.weights("them/base", None)
        assert "check the network" in (found.value.hint or "")
        index = {"weight_map": {"x": "a.safetensors"}}
        (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    (snapshot / "a.safetensors").touch()
    assert find.weights("them/base", None) == snapshot


@pytest.mark.usefixtures("trained")
def test_a_repository_of_pickles_is_refused_before_anything_is_tokenised(place, hub):
    hub.files["them/pickled"] = {
        name: content for name, content in hub.files["them/base"].items() if "safetensors" not in name
    }
    asked = ("--set", 'model.pretrained="them/pickled"', "--set", 'data.cache="pickled"', "--name", "pickled")
    done = ask(place, hub, "run", "tiny.toml", "--plain", *asked)
    assert done.returncode == 2 and "has neither model.safetensors nor model.safetensors.index.json" in done.stderr
    assert "may run any code" in done.stderr and not any("pytorch_model.bin" in path for path in hub.asked)
    assert not (place / "pickled" / "shards").exists() and (place / "cache" / "shards").exists()
