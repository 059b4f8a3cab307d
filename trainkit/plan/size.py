"""Whether a recipe is far too large for this machine: before anything is allocated, tokenised or compiled."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from trainkit.errors import TrainkitError
from trainkit.plan.plan import Plan
from trainkit.recipe import Recipe
from trainkit.recipe.families.transformer import Transformer
from trainkit.text import format_bytes, format_count

#: How many times the memory of the machine a refused recipe needs: one for a cluster can be checked on a laptop, but is
#: not trained there.
BEYOND, BEYOND_RUN = 1000, 10
#: Bytes that are certainly less than that.
LARGE = 1e11
#: Bytes of a device whose memory is unknown: more than any has.
LARGEST_DEVICE = 1e13
#: Bytes of a parameter or of an activation, and of the token and the target at a position.
NUMBER, POSITION = 4, 8


def check_size(recipe: Recipe, *, vocab_size: int, memory: Callable[[], int | None], beyond: float = BEYOND) -> None:
    """Raise TrainkitError if parameters, a sequence or a batch need `beyond` times the memory of this machine.

    Args:
        vocab_size: entries of the tokenizer, as far as they are known.
        memory: returns the bytes of memory of this machine; it is called only for what no machine holds.
    """
    for key, what, size in _sizes(recipe, vocab_size):
        if size > LARGE and (own := memory()) is not None and size > beyond * own:
            raise TrainkitError(
                f"{what} need about {format_bytes(size)}; this machine has {format_bytes(own)} of memory",
                where=key,
                hint="make the model, the sequences or the batch smaller: trainkit plan shows what each of them needs",
            )


def check_estimate(plan: Plan, *, memory: Callable[[], int | None] | None = None) -> None:
    """Raise TrainkitError if a step needs far more memory than a device has. XLA ends the process at some such shapes.

    It is for plans that know what attention keeps: its scores alone may be all of it.

    Args:
        memory: returns the bytes of memory of this machine, for a plan that does not know its devices; it is called
            only for what no machine holds.
    """
    own, needed = plan.devices.memory_bytes, plan.total_bytes
    if memory and needed > LARGE:
        own = memory()
    if needed > BEYOND * (own or LARGEST_DEVICE):
        owner = "this machine" if memory else "it"
        has = f"{owner} has {format_bytes(own)}" if own else "no device has so much"
        raise TrainkitError(
            f"a step needs about {format_bytes(needed)} on each device; {has}",
            where="data.sequence_length" if 2 * plan.step_bytes > needed else "model",
            hint="make the model, the sequences or the batch smaller",
        )


def _sizes(recipe: Recipe, vocab_size: int) -> Iterator[tuple[str, str, int]]:
    """Yield what takes memory: the key that decides about it, its name, and its bytes in the whole machine."""
    length, model = recipe.data.positions, recipe.model
    rows = getattr(model, "vocab_size", None) or vocab_size
    shapes = model.leaf_shapes(vocab_size=rows, sequence_length=length)
    parameters = sum(map(math.prod, shapes.values()))
    if isinstance(model, Transformer):
        what = f"the activations of one layer for a sequence of {length:,} tokens"
        yield "data.sequence_length", what, NUMBER * length * model.hidden
    batch = max(recipe.batch_sizes.values)
    yield "train.batch_size", f"batches of {batch:,} sequences of {length:,} tokens", POSITION * batch * length
    yield "model", f"{format_count(parameters)} parameters", NUMBER * parameters
