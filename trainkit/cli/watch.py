"""`trainkit watch`: a run in the terminal, as one picture, or in a browser; or all runs of a directory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from trainkit.errors import TrainkitError
from trainkit.printer import quote

EXCLUSIVE = [
    ("--once", "--replay", "a picture shows the newest state"),
    ("--once", "--serve", "a picture is text"),
    ("--allow-commands", "--readonly", "one allows commands, the other forbids them"),
    ("--allow-commands", "--replay", "a replay takes no commands"),
]
NEEDS = [("--size", "--once"), ("--port", "--serve"), ("--allow-commands", "--serve")]


def watch(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN|DIRECTORY]",
            help="A run's directory or its name in runs/; or a directory of runs, by default runs/.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one picture of the dashboard as text.")] = False,
    size: Annotated[
        str, typer.Option(metavar="WxH", help="Size of that picture, such as 120x40; by default the terminal's.")
    ] = "",
    page: Annotated[str, typer.Option(help="The first page to show, such as metrics.", show_default=False)] = "",
    replay: Annotated[bool, typer.Option("--replay", help="Play the run back from its beginning.")] = False,
    readonly: Annotated[bool, typer.Option("--readonly", help="Only watch: no key sends a command.")] = False,
    ascii_only: Annotated[
        bool, typer.Option("--ascii", help="Draw in ASCII. This is the default where the locale is not UTF-8.")
    ] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Show the dashboard, read-only, in a browser on this machine.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="The port of --serve; any free one if omitted.", show_default=False),
    ] = None,
    allow_commands: Annotated[
        bool, typer.Option("--allow-commands", help="Let the browser of --serve send commands too.")
    ] = False,
) -> str | None:
    """Show a run in the terminal, or all runs of a directory.

    The run may have ended. From a list of runs, you can open, compare and delete them.
    """
    from trainkit.cli.arguments import directory_of_runs, run_directory

    if (directory := directory_of_runs(run)) is not None:
        given = {"--replay": replay, "--serve": serve, "--page": page}
        if unused := [name for name, value in given.items() if value]:
            options = " ".join(f"{name} {page}" if name == "--page" else name for name in unused)
            raise TrainkitError(
                f"{' and '.join(unused)} shows one run, and {directory} is a directory of runs",
                hint=f"name a run: trainkit watch RUN {options}{' --once' * once}   or omit {' and '.join(unused)}",
            )
        if once:
            if size:
                raise TrainkitError("--size is for the picture of one run, and this is a table", hint="omit --size")
            from trainkit.cli.runs import runs

            return runs(directory)
        _browse(directory, readonly=readonly, ascii_only=ascii_only)
        return None
    assert run is not None
    path = run_directory(run)
    if once:
        return _picture(path, size=size, page=page, ascii_only=ascii_only)
    if serve:
        _serve(path, port=port or 0, replay=replay, commands=allow_commands, ascii_only=ascii_only, page=page)
    else:
        from trainkit.dashboard import terminal

        terminal.watch(path, replay=replay, readonly=readonly, ascii_only=ascii_only, page=page)
    return None


def _browse(directory: Path, *, readonly: bool, ascii_only: bool) -> None:
    from trainkit.dashboard import terminal

    terminal.require_terminal(f"for the same list as text: trainkit runs {quote(directory)}")

    def show() -> None:
        from trainkit.dashboard.runs.browse import show

        show(directory, readonly=readonly, ascii_only=ascii_only)

    terminal.run_guarded(show)


def _picture(run: Path, *, size: str, page: str, ascii_only: bool) -> str:
    """Return one frame of the dashboard as text, of `size` ("120x40") or of the terminal's size."""
    from trainkit.dashboard.terminal import once
    from trainkit.dashboard.theme import wants_ascii

    columns, lines = shutil.get_terminal_size((120, 40))
    if size:
        width, _, height = size.partition("x")
        if not (width.isdecimal() and height.isdecimal() and 0 < int(width) <= 1000 and 0 < int(height) <= 1000):
            raise TrainkitError(
                f"'{size}' is not a size", where="--size", hint="columns x lines, 1 to 1000 each, such as 120x40"
            )
        columns, lines = int(width), int(height)
    return once(run, width=columns, height=lines, page=page, ascii_only=ascii_only or wants_ascii())


def _serve(run: Path, *, port: int, replay: bool, commands: bool, ascii_only: bool, page: str) -> None:
    try:
        from trainkit.dashboard.serve import serve
    except ModuleNotFoundError as error:
        if error.name not in ("aiohttp", "textual_serve"):
            raise
        raise TrainkitError(
            f"--serve needs {error.name}, which is not installed",
            hint="uv sync --extra serve   (or: pip install 'trainkit[serve]')",
        ) from None

    serve(run, port=port, replay=replay, commands=commands, ascii_only=ascii_only, page=page)
