"""`trainkit eval`: evaluate a run's model on its validation sets, or on other data."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from trainkit.cli.arguments import Average, RunOrStep
from trainkit.cli.cache_data import show_progress
from trainkit.errors import TrainkitError
from trainkit.printer import complain
from trainkit.text import format_quantity

EXCLUSIVE = [(option, "--lm-eval", "lm-eval has data of its own") for option in ("--data", "--split")] + [
    ("--predictions", "--lm-eval", "predictions are of the recipe's task")
]
NEEDS = [(option, "--lm-eval") for option in ("--lm-eval-path", "--limit", "--fewshot", "--chat")]


def eval(
    run: RunOrStep,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Evaluate on these files, or on this Hugging Face data set, whose rows are like those of the first"
            " training source; may be repeated. By default, on the recipe's validation sets.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Evaluate on this split of the data set, such as test.", show_default=False),
    ] = None,
    predictions: Annotated[
        bool, typer.Option("--predictions", help="Also write every prediction to the run's results/ as Parquet.")
    ] = False,
    average: Average = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a key of [evaluate]; may be repeated.", show_default=False
        ),
    ] = None,
    lm_eval: Annotated[
        str | None,
        typer.Option(
            "--lm-eval",
            metavar="TASK[,TASK]",
            help="Evaluate on these tasks of lm-eval instead. Needs the extra lm-eval.",
            show_default=False,
        ),
    ] = None,
    lm_eval_path: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --lm-eval: a directory with YAML files of tasks.", show_default=False),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="With --lm-eval: documents of each task.", show_default=False)
    ] = None,
    fewshot: Annotated[
        int | None,
        typer.Option(min=0, help="With --lm-eval: examples before each question; by default, the task's number."),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="With --lm-eval: write questions with the model's chat template.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the metrics as one JSON object.")] = False,
) -> Iterator[str]:
    """Evaluate a checkpoint on the validation sets or on other data.

    With --lm-eval, evaluates a causal model or an encoder-decoder on tasks of lm-eval.

    Writes the metrics to the run's results/SET-STEP.json.
    """
    from trainkit.evaluation.evaluate_run import evaluate_run
    from trainkit.events.tail import as_logged
    from trainkit.parallel.xla import use_compile_cache
    from trainkit.rundir.find import find_run

    directory, step = find_run(run)
    use_compile_cache()

    def warn(message: str) -> None:
        complain(f"warning: {message}")

    if lm_eval is not None:
        harness = _harness()
        options = harness.HarnessOptions(tuple(lm_eval.split(",")), lm_eval_path, limit, fewshot, chat)
        at, results = harness.evaluate_tasks(
            directory, step, options, average=average, overrides=overrides or [], warn=warn
        )
    else:
        with show_progress() as progress:
            at, results = evaluate_run(
                directory,
                step,
                data=data or [],
                split=split,
                predictions=predictions,
                average=average,
                overrides=overrides or [],
                progress=progress,
                warn=warn,
            )
    if json:
        metrics = {name: {key: as_logged(value) for key, value in found.items()} for name, found in results.items()}
        yield json_format.dumps({"step": at, "metrics": metrics})
        return
    for name, found in results.items():
        yield f"{name} at step {at}"
        width = max(map(len, found), default=0)
        for key, value in found.items():
            shown = f"{value:,.0f}" if value.is_integer() else format_quantity(value)  # counts are whole numbers
            yield f"  {key:<{width}}  {shown}"


def _harness() -> ModuleType:
    """Return the adapter of lm-eval. Raises TrainkitError if lm-eval is not installed."""
    try:
        from trainkit.evaluation import harness
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise TrainkitError(
            f"tasks of lm-eval need {package}, which is not installed",
            where="--lm-eval",
            hint="uv sync --extra lm-eval   (or: pip install 'trainkit[lm-eval]')",
        ) from None
    return harness
