"""Paths, names and nesting that no file system and no reader takes: `check` refuses them at once, with their place."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trainer import BARE

from trainkit.cli.check import check
from trainkit.data.sources.files import why_unusable
from trainkit.data.sources.patterns import match_files
from trainkit.errors import WRONG_INPUT, TrainkitError
from trainkit.printer import shorten_message
from trainkit.recipe.toml.values import toml_value

#: The recipe of small trainers, on one file.
RECIPE = BARE.replace("text/*.txt", "rows.jsonl").lstrip("\n").split("[schedule]")[0]
PATH_LINE = RECIPE.split("\n").index('path = "rows.jsonl"') + 1
#: Every key that holds a path of this machine, with how the test writes it, and those that may hold a URL too.
LOCAL = ("run.directory", "run.parameters_from", "data.cache", "track.repository", "tokenizer.path", "model.pretrained")
KEYS = (*LOCAL, "data.train.0.path", "plugins.files", "extends")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"text": "a b c"}\n')
    (tmp_path / "page.txt").write_text("a b c\n")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


def refusal(recipe: str, *overrides: str) -> TrainkitError:
    """What `check` says about a recipe."""
    Path("recipe.toml").write_text(recipe)
    with pytest.raises(TrainkitError) as refused:
        check(Path("recipe.toml"), list(overrides))
    assert refused.value.exit_code == WRONG_INPUT and "bug in trainkit" not in str(refused.value)
    return refused.value


def with_path(key: str, path: str) -> tuple[str, int]:
    """The recipe with a path at a key, and the line of it."""
    *section, last = key.split(".")
    value = toml_value([path] if key == "plugins.files" else path)
    if key == "extends":
        recipe = f"extends = {value}\n{RECIPE}"
    elif key == "data.train.0.path":
        recipe = RECIPE.replace('path = "rows.jsonl"', f"path = {value}")
    elif key == "tokenizer.path":
        recipe = RECIPE.replace("train = { vocab_size = 300 }", f"path = {value}")
    elif section[0] in ("model", "data", "run"):
        recipe = RECIPE.replace(f"[{section[0]}]\n", f"[{section[0]}]\n{last} = {value}\n", 1)
    else:
        recipe = f"{RECIPE}[{section[0]}]\n{last} = {value}\n"
    return recipe, next(n for n, line in enumerate(recipe.split("\n"), 1) if line.startswith(f"{last} = {value}"))


_hostile = st.one_of(
    st.sampled_from(["", " ", "loop", "loop/x.txt", "~nobody-has-this-name/x", "s3://bucket/x.txt", "nothing://x.txt"]),
    st.sampled_from(["https://***@host/x.txt", "{0..999999999}.txt", "{a,b}" * 60, "x/" * 3000, "ü" * 200]),
    st.text(st.characters(codec="utf-8"), max_size=300).map(lambda text: f"nowhere/{text}\0"),
    st.text("abc./*?[{,}]~-", min_size=256, max_size=400).map(lambda text: f"nowhere/{text}.txt"),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(KEYS), _hostile)
def test_a_path_that_nothing_can_have_is_refused_with_line_and_key(place: Path, key: str, path: str) -> None:
    if key in ("run.directory", "data.cache", "track.repository") and path in ("loop", "loop/x.txt", "ü" * 200):
        return  # made when the run begins
    recipe, line = with_path(key, path)
    try:
        error = refusal(recipe)
    except pytest.fail.Exception:
        # such names may stand for directories to be made, or be a pattern
        assert key in LOCAL and path.strip() and "\0" not in path and "://" not in path
        return
    assert f"recipe.toml:{line}" in error.where, error
    assert key.split(".")[-1] in str(error) and len(shorten_message(str(error))) < 5000


@pytest.mark.parametrize(
    ("document", "files", "problem"),
    [
        ('{ type = "template", template = "{a" }', "rows.jsonl", "belongs to no key in braces"),
        ('{ type = "template", template = "a" }', "rows.jsonl", "no key in braces"),
        ('{ type = "chat", template = "{% if %}" }', "rows.jsonl", "not valid Jinja"),
        ('{ type = "chat", template = "{{ x }}" }', "rows.jsonl", "does not use 'messages'"),
        ('{ type = "chat", template = "no.jinja" }', "rows.jsonl", "no such file"),
        ('{ type = "chat", template = "{{ messages }}" }', "page.txt", "is one text without rows"),
        ('{ type = "labelled", classes = ["a", "b"] }', "rows.jsonl", ""),
    ],
)
def test_documents_that_cannot_be_made_or_learned_from_are_refused(
    place: Path, document: str, files: str, problem: str
) -> None:
    recipe = RECIPE.replace('path = "rows.jsonl"', f'path = "{files}"\ndocument = {document}')
    error = refusal(recipe)
    assert problem in error.problem and error.where.startswith(f"recipe.toml:{PATH_LINE + 1}"), error


def test_a_format_that_the_name_of_a_file_does_not_tell_is_refused(place: Path) -> None:
    (place / "page.odd").touch()
    error = refusal(RECIPE.replace("rows.jsonl", "page.odd"))
    assert "cannot tell the format of a '.odd' file" in error.problem and error.where == f"recipe.toml:{PATH_LINE}"


def test_a_directory_without_a_tokenizer_is_refused(place: Path) -> None:
    recipe, line = with_path("tokenizer.path", ".")
    error = refusal(recipe)
    assert "holds no tokenizer.json" in error.problem and error.where == f"recipe.toml:{line}"


def test_files_that_many_files_extend_are_read_once_and_chains_end(place: Path) -> None:
    for number in range(40):
        (place / f"{number}.toml").write_text(f'extends = ["{number + 1}.toml", "{number + 1}.toml"]')
    (place / "40.toml").write_text(RECIPE)
    assert check(place / "0.toml").startswith("ok: ")
    for number in range(100, 200):
        (place / f"{number}.toml").write_text(f'extends = "{number + 1}.toml"')
    with pytest.raises(TrainkitError, match="by a chain of 50 files") as refused:
        check(place / "100.toml")
    assert refused.value.where == "149.toml:1"


@pytest.mark.parametrize(
    "deep", [".".join(["a"] * 3000) + " = 1", "a = " + "[" * 3000, "a = " + "{ a = " * 3000, "[" + ".".join("a" * 3000)]
)
def test_nesting_has_an_end(place: Path, deep: str) -> None:
    assert refusal(f"{RECIPE}{deep}").where.startswith(f"recipe.toml:{RECIPE.count(chr(10)) + 1}")
    name, _, value = deep.partition(" = ")
    assert refusal(RECIPE, f"{name}={value}").where.startswith("--set")


def test_links_that_lead_in_circles_are_refused_where_a_pattern_would_follow_them(place: Path) -> None:
    (place / "text" / "a").mkdir(parents=True)
    (place / "text" / "a" / "x.txt").write_text("a")
    (place / "text" / "other").symlink_to("a")  # twice the same directory is no circle
    (place / "text" / "broken").symlink_to("broken")
    assert check(place / "recipe.toml", ['data.train.0.path="text/**/*.txt"']).startswith("ok: ")
    for name, target in (("b", "."), ("c", "../text"), ("a/d", "..")):
        (place / "text" / name).symlink_to(target)
        error = refusal(RECIPE.replace("rows.jsonl", "text/**/*.txt"))
        assert "leads back to a directory that it is in" in error.problem and error.where == f"recipe.toml:{PATH_LINE}"
        (place / "text" / name).unlink()


@pytest.mark.parametrize("path", ["/dev/zero", "loop", "loop/*.txt", "pipe"])
def test_what_is_neither_a_file_nor_a_directory_is_said_to_be_so_and_is_no_suggestion(place: Path, path: str) -> None:
    os.mkfifo(place / "pipe")
    with pytest.raises(TrainkitError) as raised:
        match_files(path if path.startswith("/") else str(place / path))
    assert "is neither a file nor a directory" in raised.value.hint and "did you mean" not in raised.value.hint


def test_a_url_without_a_host_is_refused_unasked() -> None:
    for url in ("http://", "https:///a.txt", "https://?token=x", "https://[bad/a.txt"):
        assert (why_unusable(url) or ("", ""))[0] == "names no host", url
    assert why_unusable("https://example.org/a.txt") is None


@pytest.mark.parametrize("name", ["-x", ".hid", "x" * 201])
def test_a_new_run_cannot_have_a_name_that_commands_could_not_use(place: Path, name: str) -> None:
    error = refusal(RECIPE.replace('name = "tiny"', f'name = "{name}"'))
    assert error.where == "recipe.toml:3: run.name"


@pytest.mark.parametrize("name", ["events.jsonl", "lock", "recipe.toml", "control.sock"])
def test_a_directory_in_the_place_of_a_file_is_an_error_with_its_path(
    place: Path, name: str, call: Callable[..., tuple[int, str, str]]
) -> None:
    run = Path("runs") / "odd"
    run.mkdir(parents=True)
    for own in {"events.jsonl", "recipe.toml"} - {name}:
        (run / own).write_text(RECIPE if own == "recipe.toml" else "")
    (run / name).mkdir()
    for command in (["verify", "odd"], ["send", "odd", "stop"], ["watch", "odd", "--once"], ["runs"]):
        code, out, err = call(*command)
        assert code == 0 or err.startswith("error: "), (command, err)
        assert "bug in trainkit" not in err + out and "Traceback" not in err, (command, err)


def test_an_id_that_no_vocabulary_has_is_refused(place: Path) -> None:
    from tokenizers import Tokenizer, models

    from trainkit.data.tokenizer.vocabulary import load

    Tokenizer(models.BPE(vocab={"a": 0, "<|endoftext|>": 1}, merges=[])).save("tokenizer.json")
    content = json.loads(Path("tokenizer.json").read_text())
    content["model"]["vocab"]["a"] = 10_000_000
    Path("tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(TrainkitError, match=r"'a' has the id 10,000,000, and there are only 2 tokens"):
        load(Path("tokenizer.json"))
