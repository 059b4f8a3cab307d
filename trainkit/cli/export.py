"""`trainkit export`: a run's model for other programs, and for the hub."""

from __future__ import annotations

import sys
from pathlib import Path

from trainkit.cli.where import find_run
from trainkit.errors import FAILED, TrainkitError
from trainkit.events.plain import bytes_


def export(run: str, out: Path, *, dtype: str | None, push: str | None, private: bool) -> str:
    """Write the model into `out`, and upload it to the repository `push`; what was done, in words.

    Raises:
        TrainkitError: it cannot be exported, or not be uploaded.
    """
    directory, step = find_run(run)
    from trainkit.run.directory import recipe_of
    from trainkit.run.export import export as write

    done = write(directory, step, out, dtype=dtype or recipe_of(directory).recipe.precision.params)
    written = f"{bytes_(done.bytes)} in {len(done.files)} files"
    lines = [
        f"exported step {done.step} of {directory.name} to {done.directory}: {written}",
        f"read back, its logits are those of the checkpoint: they differ by {done.difference:.1e} of the largest"
        + (f"; rounding the weights changed them by {done.rounding:.1e}" if done.rounding else ""),
    ]
    if push is not None:
        lines.append(f"uploaded to {_push(done.directory, push, private=private, step=done.step)}")
    return "\n".join(lines)


def export_adapter(run: str, out: Path, *, dtype: str | None, push: str | None, private: bool) -> str:
    """Write the adapter alone into `out`, as PEFT has it; otherwise as `export`."""
    if dtype not in (None, "float32"):
        raise TrainkitError("an adapter is float32, as it was trained", where="--dtype", hint="leave it out")
    directory, step = find_run(run)
    from trainkit.run.export_adapter import export_adapter as write

    files = write(directory, step, out)
    size = bytes_(sum(file.stat().st_size for file in files))
    lines = [
        f"exported the adapter of {directory.name} to {out}: {size} in {len(files)} files, read back to the last bit"
    ]
    if push is not None:
        lines.append(f"uploaded to {_push(out, push, private=private, step=step)}")
    return "\n".join(lines)


def _push(directory: Path, repository: str, *, private: bool, step: int | None) -> str:
    from huggingface_hub import HfApi

    hub = HfApi()
    try:
        print(f"uploading to {repository}", file=sys.stderr)
        hub.create_repo(repository, private=private, exist_ok=True)
        done = hub.upload_folder(repo_id=repository, folder_path=directory, commit_message=f"Step {step or 'newest'}")
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
