"""Training on data that is still being tokenised, and on documents of which only a part is learned."""

from __future__ import annotations

import json
import random
from pathlib import Path

from data_room import tokenizer_file, write_rows
from trainer import BARE, RECIPE, WORDS, Trainer, arrays, losses, trainkit, workplace

from trainkit.events.tail import read

GROWING = (
    BARE.replace('path = "text/*.txt"', 'path = "large.jsonl"')
    .replace("sequence_length = 32", "sequence_length = 32\nshuffle = { window = 32 }")
    .replace("train = { vocab_size = 300 }", 'path = "tokenizer-300.json"')
)
PROMPTS = BARE.replace(
    'path = "text/*.txt"', 'path = "qa.jsonl"\ndocument = { type = "prompt", prompt = "{q}? ", response = "{a}" }'
)
#: A trainer that never tokenises more than the first part of its data.
FIRST_PART_ONLY = """
import itertools, threading
from trainkit import cli
from trainkit.data.cache.encode import CacheWork

do, parts = CacheWork.do, itertools.count()
CacheWork.do = lambda *arguments: threading.Event().wait() if next(parts) else do(*arguments)
cli.program()
"""


def large(directory: Path, megabytes: int) -> None:
    """A tokenizer, and a file of lines; one of more than 8 MiB is tokenised in several parts."""
    tokenizer_file(directory)
    chance = random.Random(1)
    texts = [" ".join(chance.choices(WORDS, k=2000)) for _ in range(100)]
    with (directory / "large.jsonl").open("w") as out:
        for number in range(megabytes * 100):
            out.write(json.dumps({"text": f"{number} {texts[number % 100]}"}) + "\n")


def test_a_run_begins_before_its_data_is_tokenised_and_killed_ends_as_if_all_had_been_there(
    tmp_path: Path,
) -> None:
    ready = workplace(tmp_path / "ready", GROWING, documents=0)
    fresh = workplace(tmp_path / "fresh", GROWING, documents=0)
    for directory in (ready, fresh):
        large(directory, 11)
    assert trainkit(ready, "cache-data", "tiny.toml").returncode == 0
    done = trainkit(ready, "run", "tiny.toml", "--plain")
    assert done.returncode == 0, done.stderr

    def is_tokenised(run: Path) -> bool:
        return any(e["type"] == "cache_progress" and e["what"] == "train" and e["done"] for e in read(run))

    with Trainer(fresh, "run", "tiny.toml", "--plain", program=FIRST_PART_ONLY, held_at="step 8") as trainer:
        assert trainer.until(lambda e: e["type"] == "step" and e["step"] == 8), (fresh / "output.txt").read_text()
        trainer.kill()
    assert not is_tokenised(fresh / "runs" / "tiny")
    done = trainkit(fresh, "resume", "runs/tiny", "--plain")
    assert done.returncode == 0, done.stderr
    assert losses(fresh / "runs" / "tiny") == losses(ready / "runs" / "tiny")
    assert arrays(fresh / "runs" / "tiny", 24) == arrays(ready / "runs" / "tiny", 24)


def test_what_cannot_be_read_ends_a_run_that_has_begun_with_its_line(tmp_path: Path) -> None:
    workplace(tmp_path, GROWING.replace("steps = 24", "steps = 100000"), documents=0)
    large(tmp_path, 2)
    with (tmp_path / "large.jsonl").open("a") as out:
        out.write("{not json\n")
    done = trainkit(tmp_path, "run", "tiny.toml", "--plain")
    assert done.returncode == 2, done.stderr
    assert "large.jsonl:201" in done.stderr and "is not JSON" in done.stderr and 'on_error = "skip"' in done.stderr


def test_packed_prompts_padded_prompts_and_windows_train_and_resume(tmp_path: Path) -> None:
    chance = random.Random(0)
    workplace(tmp_path, PROMPTS, documents=0)
    rows = [{"q": " ".join(chance.choices(WORDS, k=5)), "a": " ".join(chance.choices(WORDS, k=9))} for _ in range(400)]
    write_rows(tmp_path / "qa.jsonl", rows)
    for name, encoding in {
        "pack": '{ type = "pack" }',
        "pad": '{ type = "pad", buckets = [16, 24] }',
        "windows": '{ type = "windows", stride = 16 }',
        "concatenate": '{ type = "concatenate", separate = true }',
    }.items():
        override = ["--set", f"data.encoding={encoding}"]
        whole = trainkit(tmp_path, "run", "tiny.toml", "--plain", "--name", name, *override)
        assert whole.returncode == 0, whole.stderr
        by_step, at_the_end = losses(tmp_path / "runs" / name), arrays(tmp_path / "runs" / name, 24)
        assert by_step[24] < by_step[1] - 0.5
        if name not in ("pack", "pad"):  # the others cut one stream of tokens, as runs of texts do
            continue
        again = trainkit(tmp_path, "resume", f"{name}/12", "--plain")
        assert again.returncode == 0, again.stderr
        (finished,) = [event for event in read(tmp_path / "runs" / name) if event["type"] == "run_finished"]
        assert finished["attempt"] == 2
        assert arrays(tmp_path / "runs" / name, 24) == at_the_end


def test_documents_in_which_nothing_is_learned_end_the_run_before_its_first_step(tmp_path: Path) -> None:
    workplace(tmp_path, RECIPE, documents=0)
    tokens = tmp_path / "tokens.parquet"
    _masked(tokens)
    source = f'[{{type="tokens", path="{tokens}"}}]'
    recipe = ["run", "tiny.toml", "--plain", "--set", f"data.train={source}", "--set", "data.held_out=0.0"]
    file = tokenizer_file(tmp_path)
    done = trainkit(tmp_path, *recipe, "--set", f'tokenizer={{path="{file}"}}')
    assert done.returncode == 2, done.stderr
    assert "none are learned" in done.stderr and "inspect" in done.stderr
    assert "compiled" not in done.stdout, "what is tokenised is checked before the step is compiled"
    assert not [event for event in read(tmp_path / "runs" / "tiny") if event["type"] == "step"]


def _masked(path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = [[i % 200 + 1 for i in range(50)] for _ in range(50)]
    parquet.write_table(pyarrow.table({"tokens": rows, "learned": [[False] * 50 for _ in rows]}), path)
