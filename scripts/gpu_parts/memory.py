"""Planned and real memory, the largest model that fits, and QLoRA, by scripts/bench/fit.py on recipes."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from gpu_parts.place import BENCH, Place, Row, table_rows

RECIPE = """
schema = 1
[model]
type = "{family}"
layers = {layers}
hidden = {hidden}
heads = {heads}
{more}
[tokenizer]
train = {{ vocab_size = 4096 }}
[data]
sequence_length = {length}
[[data.train]]
type = "python-stdlib"
[train]
steps = 100
batch_size = {batch}
[optimizer]
learning_rate = 1e-4
{moments}
[precision]
params = "{params}"
{adapter}
"""
LLAMA = {"family": "llama", "params": "bfloat16", "moments": 'moments = "int8"', "adapter": "", "batch": 8}
SHAPES = {
    "GPT-2 124M x 1,024": {"layers": 12, "hidden": 768, "heads": 12, "length": 1024, "batch": 64},
    "GPT-2 350M x 1,024": {"layers": 24, "hidden": 1024, "heads": 16, "length": 1024, "batch": 32},
    "GPT-2 1.5B x 1,024": {"layers": 48, "hidden": 1600, "heads": 25, "length": 1024, "batch": 16},
}
GPT = {"family": "gpt2", "params": "float32", "moments": "", "adapter": "", "more": ""}
#: Layers, hidden, width of the MLP; from the largest, in bfloat16 with moments in 8 bit: the first that trains is the
#: largest that fits.
LLAMAS = {
    "30B": (60, 6656, 17_920),
    "20B": (48, 6144, 16_384),
    "13B": (40, 5120, 13_824),
    "8B": (32, 4096, 14_336),
    "3B": (28, 3072, 8192),
}


def llama(name: str) -> dict[str, object]:
    """Return the values of `RECIPE` for one of `LLAMAS`."""
    layers, hidden, inner = LLAMAS[name]
    more = f"kv_heads = 8\nintermediate = {inner}\ntied = false"
    return {**LLAMA, "layers": layers, "hidden": hidden, "heads": hidden // 128, "more": more, "length": 2048}


QLORA = {**llama("8B"), "moments": "", "batch": 1, "adapter": '[adapter]\nrank = 16\nbase = "nf4"'}
TINY = {"layers": 1, "hidden": 64, "heads": 2, "length": 32, "batch": 2, "more": ""}
SMALL_LLAMA = {**TINY, "more": "kv_heads = 1\nintermediate = 64\ntied = false"}
#: The share by which a planned peak may be off, and the most that QLoRA may take.
CLOSE, QLORA_MB = 0.10, 9000


def measure_memory(place: Place) -> Iterator[Row]:
    """Yield the planned and the real peak of several models, and the largest that fits."""
    for name, shape in SHAPES.items():
        yield _fit(place, name, {**GPT, **(TINY if place.small else shape)}, vocab=50_304)
        if place.small:
            break
    for name in LLAMAS:
        row = _fit(
            place, f"Llama {name} x 2,048", {**llama(name), **(SMALL_LLAMA if place.small else {})}, vocab=128_256
        )
        fits = row.wanted != "a result"
        what = f"largest that fits: {row.what}" if fits else f"does not fit: {row.what}"
        # every small one fits
        yield row._replace(what=what, good=False if place.small and not fits else None)
        if fits:
            return


def measure_qlora(place: Place) -> Iterator[Row]:
    """Yield memory and time of QLoRA of an 8B model with random weights."""
    shape = {**QLORA, **SMALL_LLAMA, "batch": 1} if place.small else QLORA
    row = _fit(place, "QLoRA of Llama 8B, 1 x 2,048", shape, vocab=128_256)
    found = {key: value for key, _, value in (part.partition(" = ") for part in row.found.split("; "))}
    measured = float(found.get("measured MB", "inf"))
    yield row._replace(wanted=f"at most {QLORA_MB} MB", good=None if place.small else measured <= QLORA_MB)


def _fit(place: Place, name: str, shape: dict[str, object], *, vocab: int) -> Row:
    recipe = place.directory / "fit.toml"
    recipe.write_text(RECIPE.format(**shape), "utf-8")
    vocab = 300 if place.small else vocab
    done = place.call([sys.executable, str(BENCH / "fit.py"), "--recipe", str(recipe), "--vocab", str(vocab)])
    cells = next(table_rows(done.output), None)
    if cells is None or done.code != 0:
        return Row(name, done.last_line, "a result", False)
    cells.pop("shape")
    ratio = float(cells["predicted / measured"])
    # what a process holds on a CPU is not only what was planned
    good = None if place.small else abs(ratio - 1) <= CLOSE
    return Row(name, "; ".join(f"{key} = {value}" for key, value in cells.items()), f"within {CLOSE:.0%}", good)
