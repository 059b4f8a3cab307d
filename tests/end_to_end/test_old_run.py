"""A run that trainkit 0.1.0 began at commit 99fd3c6 resumes, and every command reads it.

`fixtures/old_run.tar.gz` holds its sources, its cache (of format 2), its directory as it was after it was stopped at
step 3, and `expected.json`: what the same commit then measured up to step 6, and digests of the tokens of each batch.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainer import arrays, killed_at, trainkit

from trainkit.cli.inspect import inspect
from trainkit.data import recorded
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache.build import build
from trainkit.data.recorded import check_same_data
from trainkit.errors import TrainkitError
from trainkit.events.tail import read
from trainkit.rundir.directory import recipe_of

FIXTURE = Path(__file__).parent.parent / "fixtures" / "old_run.tar.gz"
#: Where the run was made: its recipe has absolute paths.
MADE_IN = "/tmp/oldrun"
#: "Never" and "all", as old recipes could say it: no new recipe may have such numbers.
BEYOND = {"every_minutes = 10.0": "every_minutes = 1e12", "top_k = 50": "top_k = 1000000000000"}


def unpacked(directory: Path) -> Path:
    """The run, in a workplace of its own, with numbers that are out of today's ranges."""
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(directory, filter="data")
    run = directory / "runs" / "old"
    for old, new in ({MADE_IN: str(directory)} | BEYOND).items():
        replace_in_recipe(run, old, new)
    return run


def replace_in_recipe(run: Path, old: str, new: str) -> None:
    recipe = run / "recipe.toml"
    assert old in recipe.read_text()
    recipe.write_text(recipe.read_text().replace(old, new))


def recorded_fingerprint(run: Path) -> str:
    manifest: dict[str, Any] = json.loads((run / "checkpoints" / "3" / "manifest.json").read_text())
    return str(manifest["data"])


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run, resumed to its end."""
    run = unpacked(tmp_path_factory.mktemp("resumed"))
    done = trainkit(run.parent.parent, "resume", "old", "--plain")
    assert done.returncode == 0, done.stderr
    return run


def test_a_resumed_old_run_measures_what_the_old_code_measured(resumed: Path) -> None:
    expected = json.loads((resumed.parent.parent / "expected.json").read_text())
    steps = {str(event["step"]): event["metrics"] for event in read(resumed) if event["type"] == "step"}
    assert steps.keys() == expected["steps"].keys()
    for step, metrics in expected["steps"].items():
        for name, value in metrics.items():
            assert steps[step][name] == pytest.approx(value, rel=1e-6), (step, name)
    last = [event["metrics"] for event in read(resumed) if event["type"] == "evaluated" and event["step"] == 6]
    assert last[0]["validation/notes/loss"] == pytest.approx(expected["evaluated"][0]["validation/notes/loss"], 1e-6)


def test_an_old_run_killed_after_it_was_resumed_ends_bit_for_bit_as_if_it_had_not_been(
    tmp_path: Path, resumed: Path
) -> None:
    run = unpacked(tmp_path)
    killed_at("evaluated 3", tmp_path, "resume", "old", "--plain", run="old")
    done = trainkit(tmp_path, "resume", "old", "--plain")
    assert done.returncode == 0, done.stderr
    assert arrays(run, 6) == arrays(resumed, 6)


def test_an_old_run_continues_with_the_same_batches_also_without_its_cache(tmp_path: Path) -> None:
    run = unpacked(tmp_path)
    expected = json.loads((tmp_path / "expected.json").read_text())["batches"]
    recipe = recipe_of(run).recipe
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"cache": str(tmp_path / "empty")})})
    cache = build(recipe)
    check_same_data(cache, recipe, recorded_fingerprint(run), where=run)
    data = TrainSet(cache, recipe)
    tokens = [data.batch(step)["tokens"].astype("<i4").tobytes() for step in range(len(expected))]
    assert [hashlib.blake2b(batch, digest_size=8).hexdigest() for batch in tokens] == expected


def test_every_command_reads_an_old_run(resumed: Path, tmp_path: Path) -> None:
    run = unpacked(tmp_path)
    for arguments, shown in (
        (["runs"], "old  stopped  3/6"),
        (["watch", "old", "--once"], "step 3 / 6"),
        (["compare", "old", str(resumed)], "train/loss"),
        (["export", "old", "exported"], "exported"),
        (["generate", "old", "the cat", "--max-tokens", "2"], ""),
    ):
        done = trainkit(tmp_path, *arguments)
        assert done.returncode == 0 and shown in done.stdout + done.stderr, (arguments, done.stdout, done.stderr)
    lines = "\n".join(inspect(str(run), (), step=2, first=1, rows=None, json=False))
    assert "step 2 -> 3: 4 rows of 32 positions" in lines and "stories.jsonl" in lines


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("weight = 0.75", "weight = 0.7", r"weights of data.train from step 0 on were rounded to 1024ths"),
        (
            'text_key = "text"  # default\npath = "{}/stories.jsonl"',
            'document = {{ type = "prompt", prompt = "{{text}}", response = "{{text}}" }}\npath = "{}/stories.jsonl"',
            r"data.train.0: prompts and conversations are tokenised as a whole now",
        ),
        ("bos = false", "bos = true", "is not what this run was trained on"),
    ],
)
def test_an_old_run_whose_tokens_or_order_would_differ_is_refused_by_name(
    tmp_path: Path, old: str, new: str, named: str
) -> None:
    run = unpacked(tmp_path)
    replace_in_recipe(run, old.format(tmp_path), new.format(tmp_path))
    recipe = recipe_of(run).recipe
    cache = build(recipe)
    with pytest.raises(TrainkitError, match=named):
        check_same_data(cache, recipe, recorded_fingerprint(run), where=run)


def test_an_old_run_whose_documents_end_with_another_token_now_is_refused_by_name(tmp_path: Path) -> None:
    run = unpacked(tmp_path)
    (run / "tokenizer_config.json").write_text('{"eos_token": "a"}')
    replace_in_recipe(run, "[tokenizer.train]\nvocab_size = 280", f'[tokenizer]\npath = "{run}"')
    replace_in_recipe(run, "max_bytes = 50000000", "")
    recipe = recipe_of(run).recipe
    with pytest.raises(TrainkitError, match=r"documents end with 'a' now, and with '<\|endoftext\|>' before"):
        check_same_data(build(recipe), recipe, recorded_fingerprint(run), where=run)


def test_an_old_run_with_a_text_that_was_cut_is_refused_by_name(tmp_path: Path, monkeypatch) -> None:
    run = unpacked(tmp_path)
    recipe = recipe_of(run).recipe
    cache = build(recipe)
    monkeypatch.setattr(recorded, "PIECE", 3000)  # characters; the longest text, notes.txt, has more
    with pytest.raises(TrainkitError, match="texts of more than 3,000 characters are tokenised as a whole now"):
        check_same_data(cache, recipe, recorded_fingerprint(run), where=run)


def test_a_run_of_the_format_before_the_newest_is_known_by_its_fingerprint(tmp_path: Path, monkeypatch) -> None:
    run = unpacked(tmp_path)
    recipe = recipe_of(run).recipe
    cache = build(recipe)
    check_same_data(cache, recipe, recorded._fingerprint(cache, 3), where=run)
    monkeypatch.setattr(recorded, "PIECE", 200)  # some rows of stories.jsonl are longer, and no file is
    rows = recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": recipe.data.train[:1]})})
    alone = build(rows)
    with pytest.raises(TrainkitError, match="texts of more than 200 characters"):
        check_same_data(alone, rows, recorded._fingerprint(alone, 3), where=run)


def test_an_old_run_whose_text_has_changed_is_refused(tmp_path: Path) -> None:
    run = unpacked(tmp_path)
    (tmp_path / "notes.txt").write_text("another text " * 300)
    recipe = recipe_of(run).recipe
    with pytest.raises(TrainkitError, match="is not what this run was trained on"):
        check_same_data(build(recipe), recipe, recorded_fingerprint(run), where=run)


def test_empty_rows_of_tokens_were_documents_and_are_refused_by_name(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    run = unpacked(tmp_path)
    rows = [np.arange(50), np.array([], np.int64), np.arange(90)] * 20
    parquet.write_table(pyarrow.table({"tokens": [row.tolist() for row in rows]}), tmp_path / "rows.parquet")
    text = (run / "recipe.toml").read_text()
    table = re.compile(r'type = "files".*\n(weight = 0.75.*\n)text_key.*\npath.*\nformat.*\n')
    (run / "recipe.toml").write_text(table.sub(f'type = "tokens"\n\\1path = "{tmp_path}/rows.parquet"\n', text))
    recipe = recipe_of(run).recipe
    with pytest.raises(TrainkitError, match=r"data.train.0: 20 rows without token ids are left out now"):
        check_same_data(build(recipe), recipe, recorded_fingerprint(run), where=run)
