"""The list of commands, and how a command's file becomes a command.

The file `NAME.py` has a function of that name. Its signature gives the arguments and options, its docstring the help,
and its result is the output: text, or lines of text, or an exit code, or text and an exit code. A file is imported only
when its command is called, and imports what is slow to load within the function, so that `--help` stays fast.

A file may also state which of its options do not go together:

    EXCLUSIVE = [("--step", "--first", "reason")]
    NEEDS = [("--port", "--serve")]

and, as `CONTEXT`, settings of its parser, and with `BRIEF = True` that it only reads a recipe, prints and ends.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import trainkit
from trainkit.errors import FAILED, TrainkitError
from trainkit.printer import show

#: Every command and the first line of its docstring, in the order of the help, which loads no command to show them.
COMMANDS = {
    "run": "Train a recipe and show the run in the terminal.",
    "resume": "Continue a run from its newest checkpoint, or from STEP.",
    "check": "Report everything that is wrong with a recipe.",
    "explain": "Show a key's meaning, allowed values, value and origin.",
    "schema": "Print the JSON schema of recipes, for editors.",
    "sweep": "Train a recipe with each of the values in its [sweep], and rank the runs.",
    "find-lr": "Suggest a learning rate: train briefly while the rate rises.",
    "plan": "Show what a recipe needs: steps, FLOPs, time and memory.",
    "cache-data": "Tokenise the data of a recipe ahead of time.",
    "inspect": "Print the exact batch of any step, past or future.",
    "watch": "Show a run in the terminal, or all runs of a directory.",
    "send": "Send a command to a running trainer.",
    "runs": "List runs with their state, step and last training loss.",
    "compare": "Show how the recipes and the results of runs differ.",
    "track": "Copy a run's log to its trackers, or to a table.",
    "verify": "Compare every byte of checkpoints with their checksums.",
    "doctor": "Find problems of this machine, and show how to fix them.",
    "landscape": "Show the loss of a batch along a line through a run's parameters.",
    "eval": "Evaluate a checkpoint on the validation sets or on other data.",
    "generate": "Continue prompts with a model and print the texts.",
    "chat": "Chat with a model in the terminal; /help lists the commands.",
    "export": "Write a run's model for transformers or PEFT.",
}

Result = str | int | Iterable[str] | tuple[str, int] | None


class CheckedCommand(TyperCommand):
    """A command that refuses options that do not go together."""

    exclusive: Iterable[tuple[str, str, str]] = ()
    needs: Iterable[tuple[str, str]] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # click's UsageError; where typer keeps that class depends on its version
            message = str(getattr(error, "message", ""))
            settings: list[str] = []
            if not any("--set" in parameter.opts for parameter in self.params):
                raise
            if "unexpected extra argument" in message:
                pair = re.compile(r"[\w.]+=.*")
                settings = [a for n, a in enumerate(given) if pair.fullmatch(a) and given[n - 1][:2] != "--"]
            elif (option := getattr(error, "option_name", None)) and (hint := _hint_of_option(str(option), given)):
                raise TrainkitError(f"no such option: {option}", hint=hint) from None
            if not settings:
                raise
            import shlex  # few commands need it

            hint = f"to override a value: {' '.join(f'--set {shlex.quote(setting)}' for setting in settings)}"
            raise TrainkitError(f"{message[0].lower()}{message[1:]}", hint=hint) from None

    def invoke(self, ctx: Any) -> Any:
        sources = {
            name: ctx.get_parameter_source(parameter.name) for parameter in self.params for name in parameter.opts
        }
        given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
        for first, second, reason in self.exclusive:
            if {first, second} <= given:
                raise TrainkitError(
                    f"{first} and {second} exclude each other: {reason}", hint=f"omit {first} or {second}"
                )
        for option, needed in self.needs:
            if option in given and needed not in given:
                raise TrainkitError(f"{option} does nothing without {needed}", hint=f"add {needed}, or omit {option}")
        return super().invoke(ctx)


def _hint_of_option(option: str, given: list[str]) -> str:
    """Return what to write for an option that is a key of a recipe, such as `--steps 5`; empty if it is no key."""
    import shlex

    from trainkit.recipe.toml.positions import dotted_key
    from trainkit.recipe.toml.schema import keys_of, leaves, root
    from trainkit.recipe.toml.suggestions import Meant, suggest

    name = option.lstrip("-").replace("-", "_")
    # people mean the section that is named first
    paths = [tuple(name.split(".")), *((section, name) for section in ("train", "optimizer", "model", "data", "run"))]
    own = next((path for path in paths if path in leaves() and len(path) > 1), None)
    meant = Meant("", own) if own else suggest(name, (), keys_of(root()))
    at = next((n for n, argument in enumerate(given) if argument.partition("=")[0] == option), None)
    if meant.key is None or at is None or len(meant.key) < 2:
        return ""
    following = given[at + 1] if at + 1 < len(given) and not given[at + 1].startswith("--") else "true"
    if meant.note:
        return f"to override a value: --set KEY=VALUE; {meant.hint}"
    setting = f"{dotted_key(meant.key)}={given[at].partition('=')[2] or following}"
    return f"to override a value: --set {shlex.quote(setting)}"


class CommandGroup(TyperGroup):
    """The commands, each loaded when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        # for an unknown name load all of them: typer then suggests the nearest
        for command in [name] if name in COMMANDS else COMMANDS:
            if command not in self.commands:
                self.commands[command] = load_command(command)
        return self.commands.get(name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def load_command(name: str) -> Any:
    """Return the click command that the file of this name defines."""
    identifier = name.replace("-", "_")
    module = import_module(f"trainkit.cli.{identifier}")
    if not getattr(module, "BRIEF", False):
        gc.enable()
    parser = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    parser.command(name, cls=CheckedCommand, context_settings=getattr(module, "CONTEXT", None))(
        getattr(module, identifier)
    )
    command = typer.main.get_command(parser)
    assert isinstance(command, CheckedCommand)
    command.exclusive, command.needs = getattr(module, "EXCLUSIVE", ()), getattr(module, "NEEDS", ())
    return command


def _show(result: Result, **options: Any) -> None:
    """Print what a command returns and end with its exit code."""
    code = 0
    if isinstance(result, tuple):
        result, code = result
    if isinstance(result, int):
        code = result
    elif isinstance(result, str):
        _print(result)
    elif result is not None:
        for line in result:
            _print(line)
    raise typer.Exit(code)


def _print(text: Any) -> None:
    """Print a result. Raises BrokenPipeError, and TrainkitError if stdout takes no more, as on a full disk."""
    try:
        show(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise TrainkitError(f"the output cannot be written: {error.strerror}", exit_code=FAILED) from error


app = typer.Typer(
    name="trainkit",
    help="Write a TOML recipe, train it, watch it, resume it.",
    cls=CommandGroup,
    result_callback=_show,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        show(f"trainkit {trainkit.__version__}")
        raise typer.Exit()


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error. TRAINKIT_DEBUG=1 does the same.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    if debug:
        # in the environment, so that a trainer in its own process sees it
        os.environ["TRAINKIT_DEBUG"] = "1"
