"""`trainkit export`: a run's model for other programs, and for the hub."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from trainkit.cli.arguments import Average, RunOrStep
from trainkit.errors import FAILED, TrainkitError
from trainkit.printer import complain, quote
from trainkit.text import format_bytes, plural

NEEDS = [("--private", "--push")]


class ExportFormat(StrEnum):
    """What an export is for."""

    HF = "hf"
    PEFT = "peft"


class ExportDtype(StrEnum):
    """The dtype of exported weights."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


def export(
    run: RunOrStep,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A directory that does not exist yet.")],
    format: Annotated[
        ExportFormat,
        typer.Option(help="hf: a model for transformers, with the adapter, if any, merged; peft: the adapter alone."),
    ] = ExportFormat.HF,
    dtype: Annotated[
        ExportDtype | None, typer.Option(help="Dtype of the weights; by default that of training.", show_default=False)
    ] = None,
    average: Average = None,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="REPO", help="Also upload it to this Hugging Face repository, such as me/model.", show_default=False
        ),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="If --push creates the repository, make it private.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of text.")] = False,
) -> str:
    """Write a run's model for transformers or PEFT.

    Writes weights, config, tokenizer and model card, reads the weights back and compares them.
    """
    write = _adapter if format is ExportFormat.PEFT else _model
    fields, message = write(run, out, dtype=dtype.value if dtype else None, average=average, push=push)
    if push is not None:
        fields["uploaded"] = _push(out, push, private=private, step=fields["step"])
        message += f"\nuploaded to {fields['uploaded']}"
    return json_format.dumps(fields, ensure_ascii=False) if json else message


def _model(
    run: str, out: Path, *, dtype: str | None, average: bool | None, push: str | None
) -> tuple[dict[str, Any], str]:
    """Write the model, and return what was written as fields and in words."""
    directory, step = _find(run)
    from trainkit.export.model import export as write
    from trainkit.rundir.directory import recipe_of

    done = write(directory, step, out, dtype=dtype or recipe_of(directory).recipe.precision.params, average=average)
    message = (
        f"exported step {done.step} of {directory.name} to {out}:"
        f" {format_bytes(done.bytes)} in {plural(len(done.files), 'file')}\n"
        f"read back: its logits differ from the checkpoint's by at most {done.difference:.1e} of the largest"
    )
    if done.rounding:
        message += f"; rounding the weights changed the logits by {done.rounding:.1e}"
    return asdict(done) | {"directory": str(out)}, message


def _adapter(
    run: str, out: Path, *, dtype: str | None, average: bool | None, push: str | None
) -> tuple[dict[str, Any], str]:
    if dtype not in (None, "float32"):
        raise TrainkitError(f"an adapter is exported in float32 only, not in {dtype}", hint="omit --dtype")
    directory, step = _find(run)
    from trainkit.rundir.directory import recipe_of

    if push is not None and Path(recipe_of(directory).recipe.base_checkpoint or "").is_absolute():
        raise TrainkitError(
            "the adapter's base is a directory of this machine: others could not load it, and would see its path",
            where="--push",
            hint="omit --push, set base_model_name_or_path in OUT/adapter_config.json to the base's hub id, and upload"
            f" that: hf upload {quote(push)} OUT",
        )
    from trainkit.export.adapter import export_adapter as write

    step, files = write(directory, step, out, average=average)
    size = sum(file.stat().st_size for file in files)
    message = (
        f"exported the adapter of step {step} of {directory.name} to {out}:"
        f" {format_bytes(size)} in {plural(len(files), 'file')}"
    )
    done = {"directory": str(out), "files": [file.name for file in files], "bytes": size, "step": step}
    message += ", read back bit for bit"
    adapter = recipe_of(directory).recipe.adapter
    if adapter is not None and adapter.base == "nf4":
        message += (
            "\nit was trained on its base in 4 bit (nf4) and gives other answers on the unquantised base. For an"
            " unquantised model with the answers of training, merge it into the dequantised base:"
            f" trainkit export {quote(run)} OUT --format hf"
        )
    return done | {"difference": 0.0}, message


def _find(run: str) -> tuple[Path, int | None]:
    from trainkit.parallel.xla import use_compile_cache
    from trainkit.rundir.find import find_run

    use_compile_cache()
    return find_run(run)


def _push(directory: Path, repository: str, *, private: bool, step: int) -> str:
    from huggingface_hub import HfApi

    hub = HfApi()
    try:
        complain(f"uploading to {repository}")
        hub.create_repo(repository, private=private, exist_ok=True)
        done = hub.upload_folder(repo_id=repository, folder_path=directory, commit_message=f"Step {step}")
    # the hub's client and its HTTP library each raise what they like
    except Exception as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise TrainkitError(
            f"the export is written, but cannot be uploaded to '{repository}': {said[0]}",
            where=str(directory),
            hint="check the network, the repository's name, and that your token (HF_TOKEN) may write to it",
            exit_code=FAILED,
        ) from error
    return str(done)
