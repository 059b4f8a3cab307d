from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import tomli
from hypothesis import given, settings
from hypothesis import strategies as st
from places import ROOT
from sample_recipe import TEXT, changed, line_of, write

from trainkit.errors import WRONG_INPUT, TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.sections.task import Task
from trainkit.recipe.spec import type_of
from trainkit.recipe.toml import schema
from trainkit.recipe.toml.layers import TYPES
from trainkit.recipe.toml.load import Loaded, load, load_resolved
from trainkit.recipe.toml.positions import Key, dotted_key, locate
from trainkit.recipe.toml.pretrained import PretrainedCheckpoint
from trainkit.recipe.toml.suggestions import ALIASES
from trainkit.recipe.toml.values import differences, dumps, toml_value
from trainkit.recipe.union import members_of

modest = settings(max_examples=100, deadline=None)


def wrong(path: Path, *overrides: str) -> str:
    """What a person is told about a recipe that is wrong."""
    with pytest.raises(TrainkitError) as found:
        load(path, overrides)
    assert found.value.exit_code == WRONG_INPUT
    assert "pydantic" not in str(found.value) and "Input should" not in str(found.value)
    return str(found.value)


def told(tmp_path: Path, *changes: tuple[str, str]) -> str:
    return wrong(write(tmp_path, changed(*changes)))


# reading


def test_every_value_has_an_origin(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = load(write(tmp_path), ["train.steps=5", "sample.prompts.0=x"])
    assert loaded.origins["model.layers"] == f"sample.toml:{line_of(TEXT, 'layers')}"
    assert loaded.origins["tokenizer.train.vocab_size"] == f"sample.toml:{line_of(TEXT, 'vocab_size')}"
    assert loaded.origins["data.train.0.type"] == f"sample.toml:{line_of(TEXT, 'python-stdlib')}"
    assert loaded.origins["train.steps"] == loaded.origins["sample.prompts"] == "--set"
    assert loaded.origins["optimizer.betas"] == loaded.origins["task.type"] == "default"


def test_a_run_is_called_after_its_file_where_it_has_no_name(tmp_path):
    assert load(write(tmp_path, changed(('name = "sample"', "")), "mine.toml")).recipe.run.name == "mine"


def test_paths_are_made_absolute_so_that_a_run_resumes_from_anywhere(tmp_path, monkeypatch):
    (tmp_path / "tokenizer.json").write_text("{}")
    text = changed(
        ('type = "python-stdlib"', 'path = ["a/*.txt", "~/b.txt"]'),
        ("train = { vocab_size = 300 }", 'path = "tokenizer.json"'),
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    recipe = load(write(tmp_path, text)).recipe
    assert recipe.data.train[0].path == (f"{tmp_path}/a/*.txt", "/home/somebody/b.txt")
    assert recipe.data.cache == f"{tmp_path}/cache"
    assert recipe.run.directory == f"{tmp_path}/runs"
    assert recipe.track.repository == str(tmp_path)
    assert recipe.tokenizer.path == f"{tmp_path}/tokenizer.json"


@pytest.mark.parametrize("where", ["validation", "train"])
def test_files_of_chat_templates_and_of_datasets_in_a_directory_are_found_too(tmp_path, monkeypatch, where):
    (tmp_path / "owner" / "here").mkdir(parents=True)
    (tmp_path / "file").touch()
    ids = ["owner/here", "owner/there", "file"]
    rows = [f'{{ type = "huggingface", id = "{name}", KEY }}' for name in ids]
    templates = {"chat.jinja": f"{tmp_path}/chat.jinja", "{{ messages }}": "{{ messages }}", "{% if a %}": "{% if a %}"}
    rows += [f'{{ path = "a.jsonl", KEY, document = {{ type = "chat", template = "{name}" }} }}' for name in templates]
    keys = [f'name = "{i}"' if where == "validation" else "weight = 1.0" for i in range(len(rows))]
    rows = [row.replace("KEY", key) for row, key in zip(rows, keys, strict=True)]
    more = f"data.validation=[{', '.join(rows)}]"
    monkeypatch.chdir(tmp_path)
    recipe = load(write(tmp_path), [more.replace("validation", where)]).recipe
    found = getattr(recipe.data, where)
    assert [source.id for source in found[:3]] == [f"{tmp_path}/owner/here", "owner/there", "file"]
    assert [source.document.template for source in found[3:]] == list(templates.values())


URLS = (
    "s3://bucket/x.txt",
    "s3://bucket/{a,b}/**/x-{000..127}.jsonl.gz",
    "https://host.org/a//b/../x.csv?y=1",
    "http://host.org/x.txt",
    "file:///data/x-{1..3}.txt",
    "hf://datasets/owner/name/*.parquet",
)


def test_urls_are_left_as_they_are(tmp_path):
    for type_ in ("files", "tokens"):
        paths = f'[{{ type = "{type_}", path = {json.dumps(URLS)} }}, {{ type = "{type_}", path = "{URLS[1]}" }}]'
        several, one = load(write(tmp_path), [f"data.train={paths}"]).recipe.data.train
        assert (several.path, one.path) == (URLS, URLS[1])


def test_the_id_of_a_tokenizer_on_the_hub_is_left_as_it_is(tmp_path):
    text = changed(("train = { vocab_size = 300 }", 'path = "openai-community/gpt2"'))
    assert load(write(tmp_path, text)).recipe.tokenizer.path == "openai-community/gpt2"


def test_a_revision_goes_with_what_is_on_the_hub_alone(tmp_path):
    here = tmp_path / "tokenizer.json"
    here.touch()
    said = told(tmp_path, ("train = { vocab_size = 300 }", f'path = "{here}"\nrevision = "main"'))
    assert f"tokenizer.revision is for hub ids, but {here} is on this machine" in said
    trained = ("train = { vocab_size = 300 }", 'train = { vocab_size = 300 }\nrevision = "main"')
    assert "revision goes with path" in told(tmp_path, trained)


def test_an_export_that_cannot_be_is_reported_with_what_of_the_model_is_in_its_way(tmp_path):
    text = changed(('type = "gpt2"', 'type = "mpt"\nexpansion_ratio = 2'), ("[track]", "[export]\nevery = 5\n[track]"))
    said = wrong(write(tmp_path, text))
    assert f"sample.toml:{line_of(text, 'expansion_ratio')}: " in said and "model.expansion_ratio = 2" in said


# extends


def test_tables_merge_and_lists_replace_and_the_file_wins_over_its_bases(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, name="base/one.toml")
    write(tmp_path, "[model]\nheads = 8\n[sample]\nmax_tokens = 7\n", "base/two.toml")
    top = write(tmp_path, 'extends = ["base/one.toml", "base/two.toml"]\n[sample]\nprompts = ["a", "b"]\n', "top.toml")
    loaded = load(top)
    assert (loaded.recipe.model.heads, loaded.recipe.model.hidden) == (8, 32)
    assert loaded.recipe.sample.prompts == ("a", "b")
    assert loaded.recipe.sample.max_tokens == 7
    assert loaded.origins["model.heads"] == "base/two.toml:2"
    assert loaded.origins["model.hidden"] == f"base/one.toml:{line_of(TEXT, 'hidden')}"
    assert loaded.origins["sample.prompts"] == "top.toml:3"
    assert load(top, ["model.heads=2"]).recipe.model.heads == 2


def test_bases_are_found_beside_the_file_that_names_them(tmp_path):
    write(tmp_path, name="a/b/deep.toml")
    write(tmp_path, 'extends = "b/deep.toml"', "a/middle.toml")
    assert load(write(tmp_path, 'extends = "a/middle.toml"', "top.toml")).recipe.model.layers == 2


def test_a_table_of_another_type_begins_with_that_types_defaults_and_says_where_each_value_is_from(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    wsd = 'type = "wsd"\nwarmup = 0.02\ndecay = 0.3\nmin_ratio = 0.2'
    write(tmp_path, TEXT.replace('type = "cosine"\nwarmup = 0.02\nmin_ratio = 0.1', wsd), "wsd.toml")
    child = write(tmp_path, 'extends = "wsd.toml"\n[schedule]\ntype = "cosine"\nwarmup = 7\n', "child.toml")
    typed = ["schedule.type=cosine", "schedule.warmup=7"]
    for loaded, where in (
        (load(child), {"type": "child.toml:3", "warmup": "child.toml:4"}),
        (load(tmp_path / "wsd.toml", typed), dict.fromkeys(["type", "warmup"], "--set")),
        (load(tmp_path / "wsd.toml", typed[::-1]), dict.fromkeys(["type", "warmup"], "--set")),
    ):
        rest = {"cooldown": 0, "restarts": 0}
        assert loaded.recipe.schedule.model_dump() == {"type": "cosine", "warmup": 7, "min_ratio": 0.1, **rest}
        found = {key: origin for key, origin in loaded.origins.items() if key.startswith("schedule.")}
        assert found == {f"schedule.{name}": at for name, at in where.items()} | {
            f"schedule.{name}": "default" for name in ("min_ratio", "cooldown", "restarts")
        }
    same = write(tmp_path, 'extends = "wsd.toml"\n[schedule]\ntype = "wsd"\nwarmup = 7\n', "same.toml")
    assert load(same).recipe.schedule.decay == 0.3


def test_every_union_that_plugins_extend_restarts_when_its_type_changes() -> None:
    from trainkit.recipe.toml.layers import TYPES
    from trainkit.recipe.toml.plugins import EXTENSIBLE

    tables = {"source": ("data", "train", "*"), "document": ("data", "train", "*", "document")}
    tables |= {"metric": ("evaluate", "metrics", "*"), "wrapper": ("optimizer", "wrappers", "*")}
    assert {tables.get(row.kind, (row.kind,)) for row in EXTENSIBLE} <= TYPES.keys()


def test_a_table_that_says_no_type_is_of_the_default_one(tmp_path):
    write(tmp_path, changed(('type = "cosine"', "# no type")))
    for kind, ratio in (("cosine", 0.1), ("wsd", 0.0)):
        child = f'extends = "sample.toml"\n[schedule]\ntype = "{kind}"\n'
        schedule = load(write(tmp_path, child, "child.toml")).recipe.schedule
        assert (schedule.type, schedule.min_ratio) == (kind, ratio)


def test_tables_in_tables_and_in_lists_restart_from_the_defaults_too(tmp_path):
    yarn = '{ type = "yarn", factor = 4.0, original_context = 64, beta_fast = 9.0 }'
    scaled = f'type = "llama"\nintermediate = 64\nrope_scaling = {yarn}'
    text = changed(('type = "gpt2"', scaled)) + '[data.encoding]\ntype = "windows"\nstride = 8\neos = false\n'
    path = write(tmp_path, text)
    scaling = "model.rope_scaling"
    loaded = load(path, [f"{scaling}.type=linear", f"{scaling}.factor=2.0", "data.encoding.type=pack"])
    assert loaded.recipe.model.rope_scaling.model_dump() == {"type": "linear", "factor": 2.0}
    assert loaded.recipe.data.encoding.eos and loaded.origins["data.encoding.eos"] == "default"
    assert load(path, [f"{scaling}.factor=3.0"]).recipe.model.rope_scaling.beta_fast == 9.0
    files = path.with_name("files.toml")
    source = 'path = "*.jsonl"\ndocument = { type = "prompt", prompt = "{a}", response = "{b}" }'
    files.write_text(text.replace('type = "python-stdlib"', source))
    first = "data.train.0"
    loaded = load(files, [f"{first}.document.template={{a}}", f"{first}.document.type=template"])
    assert loaded.recipe.data.train[0].document.model_dump() == {"type": "template", "template": "{a}"}
    loaded = load(files, [f"{first}.type=tokens", f'{first}.path="a.npy"'])
    assert loaded.origins[f"{first}.path"] == "--set"
    assert "data.train.0.id is missing" in wrong(files, f"{first}.type=huggingface")


def test_every_choice_of_a_type_is_known_with_its_default(tmp_path):
    found: dict[Key, str] = {}

    def walk(node: schema.Node, key: Key) -> None:
        if len(schema.types_of(node)) > 1:
            default = schema.table(node)
            found[key] = default["properties"]["type"].get("default", "") if default else ""
        for branch in schema.branches(node):
            for name, child in branch.get("properties", {}).items():
                # the optimizer of a group has the same keys again, without groups and wrappers
                inside = name in ("groups", "wrappers") and {"groups", "adamw"} & set(key)
                if not inside and not (name == "parts" and "parts" in key):  # a part of a chain is no chain
                    walk(child, (*key, name))
            if isinstance(items := branch.get("items"), dict):
                walk(items, (*key, "*"))

    walk(schema.root(), ())
    assert found == TYPES


@pytest.mark.parametrize("key", ["epochs=2", "tokens=900"])
def test_a_length_of_another_unit_takes_the_place_of_the_one_before(tmp_path, key):
    path = write(tmp_path)
    by_file = write(tmp_path, f'extends = "sample.toml"\n[train]\n{key}\n', "other.toml")
    for recipe in (load(path, [f"train.{key}"]).recipe, load(by_file).recipe):
        assert recipe.train.steps is None
    assert "give exactly one" in wrong(by_file, "train={ steps = 1, tokens = 3, batch_size = 2 }")


def test_a_revision_is_not_that_of_what_takes_the_place_of_what_it_was_of(tmp_path):
    hub = ("train = { vocab_size = 300 }", 'path = "owner/name"\nrevision = "v1"')
    path = write(tmp_path, changed(hub))
    assert load(path).recipe.tokenizer.revision == "v1"
    for change in ('tokenizer.path="owner/other"', "tokenizer.train={ vocab_size = 400 }"):
        assert load(path, [change]).recipe.tokenizer.revision is None
    typed = ['tokenizer.revision="v2"', 'tokenizer.path="owner/other"']
    assert {load(path, order).recipe.tokenizer.revision for order in (typed, typed[::-1])} == {"v2"}


def test_a_recipe_that_extends_itself_or_nothing_names_the_chain(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, 'extends = "b.toml"', "a.toml")
    write(tmp_path, 'extends = "a.toml"', "b.toml")
    assert wrong(Path("a.toml")).startswith("a.toml -> b.toml:1: extends -> a.toml: a recipe extends itself")
    write(tmp_path, 'extends = "bb.toml"', "c.toml")
    assert wrong(Path("c.toml")) == "c.toml:1: extends -> bb.toml: there is no such file\nhint: did you mean b.toml?"
    write(tmp_path, "\nextends = [1]", "d.toml")
    assert "d.toml:2: extends takes a path" in wrong(Path("d.toml"))


# --set


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("run.name=foo", "run.name", "foo"),
        ('run.name="foo"', "run.name", "foo"),
        ("run.name=a b=c", "run.name", "a b=c"),
        ("optimizer.learning_rate=1", "optimizer.learning_rate", 1.0),
        ("optimizer.betas=[0.5, 0.6]", "optimizer.betas", (0.5, 0.6)),
        ("data.shuffle={window = 9}", "data.shuffle.window", 9),
        ("data.train.0={path = '/x'}", "data.train.0.path", "/x"),
        ("data.train.0.weight=2.0", "data.train.0.weight", 2.0),
        ("track.aim=true", "track.aim", True),
        ("parallel.fsdp=2", "parallel.fsdp", 2),
    ],
)
def test_an_override_is_toml_or_else_a_bare_string(tmp_path, override, key, value):
    found: Any = load(write(tmp_path), [override]).recipe.model_dump()
    for part in key.split("."):
        found = found[int(part)] if part.isdecimal() else found[part]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.stepz=4", "--set: train.stepz = 4: no such key\nhint: did you mean steps?"),
        (
            "train.steps=many",
            '--set: train.steps = "many": expected a whole number from 1 to 1,000',
        ),
        ("train.steps", "--set train.steps: an override is written KEY=VALUE"),
        ("train..steps=4", "--set train..steps=4: an override is written KEY=VALUE"),
        ("data.train.3.weight=1.0", "--set data.train.3.weight=1.0: data.train is a list of 1"),
        ("model.heads.x=1", "--set model.heads.x=1: model.heads is a value"),
        ("run.name=4", 'hint: write a string: name = "4"'),
        ("run.extends=a.toml", "extends belongs at the top of the file"),
    ],
)
def test_a_wrong_override_is_named(tmp_path, override, said):
    assert said in wrong(write(tmp_path), override)


def test_two_overrides_that_exclude_each_other_are_refused(tmp_path):
    path = write(tmp_path)
    for first, second in (("train.epochs=1", "train.steps=5"), ("tokenizer.train={}", "tokenizer.path=a")):
        for overrides in ([first, second], [second, first]):
            with pytest.raises(TrainkitError, match="exclude each other") as raised:
                load(path, overrides)
            assert raised.value.where == f"--set {overrides[1]}"
    assert load(path, ["train.steps=4", "train.steps=5"]).recipe.train.steps == 5


# files that cannot be read


def test_what_is_no_recipe_file_is_reported_with_those_that_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    assert wrong(Path("simple.toml")) == "simple.toml: there is no such file\nhint: did you mean sample.toml?"
    own = ROOT / "recipes"
    for name, hint in (
        ("x/quickstar.toml", f"did you mean {own}/quickstart.toml?"),
        ("x/y.toml", f"recipes in {own}: answer.toml, "),
    ):
        assert wrong(Path(name)).startswith(f"{name}: there is no such file\nhint: {hint}")
    Path("pyproject.toml").write_text("")  # is no recipe, and is not offered as one
    assert wrong(Path(".")).startswith(".: is a directory, not a recipe\nhint: recipes here: sample.toml")
    (tmp_path / "bytes.toml").write_bytes(b"schema = 1\nname = '\xff'\n")
    assert wrong(Path("bytes.toml")).startswith("bytes.toml:2: is not UTF-8 text")


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("layers = two", 'write strings in quotes: layers = "two"'),
        ("layers: 2", "write = between key and value"),
        ("layers = 2,", "no comma after it"),
        ("layers = ", "leave out a key that has no value"),
        ("layers = None", "leave out a key that has no value"),
        ("layers = True", "write layers = true"),
        ("layers = yes", "write layers = true"),
        ("layers = 1,000", "write layers = 1_000"),
        ("layers = .5", "write layers = 0.5"),
        ("layers = 10%", 'write strings in quotes: layers = "10%"'),
        ("layers = 5 * 8", "a recipe does not calculate: write layers = 40"),
        ("layers = dict(n=6, m=4)", "write a table as [layers], with its keys below"),
        ("import os", "this is Python: a line of a recipe is key = value or [section]"),
        ('{"layers": 2}', "this is JSON"),
        ("--layers 2", "this is an option of a command"),
        ('layers = "two', "a string is not closed"),
        ('layers = "C:\\new\\x"', "a backslash begins an escape"),
    ],
)
def test_a_syntax_error_shows_the_line_and_what_was_meant(tmp_path, monkeypatch, line, hint):
    monkeypatch.chdir(tmp_path)
    text = changed(("layers = 2", line))
    said = wrong(write(tmp_path, text))
    number = line_of(text, line.splitlines()[-1].rstrip())
    assert re.match(rf"sample.toml:{number}:\d+: not TOML: ", said), said
    assert line.splitlines()[-1] in said and hint in said


def test_a_table_that_is_written_twice_names_both_lines(tmp_path):
    text = f"{TEXT}[data.encoding]\ntype = 'pack'\n[data.encoding]\n"
    said = wrong(write(tmp_path, text))
    first = line_of(text, "[data.encoding]")
    assert f"sample.toml:{first + 2}: [data.encoding] is written twice: first in line {first}" in said


def test_a_key_that_is_written_twice_names_both_lines(tmp_path):
    text = TEXT.replace("[train]\n", "[train]\nseed = 1\nseed = 2\n")
    first = line_of(text, "seed = 1")
    assert f"sample.toml:{first + 1}: seed is written twice: first in line {first}" in wrong(write(tmp_path, text))


def test_a_key_of_the_same_name_in_another_section_is_no_first_one(tmp_path):
    text = f"{TEXT}[train]\n"
    assert line_of(text, "train = ") < line_of(text, "[train]")
    assert f"[train] is written twice: first in line {line_of(text, '[train]')}" in wrong(write(tmp_path, text))


def test_a_file_without_an_end_is_no_recipe():
    assert "which no recipe has" in wrong(Path("/dev/zero"))


def test_an_extended_file_without_a_path_is_a_mistake_of_its_line(tmp_path):
    for name in ("a\\u0000b", "x" * 300, "loop.toml", ""):
        (tmp_path / "loop.toml").unlink(missing_ok=True)
        (tmp_path / "loop.toml").symlink_to(tmp_path / "loop.toml")
        assert re.search(r"sample.toml:1[: ]", wrong(write(tmp_path, f'extends = ["{name}"]\n{TEXT}'))), name


# mistakes


def test_all_mistakes_are_reported_at_once_each_with_its_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = changed(
        ("layers = 2", "layer = 2"),
        ("heads = 4", "heads = 5"),
        ("batch_size = 8", "batch_size = 0"),
        ("learning_rate = 1e-3", "learning_rate = -1"),
        ("steps = 20", 'steps = "20"'),
        ('type = "cosine"', 'type = "cosin"'),
        ('prompts = ["def main("]', 'prompts = "def main("'),
        ("[track]", "[trak]"),
        ("aim = false", 'aim = "no"'),
    )
    said = wrong(write(tmp_path, text))
    assert said.startswith("sample.toml: 9 mistakes\n")
    for part, problem, hint in (
        ("layer =", "model.layer = 2: no such key", "did you mean layers?"),
        ("heads =", "[model]: heads = 5 does not divide hidden = 32; the nearest that do: 2, 4, 8", ""),
        (
            "steps =",
            'train.steps = "20": expected a whole number from 1 to 1,000,000,000, found a string',
            "without quotes",
        ),
        ("batch_size =", "train.batch_size = 0: expected a whole number from 1 to 1,000,000,000", ""),
        ("learning_rate =", "optimizer.learning_rate = -1: expected a number from 1e-37 to 10,000", ""),
        (
            '"cosin"',
            'schedule.type = "cosin": expected "cosine" or "linear" or "constant" or "wsd"',
            'did you mean "cosine"?',
        ),
        ("prompts =", 'sample.prompts = "def main(": expected a list', 'write a list: prompts = ["def main("]'),
        ("[trak]", "[trak]: no such section", "did you mean track?"),
        ('"no"', 'track.aim = "no": expected true or false, found a string', "write aim = false"),
    ):
        block = next(b for b in said.split("\n\n") if b.startswith(f"sample.toml:{line_of(text, part)}: "))
        assert problem in block and hint in block


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([("steps = 20", "")], "give exactly one of steps, epochs and tokens; found none"),
        ([("steps = 20", "steps = 20\nepochs = 1")], "found steps and epochs"),
        ([("[track]", "[checkpoint]\nkeep_every = [5, 3]\n[track]")], "checkpoint.keep_every: 3 follows 5; list each"),
        ([("hidden = 32", "")], "model.hidden is missing"),
        ([("schema = 1", "")], "begin the recipe with: schema = 1"),
        ([("schema = 1", "schema = 2")], "schema = 2: expected 1"),
        ([("[[data.train]]", "[data.train]")], "double the brackets: [[data.train]]"),
        ([("layers = 2", "layers = 2.0")], "write it without a decimal point or exponent: layers = 2"),
        (
            [("layers = 2", "layers = true")],
            "layers = true: expected a whole number from 1 to 10,000, found true or false",
        ),
        ([("held_out = 0.1", "held_out = 1.0")], "expected a number of at least 0 and less than 1"),
        (
            [("held_out = 0.1", "shuffle = { windw = 4 }")],
            "data.shuffle.windw = 4: no such key\nhint: did you mean window?",
        ),
        ([("held_out = 0.1", "shuffle = 4")], 'expected "full" or false or a table of window'),
        ([('name = "sample"', 'name = "a/b"')], "the name of a run is the name of its directory"),
        ([('name = "sample"', 'name = ".."')], "the name of a run is the name of its directory"),
        ([('name = "sample"', 'name = ""')], "the name of a run is the name of its directory"),
        ([('type = "python-stdlib"', 'type = "python"')], 'did you mean "python-stdlib"?'),
        (
            [('type = "python-stdlib"', 'path = "x"\nweight = 0')],
            "data.train.0.weight = 0: expected a number from 1e-37 to 1e",
        ),
        (
            [("heads = 4", "heads = 4\ncontext_length = 32")],
            "data.sequence_length = 64 is more than model.context_length = 32",
        ),
        (
            [("min_ratio = 0.1", "max_ratio = 0.2")],
            "schedule.max_ratio = 0.2: no such key\nhint: did you mean min_ratio?",
        ),
        (
            [("[schedule]", '[[optimizer.groups]]\nmatch = "*.bias"\nlearning_rate = 1e-4\n[schedule]')],
            "optimizer.groups.0.learning_rate = 0.0001: no such key\nhint: did you mean learning_rate_factor?",
        ),
        ([('type = "cosine"', 'type = "constant"')], 'min_ratio goes with type = "cosine" or "linear" or "wsd"'),
        (
            [('type = "python-stdlib"', 'path = "a"\ndocument = { type = "labelled", labels = "b" }')],
            'did you mean label? labels goes with type = "tagged"',
        ),
        (
            [('type = "python-stdlib"', 'path = "a"\ndocument = { type = "chat" }')],
            'data.train.0.document: type = "chat" needs a chat template, which tokenizer.train does not make',
        ),
        (
            [('prompts = ["def main("]', 'prompts = [[{ role = "user", content = "Write main." }]]')],
            "sample.prompts: a conversation needs a chat template, which tokenizer.train does not make",
        ),
        (
            [("seed = 3", "batch_size = 3")],
            "did you mean train.batch_size or schedules.batch_size or evaluate.batch_size?",
        ),
        ([("seed = 3", "qwertz = 3")], "allowed here: name, seed, directory"),
        ([("every = 10", "every = nan")], "expected a whole number from 1 to 1,000,000,000"),
        (
            [('type = "python-stdlib"', 'type = "python-stdlib"\nweight = [[0, 1.0], [5]]')],
            "data.train.0.weight.1 = [5]: expected a list of 2",
        ),
        (
            [('type = "python-stdlib"', 'type = "python-stdlib"\nweight = [0, 3.0]')],
            "data.train.0.weight = [0, 3.0]: expected a number",
        ),
        ([("layers = 2", "LAYERS = 2")], "model.LAYERS = 2: no such key\nhint: did you mean layers?"),
        (
            [("seed = 3", "seed = 1e10")],
            "expected a whole number from 0 to 4,294,967,295, found a number with a",
        ),
        (
            [('type = "python-stdlib"', 'path = "a.jsonl"\ndocument = {}')],
            'hint: add a type, such as type = "chat"',
        ),
        (
            [('type = "python-stdlib"', 'path = "a.jsonl"\ndocument = { template = "{text}" }')],
            'hint: add type = "template"',
        ),
        (
            [("learning_rate = 1e-3", 'learning_rate = 1e-3\nbetas = ["0.9", 0.95]')],
            "hint: write the number without quotes: 0.9",
        ),
        ([("aim = false", "aim = 1979-05-27")], "expected true or false, found a date or time"),
    ],
)
def test_a_mistake_is_reported_once_and_with_the_way_out(tmp_path, changes, said):
    found = told(tmp_path, *changes)
    assert said in found
    assert "mistakes" not in found, found


def test_a_key_that_came_later_changes_no_fingerprint_so_that_old_sweeps_continue():
    values = {
        "schema": 1,
        "model": {"layers": 2, "hidden": 32, "heads": 4},
        "tokenizer": {"train": {"vocab_size": 300}},
        "data": {"sequence_length": 64, "train": ({"type": "python-stdlib"},)},
        "train": {"steps": 10, "batch_size": 8},
        "optimizer": {"learning_rate": 1e-3},
    }
    decay = {"weight_decay": {"type": "linear"}}
    assert Recipe.model_validate(values).fingerprint() == "84e8286e1e509eb4"
    assert Recipe.model_validate({**values, "schedules": decay}).fingerprint() == "da6afcf630e9913e"
    muon = {"type": "muon", "learning_rate": 1e-3, "adamw": {"learning_rate": 1e-3}}
    assert Recipe.model_validate({**values, "optimizer": muon}).fingerprint() == "9203be806cadd7d5"
    group = {"match": "blocks.mlp_in.weight", "optimizer": muon}
    grouped = {**values["optimizer"], "groups": (group,)}
    assert Recipe.model_validate({**values, "optimizer": grouped}).fingerprint() == "8712288451dbfabe"
    other = Recipe.model_validate({**values, "schedules": {**decay, "batch_size": ((0, 8),)}})
    assert other.fingerprint() != "da6afcf630e9913e", "a value that is not the default changes it"


def test_new_tokens_are_named_once_and_go_with_a_tokenizer_that_exists_and_a_model_that_learns_them(tmp_path):
    train, path = "train = { vocab_size = 300 }", 'path = "owner/name"'

    def said(names: str, *changes: tuple[str, str]) -> str:
        return told(tmp_path, (train, f"{path}\nnew_tokens = {names}"), *changes)

    assert "new_tokens.1 = '<a>' is new_tokens.0 again: leave one out" in said('["<a>", "<a>"]')
    for name in ("", " ", "<a> "):
        assert f"new_tokens.1 = {name!r} is empty, or begins or ends with white space" in said(f'["<a>", "{name}"]')
    assert "[adapter] trains none: all of them would mean the same" in said('["<a>"]', ("[data]", "[adapter]\n[data]"))
    trained = told(tmp_path, (train, f'{train}\nnew_tokens = ["<a>"]'))
    assert "new_tokens are added to a tokenizer that exists: give path instead of train" in trained
    loaded = load(write(tmp_path, changed((train, f'{path}\nnew_tokens = ["<a>"]')))).recipe
    assert loaded.tokenizer is not None and loaded.tokenizer.new_tokens == ("<a>",)
    without = loaded.model_copy(update={"tokenizer": loaded.tokenizer.model_copy(update={"new_tokens": ()})})
    assert loaded.fingerprint() != without.fingerprint()


@pytest.mark.parametrize(
    ("section", "name", "key", "word"),
    [
        ("train", "lr", "optimizer.learning_rate", ""),
        ("train", "num_train_epochs", "epochs", ""),
        ("train", "per_device_train_batch_size", "batch_size", "global"),
        ("train", "gradient_accumulation_steps", "train.micro_batch_size", "follows from"),
        ("train", "bf16", "precision.compute", "bfloat16"),
        ("train", "output_dir", "run.directory", ""),
        ("model", "n_layer", "layers", ""),
        ("schedule", "warmup_ratio", "warmup", ""),
        ("data", "block_size", "data.sequence_length", ""),
    ],
)
def test_the_names_of_other_trainers_are_answered_with_ours(tmp_path, section, name, key, word):
    path = write(tmp_path, f'extends = "sample.toml"\n\n[{section}]\n{name} = 1\n', "alias.toml")
    write(tmp_path)
    said = wrong(path)
    assert f"alias.toml:4: {section}.{name} = 1: no such key" in said
    assert key.removeprefix(f"{section}.") in said and word in said


@pytest.mark.parametrize("name", sorted(ALIASES))
def test_an_alias_leads_to_a_key_that_exists(name):
    key = ALIASES[name].key
    parts = tuple(int(part) if part.isdecimal() else part for part in key.split("."))
    tables = [{}, *({"task": {"type": type_of(task)}} for task in members_of(Task))]
    assert not key or any(schema.node_at(parts, table) is not None for table in tables)
    assert key or ALIASES[name].note


def test_every_key_says_what_it_means():
    def walk(node, key):
        for branch in schema.branches(node):
            for name, child in branch.get("properties", {}).items():
                if name in ("groups", "parts") and name in key:
                    continue  # the optimizer of a group, or the schedule of a part, has the same keys again
                yield (*key, name), child
                yield from walk(child, (*key, name))
            if "items" in branch:
                yield from walk(branch["items"], (*key, "0"))

    named = [(key, node) for key, node in walk(schema.root(), ()) if key[-1] != "type" and len(key) > 1]
    assert len(named) > 100
    assert [dotted_key(key) for key, node in named if not schema.meaning_of(node)] == []


@given(st.data())
@modest
def test_whatever_one_value_is_changed_to_the_answer_is_a_recipe_or_names_that_key(tmp_path_factory, data):
    table = tomli.loads(TEXT)
    keys = [key for key in _keys(table) if len(key) > 1]
    key = data.draw(st.sampled_from(keys))
    values = st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=3) | st.just([])
    target: Any = table
    for part in key[:-1]:
        target = target[part]
    if (value := data.draw(values)) is None:
        del target[key[-1]]
    else:
        target[key[-1]] = value
    path = write(tmp_path_factory.getbasetemp(), "\n".join(f"{k} = {toml_value(v)}" for k, v in table.items()))
    try:
        load(path)
    except TrainkitError as error:
        name = next(part for part in reversed(key) if isinstance(part, str))
        assert name in str(error) and "mistakes" not in str(error)


# where things stand


def _keys(value: Any, key: Key = ()) -> list[Key]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*([key] if key else []), *(found for part, child in inner for found in _keys(child, (*key, part)))]


names = st.text("ab_-1", min_size=1, max_size=2) | st.text(min_size=0, max_size=3).filter(lambda s: s.isprintable())
strings = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=6)
scalars = st.integers() | st.booleans() | st.floats(allow_nan=False) | st.dates() | strings
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(names, v, max_size=3), max_leaves=6)
tables = st.dictionaries(
    names, values | st.lists(st.dictionaries(names, values, max_size=2), min_size=1, max_size=3), max_size=4
)


def _toml(table: dict[str, Any], draw: Any, path: tuple[str, ...] = ()) -> str:
    """The table, each value in one of the ways in which TOML can say it."""
    noise = st.sampled_from(["", "\n", "# ] [ } \" '''\n", "\t\n  # = \n"])
    simple, nested = [], []
    for name, value in table.items():
        key = toml_value(name)
        if isinstance(value, dict) and draw(st.booleans()):
            head = ".".join(map(toml_value, (*path, name)))
            nested.append(f"{draw(noise)} [ {head} ] # {draw(noise)!r}\n{_toml(value, draw, (*path, name))}")
        elif isinstance(value, list) and value and all(isinstance(v, dict) for v in value) and draw(st.booleans()):
            head = ".".join(map(toml_value, (*path, name)))
            nested += [f"{draw(noise)}[[{head}]]\n{_toml(v, draw, (*path, name))}" for v in value]
        else:
            simple.append(f"{draw(noise)} {key}\t= {_value(value, draw)} # end\n")
    return "".join([*simple, *nested])


def _value(value: Any, draw: Any) -> str:
    if isinstance(value, list):
        gap = draw(st.sampled_from(["", "\n", " # ,]\n "]))
        return f"[{gap}{''.join(f'{_value(v, draw)}{gap},{gap}' for v in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml_value(k)} = {_value(v, draw)}" for k, v in value.items()) + "}"
    if isinstance(value, str) and draw(st.booleans()):
        return '"""\n' + toml_value(value)[1:-1].replace("\\n", "\n") + '"""'
    return toml_value(value)


@given(st.data())
@modest
def test_every_key_that_tomli_finds_has_a_line_and_that_line_holds_it(data):
    table = data.draw(tables)
    text = _toml(table, data.draw)
    read = tomli.loads(text)
    assert read == table
    lines = locate(text)
    assert set(lines) == set(_keys(read))
    shown = text.split("\n")
    for key, line in lines.items():
        if isinstance(key[-1], str):
            assert toml_value(key[-1]) in shown[line - 1]


def test_every_way_of_writing_a_key_is_found():
    text = 'a.b = 1\n[x.y]\n"q.r" = [1,\n 2, # ]\n {z = """\n}"""""}]\n'
    text += "[[d.t]]\np = 1\n[[d.t]]\n[d.t.u]\nv = 1979-05-27 07:32:00\n"
    assert {dotted_key(key): line for key, line in locate(text).items()} == {
        "a": 1, "a.b": 1, "x": 2, "x.y": 2, "x.y.q.r": 3, "x.y.q.r.0": 3, "x.y.q.r.1": 4, "x.y.q.r.2": 5,
        "x.y.q.r.2.z": 5, "d": 7, "d.t": 7, "d.t.0": 7, "d.t.0.p": 8, "d.t.1": 9, "d.t.1.u": 10, "d.t.1.u.v": 11,
    }  # fmt: skip


# writing


def test_a_written_recipe_says_where_each_value_came_from_and_reads_back_equal(tmp_path):
    overrides = [
        'sample.prompts=["\\u001b[31m\\u007f\\n", "”"]',
        "optimizer.groups=[{match = '*.bias', weight_decay = 0.0}, {match = 'blocks.*'}]",
        "data.shuffle={window = 5}",
        "data.validation=[{path = '/a', name = 'a'}, {path = ['/b', '/c']}]",
        "checkpoint.keep_every=[3, 5]",
        "schedule={type = 'linear', warmup = 1.0}",
    ]
    loaded = load(write(tmp_path), overrides)
    text = dumps(loaded.recipe, loaded.origins, loaded.path)
    for line in text.splitlines():
        assert re.fullmatch(r"# resolved by .*|\[.*\]||\S+ = .*  # (.*sample\.toml:\d+|--set|default)", line), line
    copy = write(tmp_path, text, "copy/recipe.toml")
    again = load_resolved(copy)
    assert again.recipe == loaded.recipe and again.recipe.fingerprint() == loaded.recipe.fingerprint()
    assert again.origins == loaded.origins
    changed = load_resolved(copy, ["train.batch_size=3"])
    assert {key for key in changed.origins if changed.origins[key] != loaded.origins[key]} == {"train.batch_size"}
    dumped = json.loads(loaded.recipe.model_dump_json(by_alias=True))
    assert _without_none(dumped) == _without_none(tomli.loads(text))
    assert Recipe.model_validate_json(loaded.recipe.model_dump_json(by_alias=True)) == loaded.recipe


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _without_none(inner) for key, inner in value.items() if inner is not None}
        return {key: inner for key, inner in kept.items() if inner != {}}  # of which nothing is left to write
    return [_without_none(inner) for inner in value] if isinstance(value, list) else value


@given(values)
@modest
def test_a_value_is_written_so_that_it_reads_back(value):
    assert tomli.loads(f"value = {toml_value(value)}") == {"value": value}


def test_differences_are_shown_key_by_key(tmp_path):
    old = load(write(tmp_path)).recipe
    new = load(write(tmp_path), ["train.epochs=2", "data.train.0.weight=1.0", "sample.prompts=['x', 'y']"]).recipe
    assert [str(d) for d in differences(old, new)] == [
        "data.train.0.weight: not given -> 1.0",
        "train.steps: 20 -> not given",
        "train.epochs: not given -> 2.0",
        'sample.prompts: ["def main("] -> ["x", "y"]',
    ]
    assert differences(old, old) == []


def test_a_loaded_recipe_is_frozen(tmp_path):
    loaded = load(write(tmp_path))
    assert isinstance(loaded, Loaded) and isinstance(loaded.recipe, Recipe)
    with pytest.raises(ValueError, match="frozen"):
        loaded.recipe.train.steps = 3


def test_a_named_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(TrainkitError, match="is a named pipe, not a file"):
        load(tmp_path / "pipe.toml")


def test_a_pipe_without_a_name_is_read_as_of_a_shell_that_writes_one() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as file:
        file.write("[train]\nsteps = 0\n")
    try:
        with pytest.raises(TrainkitError, match=r"train\.steps = 0"):
            load(Path(f"/dev/fd/{reading}"))
    finally:
        os.close(reading)


def test_a_checkpoint_that_is_not_found_hides_no_mistake_of_another_section(tmp_path):
    def not_found(*_: object) -> PretrainedCheckpoint:
        raise TrainkitError("not found", where="model.pretrained", hint="check the name")

    path = write(tmp_path, TEXT.replace("layers = 2", 'pretrained = "some/one"').replace("steps = ", "max_steps = "))
    with pytest.raises(TrainkitError) as raised:
        load(path, look_up=not_found)
    first, second = (
        line for line in str(raised.value).splitlines() if "sample.toml:" in line and "mistakes" not in line
    )
    assert "model.pretrained: not found" in first and "train.max_steps = 20: no such key" in second
    path.write_text(TEXT.replace("layers = 2", 'pretrained = "some/one"'))
    with pytest.raises(TrainkitError, match=r"sample\.toml:\d+: model\.pretrained: not found\nhint: check the name$"):
        load(path, look_up=not_found)
