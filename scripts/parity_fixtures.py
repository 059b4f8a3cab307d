"""What transformers makes of a small model of every family, kept for machines that have no torch.

uv run python scripts/parity_fixtures.py --torch PYTHON             # writes tests/fixtures/parity
uv run python scripts/parity_fixtures.py --torch PYTHON --compare   # writes nothing: the table of docs/models.md

`PYTHON` has torch and transformers; without it, the one that the tests use is taken. The models are those of
`tests/support/fixed_configs.py`. For each, NAME.json holds config.json and the shapes of the tensors, whose values
`tests/support/parity_rule.py` derives from a seed and their names; NAME.npz holds tokens, logits, the loss, a decoder's
greedy answer, and for the gradient of each tensor, in the order of the shapes, its norm and its products with two
directions.
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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

ROOT = Path(__file__).parent.parent
if TYPE_CHECKING:
    from tests.support.parity import Found
    from tests.support.reference import Reference

SEED, SIZE = 0, (2, 20)
#: The same of models with an encoder, of which a row is padded at either end.
SIZE_OF_ENCODERS = (3, 20)
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


class Made(NamedTuple):
    """A model of the reference."""

    name: str
    options: str
    """What it has of its family, in words."""
    directory: Path
    asked: dict[str, int]
    found: Found
    """What the reference was given, and what it makes of that."""


def made(reference: Reference) -> Iterator[Made]:
    from fixed_configs import ENCODER_DECODERS, ENCODERS, FIXED, OPTIONS
    from parity import ASKED, ASKED_OF_ENCODERS

    decoders = {name: fixed.config for name, fixed in FIXED.items()}
    options = {name: fixed.options for name, fixed in FIXED.items()} | OPTIONS
    for configs, make, size, asked in (
        (decoders, reference.make, SIZE, ASKED),
        (ENCODERS, reference.make_encoder, SIZE_OF_ENCODERS, ASKED_OF_ENCODERS),
        (ENCODER_DECODERS, reference.make_encoder_decoder, SIZE_OF_ENCODERS, ASKED_OF_ENCODERS),
    ):
        for name, config in configs.items():
            with tempfile.TemporaryDirectory() as place:
                found = make(Path(place), config, seed=SEED, size=size, **asked)
                yield Made(name, options[name], Path(place), asked, found)


def write(reference: Reference, out: Path, versions: dict[str, str]) -> None:
    from parity import GIVEN, GRADIENT
    from parity_rule import along

    from trainkit.hub.config import family_of
    from trainkit.hub.safetensors import open_directory

    out.mkdir(parents=True, exist_ok=True)
    for old in [*out.glob("*.json"), *out.glob("*.npz")]:
        old.unlink()
    total = 0
    for name, options, directory, asked, found in made(reference):
        config = json.loads((directory / "config.json").read_text())
        shapes = {tensor: list(place.shape) for tensor, place in sorted(open_directory(directory).items())}
        gradients = [along(SEED, tensor, found[GRADIENT + tensor]) for tensor in shapes]
        said = {"versions": versions, "seed": SEED, "asked": asked, "config": config, "tensors": shapes}
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in said.items())
        kept = {which: found[which] for which in (*GIVEN, *AS_IT_IS) if which in found} | {"gradients": gradients}
        files = out / f"{name}.json", out / f"{name}.npz"
        files[0].write_text(f"{{\n{lines}\n}}\n")
        np.savez_compressed(files[1], **kept)
        total += (size := sum(file.stat().st_size for file in files))
        family = family_of(config, where=name).type
        print(f"{name}: {family}, {options}; {size:,} bytes", flush=True)
    print(f"{total:,} bytes in {out}")


def compare(reference: Reference) -> None:
    from parity import GRADIENT, differences, ours_of

    print("| | what is in it | logits | gradients | greedy answers |\n|---|---|---|---|---|")
    for name, options, directory, asked, expected in made(reference):
        found = ours_of(directory, expected, asked)
        apart = differences(found, {which: numbers for which, numbers in expected.items() if which in found})
        gradients = max(much for which, much in apart.items() if which.startswith(GRADIENT))
        logits = max(much for which, much in apart.items() if not which.startswith(GRADIENT))
        same = "" if "greedy" not in found else "the same" if alike(found, expected) else "not the same"
        print(f"| `{name}` | {options} | {logits:.1e} | {gradients:.1e} | {same} |", flush=True)


def alike(found: Found, expected: Found) -> bool:
    return bool((found["greedy"] == expected["greedy"]).all())


if __name__ == "__main__":
    main()
