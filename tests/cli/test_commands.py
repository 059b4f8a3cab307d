"""A command is one file and one line; options that do not go together are refused; help is complete."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import trainkit.cli
from trainkit.cli import app
from trainkit.errors import DONE, WRONG_INPUT

Call = Callable[..., tuple[int, str, str]]

#: Every option of every command. A new one comes with the question which of the others it would make useless: those
#: pairs belong in `EXCLUSIVE` or `NEEDS` of the command's file.
OPTIONS = {
    "run": "--set --mode --name --plain --json --detach --smoke --profile --restarts",
    "resume": "--set --reset-optimizer --forget-commands --raise-rate --plain --json --detach --profile",
    "check": "--set --mode",
    "explain": "--set --mode",
    "schema": "",
    "plan": "--set --mode --devices --memory --mfu --plot",
    "landscape": "--direction --points --begin --end --seed --output --json",
    "find-lr": "--set --mode --low --high --steps --json",
    "sweep": "--set --mode --name --dry-run --leaderboard --plot",
    "cache-data": "--set --mode --workers --engine --address --verify --repair --rebuild --show --export --prune --yes",
    "inspect": "--set --mode --step --first --rows --json --blackbox",
    "watch": "--once --size --page --replay --readonly --ascii --serve --port --allow-commands",
    "send": "",
    "runs": "--compact --yes",
    "compare": "--metric",
    "track": "--to --table",
    "verify": "--replay",
    "doctor": "--json",
    "eval": "--set --average --data --split --predictions --lm-eval --lm-eval-path --limit --fewshot --chat --json",
    "generate": "--average --file --count --json --max-tokens --temperature --top-k --top-p --min-p"
    " --repetition-penalty --stop --seed --beams --length-penalty",
    "chat": "--average --system --raw --max-tokens --temperature --top-k --top-p --min-p"
    " --repetition-penalty --stop --seed",
    "export": "--average --format --dtype --push --private --json",
}
#: A value for each option that takes one.
VALUES = {
    "--profile": "1:2", "--name": "x", "--step": "1", "--first": "1", "--port": "8000", "--size": "80x24",
    "--workers": "1", "--engine": "local", "--address": "auto", "--show": "0", "--export": "out", "--to": "aim",
    "--table": "t.csv", "--system": "be kind", "--lm-eval": "arc", "--lm-eval-path": "tasks", "--limit": "1",
    "--fewshot": "1", "--data": "x", "--split": "test", "--restarts": "1",
}  # fmt: skip
#: Arguments before the options.
ARGUMENTS = {"export": ["run", "out"]}

LOADED = {name: app.load_command(name) for name in app.COMMANDS}
EXCLUSIVE = [(name, first, second) for name in LOADED for first, second, _ in LOADED[name].exclusive]
NEEDS = [(name, option, needed) for name in LOADED for option, needed in LOADED[name].needs]


def given(*options: str) -> list[str]:
    return [word for option in options for word in (option, *([VALUES[option]] if option in VALUES else []))]


def test_every_option_is_known_here() -> None:
    found = {name: {opt for p in command.params for opt in p.opts if opt[0] == "-"} for name, command in LOADED.items()}
    assert found == {name: set(options.split()) for name, options in OPTIONS.items()}
    named = [(name, option) for name, *pair in EXCLUSIVE + NEEDS for option in pair]
    assert all(option in found[name] for name, option in named)


@pytest.mark.parametrize(("command", "first", "second"), EXCLUSIVE)
def test_options_that_exclude_each_other_are_refused_by_name(call: Call, command: str, first: str, second: str) -> None:
    code, out, err = call(command, *ARGUMENTS.get(command, ["x"]), *given(first, second))
    assert (code, out) == (WRONG_INPUT, "")
    assert err.startswith(f"error: {first} and {second} exclude each other: "), err
    assert err.endswith(f"hint: omit {first} or {second}\n")


@pytest.mark.parametrize(("command", "option", "needed"), NEEDS)
def test_an_option_that_does_nothing_without_another_is_refused(
    call: Call, command: str, option: str, needed: str
) -> None:
    code, out, err = call(command, *ARGUMENTS.get(command, ["x"]), *given(option))
    assert (code, out) == (WRONG_INPUT, "")
    assert err == f"error: {option} does nothing without {needed}\nhint: add {needed}, or omit {option}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["watch", ".", "--page", "data"], "--page shows one run, and . is a directory of runs"),
        (["watch", ".", "--page", "data", "--once"], "trainkit watch RUN --page data --once   or omit --page"),
        (["watch", ".", "--once", "--size", "80x24"], "--size is for the picture of one run"),
        (["export", "x", "out", "--format", "peft", "--dtype", "bfloat16"], "omit --dtype"),
        (["cache-data", "sample.toml", "--engine", "local", "--address", "auto"], "add --engine ray"),
    ],
)
def test_values_that_make_an_option_useless_are_refused(
    call: Call, tmp_path: Path, arguments: list[str], said: str
) -> None:
    from sample_recipe import write
    from test_cli import make_run

    make_run(tmp_path / "one")
    write(tmp_path)
    code, out, err = call(*arguments)
    assert (code, out) == (WRONG_INPUT, "") and said in err


def test_a_new_command_is_one_file_and_one_line(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = 'EXCLUSIVE = [("--loud", "--softly", "pick one")]\n\n\n'
    text += "def say_hello(name: str, loud: bool = False, softly: bool = False) -> list[str]:\n"
    text += '    """Greet somebody."""\n    return [f"hello {name}", "!" if loud else "."]\n'
    (tmp_path / "say_hello.py").write_text(text)
    monkeypatch.setattr(trainkit.cli, "__path__", [*trainkit.cli.__path__, str(tmp_path)])
    monkeypatch.setitem(app.COMMANDS, "say-hello", "Greet somebody.")
    assert call("say-hello", "you", "--loud") == (DONE, "hello you\n!\n", "")
    assert call("say-hello", "you", "--loud", "--softly")[0] == WRONG_INPUT
    assert re.search(r"\n  say-hello +Greet somebody\.\n", call("--help")[1])
    assert "Did you mean 'say-hello'" in call("say-helo")[2]
    del sys.modules["trainkit.cli.say_hello"]


def test_the_list_shows_the_first_line_of_each_docstring() -> None:
    assert {name: command.help.splitlines()[0] for name, command in LOADED.items()} == app.COMMANDS


def test_only_the_command_that_is_called_is_loaded(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    load = app.load_command
    monkeypatch.setattr(app, "load_command", lambda name: loaded.append(name) or load(name))
    call("--help")
    call("check", "none.toml")
    assert loaded == ["check"]


@pytest.mark.parametrize(("command", "enabled"), [("check", False), ("send", True)])
def test_only_a_brief_command_runs_without_garbage_collection(command: str, enabled: bool) -> None:
    gc.disable()  # as `trainkit.cli.program` does
    try:
        app.load_command(command)
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_the_help_fits_a_terminal_and_the_readme_lists_every_command(call: Call) -> None:
    code, out, _ = call("--help")
    assert code == DONE and "..." not in out.partition("Commands:")[2]
    readme = (Path(trainkit.__file__).parents[1] / "README.md").read_text()
    assert [name for name in app.COMMANDS if f"`trainkit {name}" not in readme] == []
