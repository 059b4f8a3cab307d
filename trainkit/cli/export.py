"""`trainkit export`: a run's model for other programs, and for the hub."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainkit.cli.where import find_run
from trainkit.errors import FAILED, TrainkitError
from trainkit.text import format_bytes, plural


def export(
    run: str, out: Path, *, adapter: bool, dtype: str | None, push: str | None, private: bool, as_json: bool
) -> str:
    """Write the model, or its adapter alone, into `out`, and upload it to the repository `push`; what was done.

    That is in words, or with `as_json` a JSON object.

    Raises:
        TrainkitError: it cannot be exported, or not be uploaded.
    """
    done, told = _adapter(run, out, dtype=dtype, push=push) if adapter else _model(run, out, dtype=dtype)
    if push is not None:
        done["uploaded"] = _push(out, push, private=private, step=done["step"])
        told += f"\nuploaded to {done['uploaded']}"
    return json.dumps(done, ensure_ascii=False) if as_json else told


def _model(run: str, out: Path, *, dtype: str | None) -> tuple[dict[str, Any], str]:
    """What was written, and the same in words."""
    directory, step = _found(run)
    from trainkit.export.model import export as write
    from trainkit.rundir.directory import recipe_of

    done = write(directory, step, out, dtype=dtype or recipe_of(directory).recipe.precision.params)
    told = (
        f"exported step {done.step} of {directory.name} to {out}:"
        f" {format_bytes(done.bytes)} in {plural(len(done.files), 'file')}\n"
        f"read back, its logits are those of the checkpoint: they differ by {done.difference:.1e} of the largest"
    )
    if done.rounding:
        told += f"; rounding the weights changed them by {done.rounding:.1e}"
    return asdict(done) | {"directory": str(out)}, told


def _adapter(run: str, out: Path, *, dtype: str | None, push: str | None) -> tuple[dict[str, Any], str]:
    if dtype not in (None, "float32"):
        raise TrainkitError("an adapter is float32, as it was trained", where="--dtype", hint="leave it out")
    directory, step = _found(run)
    from trainkit.rundir.directory import recipe_of

    if push is not None and Path(recipe_of(directory).recipe.base_checkpoint or "").is_absolute():
        raise TrainkitError(
            "the adapter's base is a directory of this machine, which is nobody's business and of no use elsewhere",
            where="--push",
            hint="leave it out, write the base's hub id as base_model_name_or_path into OUT/adapter_config.json, and"
            f" upload that: hf upload {push} OUT",
        )
    from trainkit.export.adapter import export_adapter as write

    step, files = write(directory, step, out)
    size = sum(file.stat().st_size for file in files)
    told = (
        f"exported the adapter of step {step} of {directory.name} to {out}:"
        f" {format_bytes(size)} in {plural(len(files), 'file')}"
    )
    done = {"directory": str(out), "files": [file.name for file in files], "bytes": size, "step": step}
    told += ", read back to the last bit"
    adapter = recipe_of(directory).recipe.adapter
    if adapter is not None and adapter.base == "nf4":
        told += (
            "\nit was trained on its base in 4 bit (nf4), and answers as in training on that only: on the base in full"
            f" it answers differently. For a model without quantisation that answers as in training, merge it into the"
            f" dequantised base: trainkit export {run} OUT --format hf"
        )
    return done | {"difference": 0.0}, told


def _found(run: str) -> tuple[Path, int | None]:
    directory, step = find_run(run)
    from trainkit.parallel.compile_cache import use_compile_cache

    use_compile_cache()
    return directory, step


def _push(directory: Path, repository: str, *, private: bool, step: int) -> str:
    from huggingface_hub import HfApi

    hub = HfApi()
    try:
        print(f"uploading to {repository}", file=sys.stderr)
        hub.create_repo(repository, private=private, exist_ok=True)
        done = hub.upload_folder(repo_id=repository, folder_path=directory, commit_message=f"Step {step}")
    # the hub's client and its HTTP library each raise what they like
    except Exception as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise TrainkitError(
            f"it is exported, and could not be uploaded to '{repository}': {said[0]}",
            where=str(directory),
            hint="look at the network, the name, and your token (HF_TOKEN, which may write)",
            exit_code=FAILED,
        ) from error
    return str(done)
