"""Keys of a recipe that have no effect, because of the values of other keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.toml.layers import DEFAULT, SET, Layer
from trainkit.recipe.toml.positions import Key, dotted_key


class Ignored(NamedTuple):
    """Keys that have no effect, and why."""

    keys: tuple[Key, ...]
    causes: tuple[Key, ...]
    """The keys whose values, or absence, make the others useless."""
    why: str
    hint: str


def check_ignored_keys(recipe: Recipe, layer: Layer, *, top: str | None) -> None:
    """Check that every key of a recipe has an effect.

    A key in an extended file is not refused if the recipe that extends it makes it useless, because that recipe could
    not remove it.

    Args:
        top: the file that the recipe was read from; None to check only what `--set` gives, as of a run's own recipe,
            which holds every default.

    Raises:
        TrainkitError: some have none; all of them are reported together.
    """

    def rank(key: Key) -> int:
        """Return how late a key was written: 0 never, 1 in an extended file, 2 in the file itself, 3 with --set."""
        origin = layer.leaf_origin(key)
        return 0 if origin == DEFAULT else 3 if origin == SET else 2 if origin.file == top else 1

    least = 1 if top is not None else 3

    def is_refused(key: Key, case: Ignored) -> bool:
        written = max(map(rank, case.causes)) or 2  # nothing that an extended file could have known
        return rank(key) >= max(least, written)

    found = [(key, case) for case in _ignored_keys(recipe) for key in case.keys if is_refused(key, case)]
    if not found:
        return
    problems = [f"{dotted_key(key)} has no effect: {case.why}" for key, case in found]
    places = [str(layer.origin(key)) for key, _ in found]
    hint = "; or ".join(dict.fromkeys(case.hint for _, case in found))
    more = "".join(f"\n{place}: {problem}" for place, problem in zip(places[1:], problems[1:], strict=True))
    raise TrainkitError(problems[0] + more, where=places[0], hint=hint)


def _ignored_keys(recipe: Recipe) -> Iterator[Ignored]:
    if not recipe.data.validation_names:
        yield Ignored(
            _keys("evaluate", "every", "batch_size", "max_batches"),
            (("data", "validation"), ("data", "held_out")),
            "there is no validation set",
            "leave it out, or add [[data.validation]] or data.held_out",
        )
    if recipe.sample is not None and recipe.sample.temperature == 0:
        yield Ignored(
            _keys("sample", "top_k", "top_p", "min_p"),
            (("sample", "temperature"),),
            "sample.temperature = 0 always takes the likeliest token",
            "leave it out, or give a temperature above 0",
        )
    if recipe.adapter is not None:
        yield Ignored(
            _keys("precision", "rounding"),
            (("adapter",),),
            "an adapter is trained in float32, which needs no rounding",
            "leave it out",
        )
    elif recipe.precision.params == "float32":
        yield Ignored(
            _keys("precision", "rounding"),
            (("precision", "params"),),
            'precision.params = "float32" needs no rounding',
            'leave it out, or write precision.params = "bfloat16"',
        )
    kept, steps = recipe.checkpoint.keep_every, recipe.train.steps
    if isinstance(kept, tuple) and steps is not None and kept and kept[-1] > steps:
        yield Ignored(
            (("checkpoint", "keep_every"),),
            (("train", "steps"),),
            f"the run ends after step {steps:,}, before step {kept[-1]:,}",
            f"leave it out, or list only steps up to {steps:,}",
        )
    groups = recipe.optimizer.groups
    for number in range(len(groups)):
        # a later group may match the same parameters, and its factor is the one that counts
        if all(later.learning_rate_factor == 0 for later in groups[number:]):
            place: Key = ("optimizer", "groups", number)
            yield Ignored(
                ((*place, "weight_decay"),),
                ((*place, "learning_rate_factor"),),
                "learning_rate_factor = 0 freezes the parameters of this group",
                "leave it out, or give a factor above 0",
            )


def _keys(section: str, *names: str) -> tuple[Key, ...]:
    return tuple((section, name) for name in names)
