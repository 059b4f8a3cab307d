from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sample_recipe import TEXT, changed, line_of, write

import trainkit
from trainkit.cli.arguments import run_directory
from trainkit.errors import DONE, FAILED, INTERRUPTED, WRONG_INPUT, TrainkitError
from trainkit.events.log import EventLog
from trainkit.plan import DataSize, Devices, make_plan
from trainkit.recipe.toml.load import load
from trainkit.recipe.toml.schema import keys_of, root
from trainkit.rundir.find import find_run


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


WRONG = {
    "a misspelt key": (changed(("layers = 2", "layres = 2")), "layres", "did you mean layers?"),
    "a wrong type": (changed(("layers = 2", 'layers = "two"')), '"two"', "found a string"),
    "heads that do not divide hidden": (changed(("heads = 4", "heads = 5")), "heads", "the nearest that do: 2, 4, 8"),
    "a negative learning rate": (changed(("learning_rate = 1e-3", "learning_rate = -1")), "-1", "from 1e-37 to 10,000"),
    "a zero batch": (changed(("batch_size = 8", "batch_size = 0")), "batch_size", "from 1 to 1,000,000,000"),
    "a syntax error": (changed(("layers = 2", "layers = two")), "two", "write strings in quotes"),
    "a missing section": (
        changed(("[optimizer]", ""), ("learning_rate = 1e-3", "")),
        "",
        "[optimizer] is missing",
    ),
}


@pytest.mark.parametrize("command", ["check", "run", "plan", "cache-data"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_recipe_ends_every_command_with_2_and_the_line_and_leaves_nothing(call, tmp_path, command, wrong):
    text, part, said = WRONG[wrong]
    write(tmp_path, text)
    before = files(tmp_path)
    code, out, err = call(command, "sample.toml")
    assert (code, out) == (WRONG_INPUT, "")
    where = f"sample.toml:{line_of(text, part)}:" if part else "sample.toml:"
    assert err.startswith(f"error: {where}") and said in err
    assert "Traceback" not in err
    assert files(tmp_path) == before


@pytest.mark.parametrize("command", ["check", "run", "plan", "cache-data"])
@pytest.mark.parametrize(("recipe", "said"), [("none.toml", "there is no such file"), (".", "is a directory")])
def test_a_recipe_that_is_not_there_ends_every_command_with_2(call, tmp_path, command, recipe, said):
    code, out, err = call(command, recipe)
    assert (code, out) == (WRONG_INPUT, "")
    assert err.startswith(f"error: {recipe}: {said}")
    assert files(tmp_path) == set()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rnu"], "Did you mean 'run'?"),
        (["check"], "Missing argument 'RECIPE'"),
        (["check", "--st", "a=1", "x"], "--set"),
        (["check", "x", "train.steps=5", "run.name=a b"], "--set train.steps=5 --set 'run.name=a b'"),
        (["run", "x", "--batch-size=8"], "--set train.batch_size=8"),
        (["run", "x", "--train.steps", "5"], "--set train.steps=5"),
        (["plan", "x", "--lr", "3e-4"], "--set optimizer.learning_rate=3e-4"),
        (["check", "x", "--bf16"], 'write compute = "bfloat16"'),
        (["check", "x", "--qwertz"], "No such option"),
        (["check", "x", "y"], "unexpected extra argument"),
        (["run", "x", "--plain", "--json"], "exclude each other"),
        (["plan", "x", "--devices", "0"], "--devices"),
        ([], "Usage: trainkit"),
    ],
)
def test_a_wrong_call_ends_with_2_and_a_word_on_stderr(call, arguments, said):
    code, out, err = call(*arguments)
    assert (code, out) == (WRONG_INPUT, "")
    assert said in err and "Traceback" not in err


def test_an_option_that_is_a_key_of_a_recipe_is_answered_with_the_override(call):
    for section in ("train", "optimizer"):
        for name in keys_of(keys_of(root())[section]):
            for option in (f"--{name}", f"--{name.replace('_', '-')}"):
                if option == "--type":
                    continue  # of many sections
                code, out, err = call("check", "x", option, "1")
                assert (code, out) == (WRONG_INPUT, "")
                assert f"--set {section}.{name}=1" in err, (option, err)


def test_check_says_in_one_line_what_would_be_trained(call, tmp_path):
    write(tmp_path)
    code, out, err = call("check", "sample.toml")
    assert (code, err) == (DONE, "")
    assert re.fullmatch(r"ok: sample: gpt2, [\d,]+ parameters, 20 steps of 512 tokens\n", out)
    assert call("check", "sample.toml", "--set", "train.epochs=1.5")[1] == "ok: sample: gpt2, 1.5 epochs\n"
    assert call("check", "sample.toml", "--set", "train.epochs=1")[1] == "ok: sample: gpt2, 1 epoch\n"
    assert call("check", "sample.toml", "--set", "train.tokens=1000")[1].endswith(" 2 steps of 512 tokens\n")
    assert files(tmp_path) == {"sample.toml"}


@pytest.mark.parametrize(
    ("document", "fix"),
    [
        ('"preference"', '[task] type = "preference"'),
        ('"labelled", texts = ["{prompt}"]', '[task] type = "sequence-classification"'),
    ],
)
def test_documents_of_another_task_than_the_default_are_refused_by_check_and_plan(call, tmp_path, document, fix):
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c", "label": 0}\n' * 9)
    source = f'path = "a.jsonl"\ndocument = {{ type = {document} }}\n[data.encoding]\ntype = "pad"'
    write(tmp_path, changed(('type = "python-stdlib"', source)))
    code, out, err = call("check", "sample.toml")
    assert (code, out) == (WRONG_INPUT, "") and "the task causal-lm does not learn from documents of" in err
    line = line_of((tmp_path / "sample.toml").read_text(), "document =")
    assert err.startswith(f"error: sample.toml:{line}: data.train.0.document: ")
    assert "cached and inspected" in err and fix in err
    code, out, err = call("plan", "sample.toml")
    assert (code, out) == (WRONG_INPUT, "") and "does not learn from documents of type" in err
    assert err.startswith("error: sample.toml:")


FILES = """
[tokenizer]
path = "tokenizer.json"
[data]
sequence_length = 64
[[data.train]]
path = ["text/train-{0..1}.jsonl", "memory://not/asked.jsonl"]
[[data.train]]
path = "text/valid.jsonl"
document = { type = "chat", template = "chat.jinja" }
[[data.validation]]
name = "x"
path = "txt/*.jsonl"
[[data.validation]]
name = "y"
type = "huggingface"
id = "./nowhere"
"""


def test_check_names_every_local_file_that_does_not_exist(call, tmp_path):
    before, _, after = TEXT.partition("[tokenizer]")
    path = write(tmp_path, before + FILES + after[after.index("[train]") :].replace("[sample]", "[statistics]"))
    path.write_text(path.read_text().replace('prompts = ["def main("]\n', ""))
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "valid.jsonl").touch()
    (tmp_path / "tokeniser.json").touch()
    code, out, err = call("check", "sample.toml")
    text = path.read_text()
    missing = {
        'data.train.0.path = "text/train-{0..1}.jsonl"': 'path = ["text',
        'data.train.1.document.template = "chat.jinja"': "document = ",
        'data.validation.0.path = "txt/*.jsonl": no file matches': 'path = "txt',
        'data.validation.1.id = "nowhere": no such file': 'id = "./nowhere"',
        'tokenizer.path = "tokenizer.json": no such file': 'path = "tokenizer',
    }
    assert (code, out) == (WRONG_INPUT, "")
    for problem, written in missing.items():
        assert f"sample.toml:{line_of(text, written)}: {problem}" in err
    assert "memory:" not in err and "train.1.path" not in err
    for near in ("text", "tokeniser.json"):
        assert f"did you mean {tmp_path / near}?" in err


def test_check_knows_batches_that_no_device_can_split(call, tmp_path):
    write(tmp_path)
    code, _, err = call("check", "sample.toml", "--set", "train.micro_batch_size=3")
    assert code == WRONG_INPUT
    line = line_of(TEXT, "batch_size")
    assert err.startswith(f"error: sample.toml:{line}: train.batch_size: batch_size = 8 is not a multiple of")
    assert "train.batch_size = 6 or 9; or train.micro_batch_size = 1, 2 or 4" in err


def test_explain_shows_value_origin_meaning_and_what_is_allowed(call, tmp_path):
    write(tmp_path)
    out = call("explain", "sample.toml", "train.micro_batch_size")[1]
    assert out.splitlines() == [
        'train.micro_batch_size = "auto"  (default)',
        "  Sequences that one device processes at once; the rest is accumulated."
        " `auto` is the largest number that fits.",
        '  allowed: a whole number from 1 to 1,000,000,000 or "auto"',
        '  default: "auto"',
    ]
    out = call("explain", "sample.toml", "train.steps", "--set", "train.steps=7")[1]
    assert out.startswith("train.steps = 7  (--set)\n")
    out = call("explain", "sample.toml", "model")[1]
    assert f"  model.layers = 2  (sample.toml:{line_of(TEXT, 'layers')})\n    Number of transformer blocks." in out
    code, out, err = call("explain", "sample.toml", "model.lyers")
    assert (code, out) == (WRONG_INPUT, "") and "did you mean model.layers" in err
    code, out, err = call("explain", "sample.toml", "task.beta")
    assert code == WRONG_INPUT and "it belongs to other types of [task] than this recipe's" in err
    assert "each key is a list, each a string" in call("explain", "sample.toml", "evaluate.tags")[1]
    code, out, err = call("explain", "sample.toml", "optimizer.lr")
    assert (code, out) == (WRONG_INPUT, "") and "it is called learning_rate here" in err


def test_explain_without_a_key_lists_the_sections_and_without_a_recipe_asks_for_it(call, tmp_path):
    write(tmp_path)
    out = call("explain", "sample.toml")[1]
    assert "\n[checkpoint]\n  When checkpoints are saved" in out and "\nadapter = not given\n" in out
    code, out, err = call("explain", "train.steps")
    assert (code, out) == (WRONG_INPUT, "") and "such as: trainkit explain RECIPE.toml train.steps" in err


def test_explain_shows_which_of_overlapping_groups_decides(call, tmp_path):
    write(tmp_path)
    groups = '[{match="*.bias", weight_decay=0.1}, {match="blocks.*", weight_decay=0.2}, {match="*_in.bias"}]'
    out = call("explain", "sample.toml", "optimizer.groups", "--set", f"optimizer.groups={groups}")[1].splitlines()
    decided = dict(
        line.strip().split(": ", 1) for line in out[out.index("  where groups overlap, the last one decides:") + 1 :]
    )
    assert decided["final_norm.bias"] == "weight_decay = 0.1 (groups.0), learning_rate_factor = 1 (groups.0)"
    assert decided["blocks.mlp_in.bias"] == "weight_decay = 0.2 (groups.1), learning_rate_factor = 1 (groups.2)"
    assert not any("embedding" in names for names in decided)


def test_the_schema_is_json_that_knows_every_section(call):
    code, out, _ = call("schema")
    assert code == DONE
    assert {"extends", "schema", "model", "train"} <= json.loads(out)["properties"].keys()


def test_version_prints_the_version(call):
    assert call("--version") == (DONE, f"trainkit {trainkit.__version__}\n", "")


def test_a_plan_is_a_table_with_every_part(tmp_path):
    from trainkit.cli.plan_table import lines

    loaded = load(write(tmp_path))
    data = DataSize(examples=1000, tokens=64_001, documents=10, bytes=300_000)
    made = make_plan(loaded.recipe, devices=Devices(count=4, memory_bytes=10**6), vocab_size=300, data=data)
    table = lines(made, name="sample", data=data)
    assert table[0] == "plan of sample"
    starts = {re.search(r"\S", line[15:]).start() for line in table[1:] if not line.startswith("    ")}
    assert len(starts) == 1, table
    text = "\n".join(table)
    for part in (
        "20 = 0.16 epochs",
        "8 sequences of 64 = micro-batch 1 x accumulation 2 x 4 devices",
        f"{made.parameters:,}",
        "10 documents",
        "DOES NOT FIT",
    ):
        assert part in text


# where errors go


def test_debug_shows_the_traceback(call, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINKIT_DEBUG", "0")  # and so it is put back, whatever --debug does to it
    assert "Traceback" in call("--debug", "check", "none.toml")[2]
    assert os.environ["TRAINKIT_DEBUG"] == "1", "so that a trainer in its own process hears of it"
    monkeypatch.setenv("TRAINKIT_DEBUG", "0")
    assert "Traceback" not in call("check", "none.toml")[2]


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (RuntimeError("the sky fell"), FAILED, "error: RuntimeError: the sky fell\nhint: this is a bug in trainkit"),
        (
            MemoryError("Unable to allocate 1 TB"),
            FAILED,
            "error: this machine has no memory left: Unable to allocate 1 TB",
        ),
        (TrainkitError("disk full", where="/x", exit_code=FAILED), FAILED, "error: /x: disk full\n"),
        (TrainkitError("\x1b[2J"), WRONG_INPUT, "error: ␛[2J\n"),
        (KeyboardInterrupt(), INTERRUPTED, ""),
        (BrokenPipeError(), FAILED, ""),
    ],
)
def test_whatever_goes_wrong_becomes_an_exit_code_and_at_most_two_lines(call, monkeypatch, raised, code, said):
    def fail(*_: object, **__: object) -> str:
        raise raised

    monkeypatch.setattr("trainkit.hub.recipe.load", fail)
    found, out, err = call("check", "x.toml")
    assert (found, out) == (code, "")
    assert err.startswith(said) and "Traceback" not in err and err.count("\n") <= 2
    assert said or not err


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    read, write_end = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "trainkit", "schema"]
    child = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, cwd=tmp_path, check=False)
    os.close(write_end)
    assert child.stderr == b""


# runs


def make_run(directory: Path, *, finished: bool = True) -> Path:
    directory.mkdir(parents=True)
    log = EventLog(directory, attempt=1)
    log.write(
        "run_started", step=0, schema=1, name=directory.name, pid=os.getpid(), process_started=None, host="elsewhere",
        recipe="x", resumed_from=None, versions={}, orders=[],
    )  # fmt: skip
    log.write("planned", step=0, total_steps=20, plan={}, devices=["cpu"])
    log.write("step", step=7, metrics={"train/loss": 2.5})
    if finished:
        log.write("run_finished", step=7, status="stopped", exit_code=75, message="")
    log.close()
    return directory


def test_a_run_is_found_by_path_by_name_and_with_a_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs/one")
    make_run(tmp_path / "runs/300")
    make_run(tmp_path / "other/two")
    for text, found in {
        "one": ("runs/one", None),
        "runs/one": ("runs/one", None),
        "runs/one/": ("runs/one", None),
        "one/12": ("runs/one", 12),
        "runs/one/12": ("runs/one", 12),
        "runs/one/checkpoints/12": ("runs/one", 12),
        "one/checkpoints/12": ("runs/one", 12),
        "300": ("runs/300", None),
        "300/4": ("runs/300", 4),
        "other/two": ("other/two", None),
        f"{tmp_path}/other/two/9": (f"{tmp_path}/other/two", 9),
    }.items():
        assert find_run(text) == (Path(found[0]), found[1]), text
    assert run_directory("one") == Path("runs/one")
    for text in ("one/best/3", "runs/one/3/best", "one/lats"):
        with pytest.raises(TrainkitError, match="is neither a run nor a checkpoint") as wrong:
            find_run(text)
        assert wrong.value.hint == "write runs/one, or for one of its checkpoints runs/one/STEP or runs/one/best"
    with pytest.raises(TrainkitError, match="is a checkpoint, but this command takes a run"):
        run_directory("one/12")


def test_a_run_that_is_not_there_is_answered_with_the_nearest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrainkitError, match="there is no run 'x'") as found:
        find_run("x")
    assert "trainkit run RECIPE" in found.value.hint
    make_run(tmp_path / "runs/quickstart")
    (tmp_path / "runs/.quick-draft").mkdir()
    for text in ("quikstart", "runs/quikstart/300", "two/checkpoints/5"):
        with pytest.raises(TrainkitError, match="there is no run") as found:
            find_run(text)
        assert "quickstart" in found.value.hint and "draft" not in found.value.hint


@pytest.mark.parametrize("command", [["watch", "x"], ["send", "x", "save"], ["verify", "x"], ["resume", "x"]])
def test_a_command_on_a_run_that_is_not_there_ends_with_2(call, command):
    code, out, err = call(*command)
    assert (code, out) == (WRONG_INPUT, "")
    assert err.startswith("error: there is no run 'x'\nhint: ")


def test_runs_are_listed_with_state_and_loss(call, tmp_path):
    make_run(tmp_path / "runs/b")
    make_run(tmp_path / "runs/a", finished=False)
    (tmp_path / "runs/no-run").mkdir()
    code, out, _ = call("runs")
    assert code == DONE
    head, *rows = [line.split() for line in out.splitlines()]
    assert head[:4] == ["RUN", "STATE", "STEP", "LOSS"]
    assert sorted(row[:4] for row in rows) == [["a", "running", "7/20", "2.5000"], ["b", "stopped", "7/20", "2.5000"]]
    assert call("runs", "none")[0] == WRONG_INPUT


def test_the_dashboard_asks_for_a_terminal(call, tmp_path):
    make_run(tmp_path / "runs/a")
    code, out, err = call("watch", "a")
    assert (code, out) == (WRONG_INPUT, "")
    assert "trainkit watch runs/a --once" in err


def test_verify_names_the_checkpoints_that_there_are(call, tmp_path):
    make_run(tmp_path / "runs/a")
    code, out, err = call("verify", "a/3")
    assert (code, out) == (WRONG_INPUT, "") and "there are: none" in err
    (tmp_path / "runs/a/checkpoints/3").mkdir(parents=True)
    code, out, _ = call("verify", "a")
    assert code == FAILED and out.startswith("runs/a/checkpoints/3: damaged\n")


# data


def test_cached_data_is_counted_and_then_planned_with(call, tmp_path):
    (tmp_path / "text").mkdir()
    for number in range(30):
        (tmp_path / f"text/{number}.txt").write_text(f"Document {number} tells of the number {number}. " * 20)
    (tmp_path / "text/broken.txt").write_bytes(b"caf\xe9")
    source = ('type = "python-stdlib"', 'path = "text/*.txt"')
    write(
        tmp_path, changed(source, ("steps = 20", "epochs = 2"), ("held_out = 0.1", 'held_out = 0.1\non_error = "skip"'))
    )
    code, out, err = call("plan", "sample.toml", "--devices", "2")
    assert (code, out) == (WRONG_INPUT, "")
    assert f"sample.toml:{line_of(TEXT, 'steps') + 1}: train.epochs" in err and "trainkit cache-data" in err

    code, out, err = call("cache-data", "sample.toml", "--workers", "1")
    assert code == DONE, err
    head, train, held_out, skipped, where, last = out.splitlines()
    assert head.split() == ["SET", "DOCUMENTS", "BYTES", "TOKENS"]
    assert train.split()[0] == "train" and held_out.split()[0] == "held-out"
    assert int(train.split()[1]) + int(held_out.split()[1]) == 30
    assert skipped.startswith("warning: 1 document (3.2% of all, 0.0% of the bytes) was skipped as unreadable: ")
    assert "broken.txt:byte 3: is not UTF-8" in skipped
    assert where.endswith("/rejected.jsonl")
    assert last.startswith("vocabulary 300, ") and last.endswith(f" in {tmp_path}/cache")
    assert "train: " in err and ", done" in err, "progress is told on stderr"

    code, out, err = call("plan", "sample.toml", "--devices", "2")
    assert (code, err) == (DONE, "")
    assert f"{train.split()[1]} documents" in out
    assert re.search(r"steps +\d+ = 2\.\d\d epochs\n", out)


def test_an_argument_of_a_command_may_begin_with_a_dash(call, tmp_path):
    make_run(tmp_path / "runs/a")
    code, _, err = call("send", "a", "rate", "-1")
    assert code == WRONG_INPUT and "a number from 1e-06 to 1,000, such as 0.5, found '-1'" in err
    code, _, err = call("send", "a", "sample", "- an item")
    assert code == WRONG_INPUT and "no process is training this run" in err
