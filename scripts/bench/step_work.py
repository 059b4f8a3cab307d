"""The work that every contender of `step.py` does alike: shape, first weights, batches, update rule; and how a
contender is asked for samples.

Needs numpy alone: the Python that has torch need not have trainkit. Every number derives from a seed and a name, so
that processes which share nothing begin with the same weights and see the same batches.

Shapes: B sequences, T positions, D hidden, L layers, V vocabulary. Matrices are stored (in, out); what every block has
is stacked, with a leading axis of L.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray

#: AdamW with decay of the blocks' matrices alone, gradients clipped to a global norm, at a constant rate.
LEARNING_RATE, BETAS, EPS, WEIGHT_DECAY, MAX_NORM = 3e-4, (0.9, 0.95), 1e-8, 0.1, 1.0
ROPE_THETA, NORM_EPS = 500_000.0, 1e-5


#: By name: dimensions, and the standard deviation of the first values or the one value that all have.
Sizes: TypeAlias = dict[str, tuple[tuple[int, ...], float | Literal["one", "zero"]]]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model and its batch."""

    family: Literal["gpt2", "llama"] = "gpt2"
    vocab: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    length: int
    sequences: int

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.length * self.sequences

    @property
    def parameters(self) -> int:
        return sum(math.prod(size) for size, _ in sizes(self).values())


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one contender is to do. `overrides` change trainkit's recipe; `backend` is that of torch.compile."""

    shape: Shape
    compute: Literal["float32", "bfloat16"]
    platform: Literal["cpu", "gpu"]
    curve: int
    overrides: tuple[str, ...] = ()
    backend: str = "inductor"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Work:
        fields = json.loads(text)
        shape = Shape(**fields.pop("shape"))
        return Work(shape=shape, **fields | {"overrides": tuple(fields["overrides"])})


def sizes(shape: Shape) -> Sizes:
    """Of the weights, under the names that trainkit has for them."""
    return _gpt2(shape) if shape.family == "gpt2" else _llama(shape)


def weights(shape: Shape) -> Iterator[tuple[str, Array]]:
    """The first weights by name, float32, one at a time: the largest models do not fit twice."""
    for name, (size, scale) in sizes(shape).items():
        if isinstance(scale, str):
            yield name, np.full(size, 1.0 if scale == "one" else 0.0, np.float32)
        else:
            random = np.random.default_rng([1, zlib.crc32(name.encode())])
            array = random.standard_normal(size, dtype=np.float32)
            array *= np.float32(scale)
            yield name, array


def batch(shape: Shape, number: int) -> tuple[Array, Array]:
    """Inputs and targets, (B, T) int32. There is something to learn: some tokens are frequent, and after half of them
    comes the one with the next number."""
    random = np.random.default_rng([2, number])
    size = (shape.sequences, shape.length + 1)
    frequent = (shape.vocab ** random.random(size)).astype(np.int64) - 1  # of rank r with a probability of about 1 / r
    places = np.broadcast_to(np.arange(size[1]), size)
    fresh = random.random(size) < 0.5
    fresh[:, 0] = True
    last = np.maximum.accumulate(np.where(fresh, places, 0), axis=1)
    ids = (np.take_along_axis(frequent, last, axis=1) + places - last) % shape.vocab
    return ids[:, :-1].astype(np.int32), ids[:, 1:].astype(np.int32)


class Contender(NamedTuple):
    """One way to do the work, ready to begin."""

    step: Callable[[int], Any]
    """Begin the step on the batch of this number, and return what stands for it."""
    wait: Callable[[Any], None]
    """Until that step is done, and not for those begun after it."""
    loss: Callable[[Any], float]
    peak_bytes: Callable[[], int | None]
    """Of device memory; None where that is the process's own."""
    facts: dict[str, Any]
    """Versions, choices: printed as they are."""


def answer_help() -> None:
    """Print what the script says of itself, and end, where `--help` is its argument."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(sys.modules["__main__"].__doc__)
        sys.exit()


def serve(prepare: Callable[[Work], Contender]) -> None:
    """A contender's process: the work as its argument; JSON lines out, the first when it is warm; for each number of
    steps read, one line with the seconds that a step took."""
    answer_help()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    began = float(os.environ.get("BENCH_STARTED", time.time()))
    work = Work.from_json(sys.argv[1])

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")

    try:
        contender = prepare(work)
        losses, times = [contender.loss(contender.step(0))], []
        first_step = time.time() - began
        for number in range(1, work.curve):
            started = time.perf_counter()
            losses.append(contender.loss(contender.step(number)))
            times.append(time.perf_counter() - started)
        answer(
            facts=contender.facts,
            losses=losses,
            first_step=first_step,
            step=float(np.median(times)),
            peak=_peak(contender),
        )
        for line in sys.stdin:
            answer(step=_sample(contender, int(line), work.curve), peak=_peak(contender))
    except Exception as error:  # told to who waits for an answer, then told in full
        answer(error=f"{type(error).__name__}: {error}"[:1000])
        raise


def _sample(contender: Contender, steps: int, batches: int) -> float:
    """Seconds a step, with one more in flight than is waited for: as a loop that logs does it."""
    began, before = time.perf_counter(), None
    for number in range(steps):
        current = contender.step(number % batches)
        if before is not None:
            contender.wait(before)
        before = current
    contender.wait(before)
    return (time.perf_counter() - began) / steps


def _peak(contender: Contender) -> int:
    measured = contender.peak_bytes()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if measured is None else measured


def _gpt2(shape: Shape) -> Sizes:
    n, d, f = shape.layers, shape.hidden, shape.intermediate
    residual = 0.02 / math.sqrt(2 * n)
    return {
        "token_embedding": ((shape.vocab, d), 0.02),
        "position_embedding": ((shape.length, d), 0.01),
        "blocks.attention_norm.weight": ((n, d), "one"),
        "blocks.attention_norm.bias": ((n, d), "zero"),
        "blocks.attention.qkv.weight": ((n, d, 3 * d), 0.02),
        "blocks.attention.qkv.bias": ((n, 3 * d), "zero"),
        "blocks.attention.output.weight": ((n, d, d), residual),
        "blocks.attention.output.bias": ((n, d), "zero"),
        "blocks.mlp_norm.weight": ((n, d), "one"),
        "blocks.mlp_norm.bias": ((n, d), "zero"),
        "blocks.mlp_in.weight": ((n, d, f), 0.02),
        "blocks.mlp_in.bias": ((n, f), "zero"),
        "blocks.mlp_out.weight": ((n, f, d), residual),
        "blocks.mlp_out.bias": ((n, d), "zero"),
        "final_norm.weight": ((d,), "one"),
        "final_norm.bias": ((d,), "zero"),
    }


def _llama(shape: Shape) -> Sizes:
    n, d, f = shape.layers, shape.hidden, shape.intermediate
    kv = shape.kv_heads * (d // shape.heads)
    residual = 0.02 / math.sqrt(2 * n)
    return {
        "token_embedding": ((shape.vocab, d), 0.02),
        "blocks.attention_norm.weight": ((n, d), "one"),
        "blocks.attention.query.weight": ((n, d, d), 0.02),
        "blocks.attention.key.weight": ((n, d, kv), 0.02),
        "blocks.attention.value.weight": ((n, d, kv), 0.02),
        "blocks.attention.output.weight": ((n, d, d), residual),
        "blocks.mlp_norm.weight": ((n, d), "one"),
        "blocks.mlp.gate.weight": ((n, d, f), 0.02),
        "blocks.mlp.up.weight": ((n, d, f), 0.02),
        "blocks.mlp.down.weight": ((n, f, d), residual),
        "final_norm.weight": ((d,), "one"),
    }
