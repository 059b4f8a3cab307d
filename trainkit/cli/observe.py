"""The words and options of the commands that look at runs, and steer them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's directory, or its name below runs/.")]


class Tracker(StrEnum):
    """Where a run can be tracked."""

    AIM = "aim"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"


def watch(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN|DIRECTORY]",
            help="A run's directory, or its name below runs/; or a directory of many runs, runs/ where not given.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one picture of it as text.")] = False,
    size: Annotated[
        str, typer.Option(metavar="WxH", help="Of that picture, such as 120x40; the terminal's where not given.")
    ] = "",
    page: Annotated[str, typer.Option(help="The page to begin with, such as metrics.", show_default=False)] = "",
    replay: Annotated[bool, typer.Option("--replay", help="Show it as it went, from its beginning.")] = False,
    readonly: Annotated[bool, typer.Option("--readonly", help="Only look: no key orders anything.")] = False,
    ascii_only: Annotated[
        bool, typer.Option("--ascii", help="Draw in ASCII; done by itself where the locale is not UTF-8.")
    ] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Show it in a browser of this machine, which may only look.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="The port of --serve; any free one if omitted.", show_default=False),
    ] = None,
    allow_orders: Annotated[
        bool, typer.Option("--allow-orders", help="Let the browser of --serve give orders too.")
    ] = False,
) -> None:
    """Show a run in the terminal, also one that has ended; or all runs of a directory, to open, compare and delete."""
    from trainkit.cli import look
    from trainkit.cli.where import directory_of_runs

    if (size and not once) or (once and (replay or serve)):
        raise typer.BadParameter("--once prints one picture: --size is its size, --replay and --serve are other ways")
    if port is not None and not serve:
        raise typer.BadParameter("--port goes with --serve")
    if allow_orders and (not serve or readonly or replay):
        raise typer.BadParameter("--allow-orders goes with --serve, and with neither --readonly nor --replay")
    if (directory := directory_of_runs(run)) is not None:
        if replay or serve or page or size:
            raise typer.BadParameter("--replay, --serve, --page and --size are for one run: name it")
        if once:
            print(look.runs(directory))
        else:
            look.browse(directory, readonly=readonly, ascii_only=ascii_only)
        return
    assert run is not None
    if once:
        print(look.picture(run, size=size, page=page, ascii_only=ascii_only))
    elif serve:
        look.serve(run, port=port or 0, replay=replay, orders=allow_orders, ascii_only=ascii_only, page=page)
    else:
        look.watch(run, replay=replay, readonly=readonly, ascii_only=ascii_only, page=page)


def send(
    run: RunName,
    command: Annotated[
        str,
        typer.Argument(
            metavar="COMMAND",
            help="save, pause, continue, evaluate, stop; sample PROMPT: continue a text; rate FACTOR: multiply the"
            " learning rate, 1 puts it back; decay: begin the decay of a wsd schedule, and end with it",
        ),
    ],
    argument: Annotated[
        str | None, typer.Argument(metavar="[PROMPT|FACTOR]", help="Of sample and rate.", show_default=False)
    ] = None,
) -> None:
    """Give a running trainer an order; what changes the training is repeated where the run is resumed."""
    from trainkit.cli.look import send

    print(send(run, command, argument))


def runs(
    directory: Annotated[Path, typer.Argument(metavar="[DIRECTORY]", help="Where runs are kept.")] = Path("runs"),
) -> None:
    """List runs: state, step, last loss, age."""
    from trainkit.cli.look import runs

    print(runs(directory))


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN RUN…", help="Two runs or more.")],
) -> None:
    """Say what differs between runs: their recipes, and what came of it."""
    from trainkit.cli.compare import compare

    if len(runs) < 2:
        raise typer.BadParameter("name at least two runs")
    print(compare(runs))


def track(
    run: RunName,
    to: Annotated[
        Tracker | None, typer.Option(help="Which tracker; those of the recipe where not given.", show_default=False)
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write its numbers to a .csv or .parquet instead.", show_default=False),
    ] = None,
) -> None:
    """Bring trackers up to date with a run's log, also long after; or write it as a table."""
    from trainkit.cli.track import track

    if to and table:
        raise typer.BadParameter("--to and --table exclude each other")
    print(track(run, to=to.value if to else None, table=table))
