"""What is printed has no character that a terminal obeys, what is printed or written has no secret, and what is typed
into a shell means what it says."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st

import trainkit
from trainkit.errors import TrainkitError
from trainkit.events.log import EventLog
from trainkit.events.tail import read
from trainkit.printer import LONGEST_LINE, MOST_LINES, complain, printable_json, quote, show
from trainkit.recipe.toml.values import toml_value
from trainkit.redaction import MASK, redact
from trainkit.text import Neutral

SECRET = "hUnter2Secret"
ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e\r\x7f"


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("https://me:{}@host/x.jsonl", "https://***@host/x.jsonl"),
        ("https://{}@host/x", "https://***@host/x"),
        ("s3://key:{}@bucket/x", "s3://***@bucket/x"),
        ("postgres://me:p@{}@host/db", "postgres://***@host/db"),
        ("https://h/x?token={}&part=1#a", "https://h/x?token=***&part=1#a"),
        ("https://h/x?X-Amz-Signature={}&X-Amz-Date=1", "https://h/x?X-Amz-Signature=***&X-Amz-Date=1"),
        ("https://h/x?a=1&api_key={}", "https://h/x?a=1&api_key=***"),
        ("https://h/x?sig={}", "https://h/x?sig=***"),
        ('api_key = "{}"', 'api_key = "***"'),
        ('hf_token = "{}"  # recipe.toml:3', 'hf_token = "***"  # recipe.toml:3'),
        ('{{"password": "{}", "user": "me"}}', '{{"password": "***", "user": "me"}}'),
        ("{{'client_secret': '{}'}}", "{{'client_secret': '***'}}"),
        ("--set data.train.0.api_key={}", "--set data.train.0.api_key=***"),
        ('api_key = ["{}", "b"]', 'api_key = ["***"]'),
        ("authorization: Bearer {}", "authorization: Bearer ***"),
    ],
)
def test_a_secret_is_replaced_wherever_its_form_gives_it_away(text: str, without: str) -> None:
    assert redact(text.format(SECRET)) == without.format()
    assert redact(json.dumps(text.format(SECRET))) == json.dumps(without.format())


@pytest.mark.parametrize(
    "text",
    [
        'eos_token = "</s>"', '{"pad_token": "[PAD]", "mask_token": "[MASK]"}', "max_tokens = 100", 'text_key = "body"',
        "the token: it is wrong", "abfs://container@account.dfs.core.windows.net/x", "ssh://git@host/x", 'secret = ""',
        "https://host:8080/x?part=1", "a@b.c", "hf://datasets/me/data@main/x", "experts_per_token = 2",
        '{"validation/x/seconds_per_token": 0.5, "train/next_token": 0.5}', "key = 1",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


_words = st.text(st.characters(codec="utf-8"), max_size=12)
_values = st.recursive(
    _words | st.integers() | st.sampled_from([f"https://a:{SECRET}@h/?token={SECRET}", f'password = "{SECRET}"']),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(_words | st.sampled_from(["api_key", "hf_token"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(_values)
def test_json_and_toml_without_secrets_are_still_json_and_toml(value: object) -> None:
    text = redact(json.dumps({"value": value}, ensure_ascii=False))
    assert SECRET not in text
    assert json.loads(text).keys() == {"value"}
    assert redact(text) == text
    written = f"value = {toml_value(value)}"
    if "\n" not in written:
        assert tomli.loads(redact(written)).keys() == {"value"}


@pytest.mark.parametrize(
    "part", ["a", "https://", "://", "token", 'api_key = "', "a://b@", "token=[", 'token=["', 'token=["a",', "?token="]
)
def test_a_long_line_is_searched_in_linear_time(part: str) -> None:
    redact(part * (300_000 // len(part)))  # a search in quadratic time would take hours


@given(st.text(), st.text())
def test_nothing_that_a_terminal_obeys_is_printed(text: str, more: str) -> None:
    hostile = f"{text}{ESCAPES}{more}"
    printed = printable_json({"text": hostile})
    assert printed.isprintable() and json.loads(printed) == {"text": hostile}


def test_results_and_messages_are_neutral_without_secrets_and_messages_are_short(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hostile = f"{ESCAPES} https://me:{SECRET}@host"
    show(hostile)
    show(Neutral("\x1b[2mdim\x1b[0m"))
    complain(hostile)
    complain("x" * 10_000_000)
    complain("mistake\n" * 20_000)
    out, err = capsys.readouterr()
    assert out.splitlines()[1] == "\x1b[2mdim\x1b[0m", "own colours stay"
    for line in [out.splitlines()[0], *err.splitlines()]:
        assert line.isprintable() and SECRET not in line and len(line) < LONGEST_LINE + 100
    assert err.count("\n") < MOST_LINES + 10 and "19,601 lines are left out" in err


def test_all_commands_that_are_suggested_quote_their_arguments_for_a_shell() -> None:
    """A run named `a;rm -rf x` must not become a command."""
    suggested = re.compile(r"(?:trainkit [a-z-]+|tensorboard --logdir|wandb sync|hf upload) $")
    quoted = re.compile(r"(?:quote|as_typed)\(|^typed$|^title_of\(|^name(?:d)?$|^how_to|^options$|^' --")
    seen = 0
    for path in Path(trainkit.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.JoinedStr):
                continue
            for before, part in zip(node.values, node.values[1:], strict=False):
                text = before.value if isinstance(before, ast.Constant) else ""
                if isinstance(part, ast.FormattedValue) and suggested.search(str(text)):
                    seen += 1
                    said = ast.unparse(part.value)
                    assert quoted.search(said), f"{path}:{part.lineno}: quote({said})"
    assert seen > 20
    assert shlex.split(f"trainkit resume {quote('runs/a;rm -rf x')}") == ["trainkit", "resume", "runs/a;rm -rf x"]


def test_events_are_written_without_secrets_and_programs_that_a_model_writes_as_they_are(tmp_path: Path) -> None:
    log = EventLog(tmp_path, attempt=1)
    log.write("log", step=0, level="info", message=f'api_key = "{SECRET}" in https://a:{SECRET}@host/x?token={SECRET}')
    log.write("sampled", step=0, prompt=f"https://a:{SECRET}@host", text='token = "x"', seconds=1.0)
    log.write("step", step=1, metrics={f"train/https://a:{SECRET}@h": 1.0})
    log.close()
    assert SECRET not in (tmp_path / "events.jsonl").read_text()
    logged, sampled, step = read(tmp_path)
    assert logged["message"] == f'api_key = "{MASK}" in https://{MASK}@host/x?token={MASK}'
    assert sampled["text"] == 'token = "x"' and step["metrics"] == {f"train/https://{MASK}@h": 1.0}


def test_an_error_says_that_a_secret_is_missing() -> None:
    from trainkit.data.sources.files import open_raw

    with pytest.raises(TrainkitError, match="its password or token is missing"):
        open_raw(f"https://{MASK}@host/x")


def test_a_secret_is_kept_apart_from_the_recipe_and_may_be_replaced_when_a_run_resumes(tmp_path: Path) -> None:
    import sample_recipe

    from trainkit.recipe.toml.load import load
    from trainkit.recipe.toml.values import differences
    from trainkit.rundir.changes import check_changes
    from trainkit.rundir.directory import create, recipe_of, replace_recipe, restore_recipe

    def url(secret: str) -> str:
        return f'data.train=[{{path="https://me:{secret}@host/x.jsonl?token={secret}"}}]'

    directory = f'run.directory="{tmp_path}"'
    loaded = load(sample_recipe.write(tmp_path), [url(SECRET), directory])
    run = create(loaded)
    assert SECRET not in (run / "recipe.toml").read_text()
    assert recipe_of(run).recipe == loaded.recipe
    replaced = recipe_of(run, [url("other")])
    changed = differences(loaded.recipe, replaced.recipe)
    check_changes(loaded.recipe, replaced.recipe, changed, reset_optimizer=False)
    replace_recipe(run, replaced, attempt=1)
    assert recipe_of(run).recipe == replaced.recipe
    restore_recipe(run, attempt=1)
    assert recipe_of(run).recipe == loaded.recipe
    swept = sample_recipe.TEXT + f'[sweep.parameters."data.train.0.path"]\nvalues = ["https://me:{SECRET}@host/x"]\n'
    with pytest.raises(TrainkitError, match="holds a secret"):
        load(sample_recipe.write(tmp_path, swept, "swept.toml"))
