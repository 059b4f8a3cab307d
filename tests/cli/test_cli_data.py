"""`trainkit cache-data` and `trainkit inspect`, as a person uses them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from trainer import RECIPE, trainkit, workplace


@pytest.fixture
def place(tmp_path: Path) -> Path:
    rows = [{"q": f"what is {i}", "a": f"it is {i}"} for i in range(60)]
    document = 'document = { type = "prompt", prompt = "{q}?", response = " {a}." }'
    workplace(tmp_path, RECIPE.replace('path = "text/*.txt"', f'path = "qa.jsonl"\n{document}'), documents=0)
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_it_prints_what_is_there_and_examples_with_what_is_learned(place: Path) -> None:
    done = trainkit(place, "cache-data", "tiny.toml", "--show", "2")
    assert done.returncode == 0, done.stderr
    assert re.search(r"train +5\d ", done.stdout) and "held-out" in done.stdout
    assert "row 0" in done.stdout and "row 1" in done.stdout and "row 2" not in done.stdout
    assert re.search(r"qa\.jsonl:\d+, tokens 0–", done.stdout)
    # concatenated, so that a document may begin in the middle of a row; what is given is marked, what is learned is not
    assert re.search(r"⟪[^⟫]*\?⟫ it is \d+\.<\|endoftext\|>", done.stdout)


def test_inspect_shows_before_training_exactly_what_training_sees(place: Path) -> None:
    before = trainkit(place, "inspect", "tiny.toml", "--step", "5", "--rows", "8")
    assert before.returncode == 0, before.stderr
    assert before.stdout.count("row ") >= 8 and "step 5 -> 6" in before.stdout
    ran = trainkit(place, "run", "tiny.toml", "--plain", "--set", "train.steps=2")
    assert ran.returncode == 0, ran.stderr
    after = trainkit(place, "inspect", "tiny", "--step", "5", "--rows", "8")
    assert after.stdout == before.stdout
    lines = (place / "qa.jsonl").read_text()
    (place / "qa.jsonl").unlink()
    without = trainkit(place, "inspect", "tiny", "--step", "5", "--rows", "8")
    assert (without.returncode, without.stdout) == (0, before.stdout), without.stderr
    (place / "qa.jsonl").write_text(lines.replace("it is", "it was"))
    changed = trainkit(place, "inspect", "tiny", "--step", "5", "--rows", "8")
    assert changed.returncode == 2
    assert not changed.stdout
    assert "qa.jsonl has changed" in changed.stderr


def test_inspect_as_json_has_every_row_with_its_pieces(place: Path) -> None:
    done = trainkit(place, "inspect", "tiny.toml", "--first", "2", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["step"], row["row"]) for row in rows] == [(step, row) for step in (0, 1) for row in range(8)]
    for row in rows:
        for piece in row["pieces"]:
            line = int(piece["where"].rpartition(":")[2])
            whole = f"what is {line - 1}? it is {line - 1}.<|endoftext|>"
            text = "".join(text for text, _ in piece["runs"])
            assert text in whole and (piece["first"] > 0 or whole.startswith(text))


def test_inspect_of_what_is_not_there_names_what_is(place: Path) -> None:
    done = trainkit(place, "inspect", "nothing")
    assert done.returncode == 2 and "there is no run 'nothing'" in done.stderr
    done = trainkit(place, "inspect", "nothing.toml")
    assert done.returncode == 2 and "no such file" in done.stderr


def test_a_damaged_shard_is_named_and_made_again(place: Path) -> None:
    assert trainkit(place, "cache-data", "tiny.toml").returncode == 0
    good = {path: path.read_bytes() for path in (place / "cache" / "shards").iterdir()}
    verified = trainkit(place, "cache-data", "tiny.toml", "--verify")
    assert verified.returncode == 0 and "2 shards" in verified.stdout
    flipped, cut = sorted(path for path in good if path.suffix == ".shard")
    torn = bytearray(good[flipped])
    torn[7] ^= 4
    flipped.write_bytes(torn)
    cut.write_bytes(good[cut][:-3])
    verified = trainkit(place, "cache-data", "tiny.toml", "--verify")
    assert verified.returncode == 1
    assert f"{flipped.name}: does not match its checksum" in verified.stdout
    assert f"{cut.name}: has " in verified.stdout and "--repair" in verified.stdout
    repaired = trainkit(place, "cache-data", "tiny.toml", "--repair")
    assert repaired.returncode == 0, repaired.stderr
    assert {path: path.read_bytes() for path in (place / "cache" / "shards").iterdir()} == good


def test_an_exported_cache_is_read_as_one(place: Path) -> None:
    assert trainkit(place, "cache-data", "tiny.toml", "--export", "out").returncode == 0
    again = trainkit(place, "cache-data", "tiny.toml", "--export", "out")
    assert again.returncode == 2 and "a file of this name exists" in again.stderr
    tokenizer = next((place / "cache" / "tokenizers").rglob("tokenizer.json"))
    override = [
        *("--set", 'data.train=[{type="tokens", path="out/train-*.parquet"}]', "--set", "data.held_out=0.0"),
        *("--set", f'tokenizer={{path="{tokenizer}"}}'),
    ]
    of_text = trainkit(place, "inspect", "tiny.toml", "--step", "3", "--json")
    of_tokens = trainkit(place, "inspect", "tiny.toml", "--step", "3", "--json", *override)
    assert of_tokens.returncode == 0, of_tokens.stderr

    def runs(text: str) -> list[list[list[object]]]:
        return [[piece["runs"] for piece in json.loads(line)["pieces"]] for line in text.splitlines()]

    assert runs(of_tokens.stdout) == runs(of_text.stdout)


def test_a_cache_of_another_version_is_refused_with_the_command_that_makes_it_again(place: Path) -> None:
    (place / "cache" / "shards").mkdir(parents=True)
    done = trainkit(place, "cache-data", "tiny.toml")
    assert done.returncode == 2 and "another version" in done.stderr and "--rebuild" in done.stderr
    done = trainkit(place, "run", "tiny.toml", "--plain")
    assert done.returncode == 2 and "--rebuild" in done.stderr
    assert trainkit(place, "cache-data", "tiny.toml", "--rebuild").returncode == 0
    assert trainkit(place, "cache-data", "tiny.toml").returncode == 0


def test_what_was_skipped_is_listed(place: Path) -> None:
    with (place / "qa.jsonl").open("a") as out:
        out.write('{"q": "only"}\n{broken\n')
    done = trainkit(place, "cache-data", "tiny.toml")
    assert done.returncode == 2 and "qa.jsonl:61" in done.stderr
    done = trainkit(place, "cache-data", "tiny.toml", "--set", 'data.on_error="skip"')
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("1 document (") == done.stdout.count("skipped as unreadable: qa.jsonl:6") == 2
    path = re.search(r"listed in (\S+rejected\.jsonl)", done.stdout)
    assert path
    listed = [json.loads(line) for line in (place / path[1]).read_text().splitlines()]
    assert [entry["where"] for entry in listed] == ["qa.jsonl:61", "qa.jsonl:62"]


def test_conversations_are_shown_with_their_template(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ '<|endoftext|>' }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    document = f'document = {{ type = "chat", template = "{template}" }}'
    workplace(tmp_path, RECIPE.replace('path = "text/*.txt"', f'path = "c.jsonl"\n{document}'), documents=0)
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]
    (tmp_path / "c.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 60)
    override = ["--set", 'data.encoding={type="pack"}', "--set", "data.held_out=0.0"]
    done = trainkit(tmp_path, "inspect", "tiny.toml", "--rows", "1", *override)
    assert done.returncode == 0, done.stderr
    assert "⟪<user>hello<|endoftext|><assistant>⟫good day<|endoftext|>" in done.stdout
