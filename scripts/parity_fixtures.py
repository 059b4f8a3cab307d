"""What transformers makes of a small model of every family, kept for machines that have no torch.

uv run python scripts/parity_fixtures.py --torch PYTHON             # writes tests/fixtures/parity
uv run python scripts/parity_fixtures.py --torch PYTHON --compare   # writes nothing: the table of docs/models.md

`PYTHON` has torch and transformers; without it, the one that the tests use is taken. The models are those of
`tests/support/fixed_configs.py`. For each, NAME.json holds config.json and the shapes of the tensors, whose values
`tests/support/parity_rule.py` derives from a seed and their names; NAME.npz holds tokens, logits, the loss, the greedy
answer, and for the gradient of each tensor, in the order of the shapes, its norm and its products with two directions.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

ROOT = Path(__file__).parent.parent
if TYPE_CHECKING:
    from tests.support.parity import Found
    from tests.support.reference import Reference

SEED, SIZE = 0, (2, 20)
#: Of what the reference gives, what is kept as it is; the row that is padded at the right is the first of `logits`.
AS_IT_IS = ("logits", "late_logits", "left_padded_logits", "greedy", "loss")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", type=Path, help="a Python with torch and transformers")
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "fixtures" / "parity")
    parser.add_argument("--compare", action="store_true", help="compare in full instead of writing")
    arguments = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from reference import Reference, torch_python

    reference = Reference(arguments.torch or torch_python())
    versions = reference.versions()
    try:
        if arguments.compare:
            compare(reference)
        else:
            write(reference, arguments.out, versions)
    finally:
        reference.close()
    named = {**versions, "jax": version("jax"), "numpy": version("numpy")}
    print("with " + ", ".join(f"{name} {number}" for name, number in named.items()))


def made(reference: Reference) -> Iterator[tuple[str, Path, Found]]:
    """Of each model its name, its checkpoint and what the reference makes of it."""
    from fixed_configs import FIXED
    from parity import ASKED

    for name, fixed in FIXED.items():
        with tempfile.TemporaryDirectory() as directory:
            yield name, Path(directory), reference.make(Path(directory), fixed.config, seed=SEED, size=SIZE, **ASKED)


def write(reference: Reference, out: Path, versions: dict[str, str]) -> None:
    from fixed_configs import FIXED
    from parity import ASKED, GRADIENT
    from parity_rule import along

    from trainkit.hub.config import family_of
    from trainkit.hub.safetensors import open_directory

    out.mkdir(parents=True, exist_ok=True)
    for old in [*out.glob("*.json"), *out.glob("*.npz")]:
        old.unlink()
    total = 0
    for name, directory, found in made(reference):
        config = json.loads((directory / "config.json").read_text())
        shapes = {tensor: list(place.shape) for tensor, place in sorted(open_directory(directory).items())}
        gradients = [along(SEED, tensor, found[GRADIENT + tensor]) for tensor in shapes]
        said = {"versions": versions, "seed": SEED, "asked": ASKED, "config": config, "tensors": shapes}
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in said.items())
        kept = {"tokens": found["tokens"], **{which: found[which] for which in AS_IT_IS}, "gradients": gradients}
        files = out / f"{name}.json", out / f"{name}.npz"
        files[0].write_text(f"{{\n{lines}\n}}\n")
        np.savez_compressed(files[1], **kept)
        total += (size := sum(file.stat().st_size for file in files))
        family = family_of(config, where=name).type
        print(f"{name}: {family}, {FIXED[name].options}; {size:,} bytes", flush=True)
    print(f"{total:,} bytes in {out}")


def compare(reference: Reference) -> None:
    from fixed_configs import FIXED
    from parity import ASKED, GRADIENT, differences, ours

    print("| | what is in it | logits | gradients | greedy answers |\n|---|---|---|---|---|")
    for name, directory, expected in made(reference):
        found = ours(directory, expected["tokens"], **ASKED)
        apart = differences(found, expected)
        gradients = max(much for which, much in apart.items() if which.startswith(GRADIENT))
        logits = max(much for which, much in apart.items() if not which.startswith(GRADIENT))
        same = "the same" if (found["greedy"] == expected["greedy"]).all() else "not the same"
        print(f"| `{name}` | {FIXED[name].options} | {logits:.1e} | {gradients:.1e} | {same} |", flush=True)


if __name__ == "__main__":
    main()
