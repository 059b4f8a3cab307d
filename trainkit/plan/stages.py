"""The stages of a run whose batches change their shape, and the FLOPs of a token in each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainkit.recipe import Recipe
from trainkit.recipe.sections.adapter import adapter_parameters


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Steps with batches of one shape: the updates before it, its sequences, their length, and the FLOPs of a token."""

    begin: int
    batch_size: int
    length: int
    flops_per_token: int


def stages_of(recipe: Recipe, steps: int, flops_of_token: Callable[[int], int]) -> tuple[Stage, ...]:
    """Return the stages of a run of `steps`, in their order; none if all batches have one shape.

    Args:
        flops_of_token: from the length of its sequence.
    """
    sizes, lengths = recipe.batch_sizes, recipe.step_lengths
    begins = sorted({*sizes.begins, *lengths.begins})
    if len(begins) == 1:
        return ()
    return tuple(
        Stage(
            begin=begin,
            batch_size=sizes.at(begin),
            length=(length := lengths.at(begin)),
            flops_per_token=flops_of_token(length),
        )
        for begin in begins
        if begin < steps
    )


def flops_per_token_of(recipe: Recipe, vocab_size: int, length: int) -> int:
    """Return the FLOPs of a token in sequences of this length: see `plan.make_plan`."""
    adapter = adapter_parameters(recipe.adapter, recipe.model) if recipe.adapter else 0
    base, once = recipe.model.matmul_parameters(vocab_size=vocab_size), 2 * recipe.model.matmul_parameters_once()
    attention = recipe.model.attention_flops_per_token(sequence_length=length)
    forward = length * (2 * (base + adapter) + attention) + once
    # the gradient of what enters a product, and that of its weights if they are trained
    backward = length * ((2 if adapter else 4) * base + 4 * adapter + 2 * attention) + 2 * once
    return (forward + round(recipe.task.learned_share * backward)) // length


def flops_of_stages(stages: Sequence[Stage], *, steps: int, tokens: int) -> int:
    """Return the FLOPs of a run of `steps` with so many `tokens`, which its stages divide by their batch sizes."""
    ends = [*(stage.begin for stage in stages[1:]), steps]
    rows = [(end - stage.begin) * stage.batch_size for stage, end in zip(stages, ends, strict=True)]
    flops = sum(count * stage.flops_per_token for count, stage in zip(rows, stages, strict=True))
    return round(flops / sum(rows) * tokens)
