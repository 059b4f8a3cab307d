"""The commands: their words and options. Each imports late what it needs, so that `--help` needs nothing."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

import trainkit
from trainkit.cli import observe, use

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
RunOrStep = Annotated[str, typer.Argument(metavar="RUN[/STEP]", help="A run, or one checkpoint of it.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Put a value over the recipe's; may be repeated.", show_default=False
    ),
]
Plain = Annotated[bool, typer.Option("--plain", help="Print lines instead of the dashboard; train in this process.")]
Json = Annotated[bool, typer.Option("--json", help="Print events as JSON lines; train in this process.")]
Profile = Annotated[
    str | None,
    typer.Option(
        metavar="FIRST:LAST",
        help="Trace these steps, such as 20:25: a trace for Perfetto and XProf, and a summary of the operations that"
        " took most, in the run's profile/.",
        show_default=False,
    ),
]
Detach = Annotated[bool, typer.Option("--detach", help="Train in the background; look with trainkit watch.")]


class EngineName(StrEnum):
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
        bool, typer.Option("--smoke", help="Try it: 2 steps, every part once, in a directory that is thrown away.")
    ] = False,
    profile: Profile = None,
) -> None:
    """Train a recipe, and show it in the terminal."""
    from trainkit.cli.run import run

    if smoke and profile is not None:
        raise typer.BadParameter("--smoke keeps nothing, of --profile neither")
    raise typer.Exit(run(recipe, overrides or [], name, _output(plain, json), detach, smoke, profile))


@app.command()
def resume(
    run: RunOrStep,
    overrides: Overrides = None,
    reset_optimizer: Annotated[bool, typer.Option("--reset-optimizer", help="Forget the optimiser's state.")] = False,
    forget_orders: Annotated[
        bool, typer.Option("--forget-orders", help="Do not repeat the rate and decay sent after the checkpoint.")
    ] = False,
    raise_rate: Annotated[
        bool, typer.Option("--raise-rate", help="Let a changed schedule raise the learning rate.")
    ] = False,
    plain: Plain = False,
    json: Json = False,
    detach: Detach = False,
    profile: Profile = None,
) -> None:
    """Go on with a run from its newest checkpoint, or from one of them."""
    from trainkit.cli.resume import resume

    output = _output(plain, json)
    raise typer.Exit(resume(run, overrides or [], reset_optimizer, forget_orders, raise_rate, output, detach, profile))


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
def schema(
    recipe: Annotated[
        Path | None, typer.Argument(metavar="RECIPE", help="Include what its plugins add.", show_default=False)
    ] = None,
) -> None:
    """Print the JSON schema of recipes, for editors."""
    from trainkit.cli.recipes import schema

    print(schema(recipe))


@app.command()
def plan(
    recipe: RecipePath,
    overrides: Overrides = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Suppose so many devices, instead of those of this machine.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Suppose a device to have so much memory, such as 8GB.", show_default=False),
    ] = None,
    mfu: Annotated[float, typer.Option(min=0.01, max=1.0, help="Share of the devices' peak to expect.")] = 0.4,
) -> None:
    """Print steps, batch split, parameters, FLOPs, time and the memory of the compiled step; train nothing."""
    from trainkit.cli.plan import plan

    print(plan(recipe, overrides or [], devices=devices, memory=memory, mfu=mfu))


@app.command("cache-data")
def cache_data(
    recipe: RecipePath,
    overrides: Overrides = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Tokenise in so many workers.")] = None,
    engine: Annotated[
        EngineName,
        typer.Option(
            help="Who tokenises: threads of this process, or a Ray cluster, all hosts of which must see the sources and"
            " the cache directory (data.cache) under the same path."
        ),
    ] = EngineName.LOCAL,
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
    from trainkit.errors import TrainkitError

    if rebuild and repair:
        raise TrainkitError("--rebuild throws away what --repair would look at", hint="leave one of them out")
    if verify and not repair:
        others = {"--rebuild": rebuild, "--show": show, "--export": export, "--workers": workers, "--address": address}
        given = [name for name, value in others.items() if value] + ["--engine"] * (engine is not EngineName.LOCAL)
        if given:
            raise TrainkitError(
                f"--verify only compares shards with their checksums: {' and '.join(given)} would do nothing",
                hint=f"leave out --verify, or {' and '.join(given)}",
            )
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


app.command()(observe.watch)
# a prompt may begin with a dash, and of a negative factor the order itself says what is wrong
app.command(context_settings={"ignore_unknown_options": True})(observe.send)
app.command()(observe.runs)
app.command()(observe.compare)
app.command()(observe.track)


@app.command()
def verify(run: RunOrStep) -> None:
    """Read every byte of a run's checkpoints, or of one, and compare with their checksums."""
    from trainkit.cli.look import verify

    raise typer.Exit(verify(run))


@app.command()
def doctor(json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Say what is installed, what this machine has, what is wrong with it and how to mend that."""
    from trainkit.cli.doctor import doctor

    text, code = doctor(as_json=json)
    print(text)
    raise typer.Exit(code)


app.command()(use.generate)
app.command()(use.chat)
app.command()(use.export)


def _output(plain: bool, json: bool) -> Literal["plain", "json"] | None:
    """`"plain"`, `"json"`, or None: the dashboard where there is a terminal."""
    if plain and json:
        raise typer.BadParameter("--plain and --json exclude each other")
    return "plain" if plain else "json" if json else None
