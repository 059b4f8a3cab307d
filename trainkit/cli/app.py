"""The commands: their words and options. Each imports late what it needs, so that `--help` needs nothing."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

import trainkit

app = typer.Typer(
    name="trainkit",
    help="Write a TOML recipe, train it, watch it, resume it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RecipePath = Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe file.", show_default=False)]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's directory, or its name below runs/.")]
RunOrStep = Annotated[str, typer.Argument(metavar="RUN[/STEP]", help="A run, or one checkpoint of it.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Put a value over the recipe's; may be repeated.", show_default=False
    ),
]
Plain = Annotated[bool, typer.Option("--plain", help="Print lines instead of the dashboard; train in this process.")]
Json = Annotated[bool, typer.Option("--json", help="Print events as JSON lines; train in this process.")]
Detach = Annotated[bool, typer.Option("--detach", help="Train in the background; look with trainkit watch.")]


class Engine(StrEnum):
    """Who tokenises."""

    LOCAL = "local"
    RAY = "ray"


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"trainkit {trainkit.__version__}")
        raise typer.Exit()


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks. TRAINKIT_DEBUG=1 does too.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    if debug:
        # by the environment, so that a trainer in its own process hears of it
        os.environ["TRAINKIT_DEBUG"] = "1"


@app.command()
def run(
    recipe: RecipePath,
    overrides: Overrides = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; the recipe's where not given.")] = None,
    plain: Plain = False,
    json: Json = False,
    detach: Detach = False,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Try it: 2 steps, in a directory that is thrown away.")
    ] = False,
) -> None:
    """Train a recipe, and show it in the terminal."""
    from trainkit.cli.run import run

    raise typer.Exit(run(recipe, overrides or [], name, _output(plain, json), detach, smoke))


@app.command()
def resume(
    run: RunOrStep,
    overrides: Overrides = None,
    reset_optimizer: Annotated[bool, typer.Option("--reset-optimizer", help="Forget the optimiser's state.")] = False,
    plain: Plain = False,
    json: Json = False,
    detach: Detach = False,
) -> None:
    """Go on with a run from its newest checkpoint, or from one of them."""
    from trainkit.cli.resume import resume

    raise typer.Exit(resume(run, overrides or [], reset_optimizer, _output(plain, json), detach))


@app.command()
def check(recipe: RecipePath, overrides: Overrides = None) -> None:
    """Say all that is wrong with a recipe, in a second."""
    from trainkit.cli.recipes import check

    print(check(recipe, overrides or []))


@app.command()
def explain(
    recipe: RecipePath,
    key: Annotated[str, typer.Argument(metavar="KEY", help="A key such as train.batch_size, or a section.")],
    overrides: Overrides = None,
) -> None:
    """Say what a key means, what it may be, what it is in this recipe, and where that was written."""
    from trainkit.cli.recipes import explain

    print(explain(recipe, key, overrides or []))


@app.command()
def schema() -> None:
    """Print the JSON schema of recipes, for editors."""
    from trainkit.cli.recipes import schema

    print(schema())


@app.command()
def plan(
    recipe: RecipePath,
    overrides: Overrides = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Suppose so many devices, instead of those of this machine.")
    ] = None,
) -> None:
    """Print steps, batch split, parameters, FLOPs and estimated memory; train nothing."""
    from trainkit.cli.plan import plan

    print(plan(recipe, overrides or [], devices=devices))


@app.command("cache-data")
def cache_data(
    recipe: RecipePath,
    overrides: Overrides = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Tokenise in so many workers.")] = None,
    engine: Annotated[
        Engine,
        typer.Option(
            help="Who tokenises: threads of this process, or a Ray cluster, all hosts of which must see the sources and"
            " the cache directory (data.cache) under the same path."
        ),
    ] = Engine.LOCAL,
    address: Annotated[
        str | None,
        typer.Option(
            help="Of the Ray cluster: HOST:PORT, or auto. RAY_ADDRESS where not given, else one is started here.",
            show_default=False,
        ),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Only compare the shards with their checksums.")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="The same, and make damaged shards again.")] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Throw away all of the cache first.")] = False,
    show: Annotated[int, typer.Option(metavar="N", min=0, help="Print the first N examples.")] = 0,
    export: Annotated[
        Path | None, typer.Option(metavar="DIRECTORY", help="Write the tokens as Parquet.", show_default=False)
    ] = None,
) -> None:
    """Tokenise the data of a recipe ahead of time."""
    from trainkit.cli import cache

    if verify and not repair:
        text, code = cache.verify(recipe, overrides or [])
        print(text)
        raise typer.Exit(code)
    made = cache.cache_data(
        recipe,
        overrides or [],
        workers=workers,
        engine=engine.value,
        address=address,
        rebuild=rebuild,
        repair=repair,
        show=show,
        export=export,
    )
    print(made)


@app.command()
def inspect(
    what: Annotated[str, typer.Argument(metavar="RUN|RECIPE", help="A run, or a recipe file.")],
    overrides: Overrides = None,
    step: Annotated[int | None, typer.Option(min=0, help="The batch of this step.", show_default=False)] = None,
    first: Annotated[int, typer.Option(min=1, help="The batches of the first steps.")] = 1,
    rows: Annotated[int | None, typer.Option(min=1, help="So many rows of a batch.", show_default=False)] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object a row.")] = False,
) -> None:
    """Print the exact batch of any step, past or future: text, what is learned, and where it comes from."""
    from trainkit.cli.inspect import inspect

    for line in inspect(what, overrides or [], step=step, first=first, rows=rows, as_json=json):
        print(line)


@app.command()
def watch(
    run: RunName,
    once: Annotated[bool, typer.Option("--once", help="Print one picture of it as text.")] = False,
    replay: Annotated[bool, typer.Option("--replay", help="Show it as it went, from its beginning.")] = False,
    readonly: Annotated[bool, typer.Option("--readonly", help="Only look: no key orders anything.")] = False,
) -> None:
    """Show a run in the terminal, also one that has ended."""
    from trainkit.cli.look import watch

    watch(run, once=once, replay=replay, readonly=readonly)


@app.command()
def send(
    run: RunName,
    command: Annotated[str, typer.Argument(metavar="COMMAND", help="save, pause, continue, evaluate or stop")],
) -> None:
    """Tell a running trainer to save, pause, continue, evaluate or stop."""
    from trainkit.cli.look import send

    print(send(run, command))


@app.command()
def runs(
    directory: Annotated[Path, typer.Argument(metavar="[DIRECTORY]", help="Where runs are kept.")] = Path("runs"),
) -> None:
    """List runs: state, step, last loss, age."""
    from trainkit.cli.look import runs

    print(runs(directory))


@app.command()
def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN RUN…", help="Two runs or more.")],
) -> None:
    """Say what differs between runs: their recipes, and what came of it."""
    from trainkit.cli.compare import compare

    if len(runs) < 2:
        raise typer.BadParameter("name at least two runs")
    print(compare(runs))


@app.command()
def track(
    run: RunName,
    table: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write its numbers to a .csv or .parquet instead.", show_default=False),
    ] = None,
) -> None:
    """Bring Aim up to date with a run's log, also long after; or write it as a table."""
    from trainkit.cli.track import track

    print(track(run, table=table))


@app.command()
def verify(run: RunOrStep) -> None:
    """Read every byte of a run's checkpoints, or of one, and compare with their checksums."""
    from trainkit.cli.look import verify

    raise typer.Exit(verify(run))


def _output(plain: bool, json: bool) -> Literal["plain", "json"] | None:
    """`"plain"`, `"json"`, or None: the dashboard where there is a terminal."""
    if plain and json:
        raise typer.BadParameter("--plain and --json exclude each other")
    return "plain" if plain else "json" if json else None
