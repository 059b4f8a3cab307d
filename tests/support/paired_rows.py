"""Pairs of answers, judged answers and pairs of texts: recipes and rows of tests that train on them, and sums of losses
over parts of a batch and over devices."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from trainer import WORDS

from trainkit.parallel import mesh
from trainkit.tasks import Task

#: A decoder with its tokenizer.
DECODER = """\
type = "gpt2"
layers = 1
hidden = 32
heads = 2
[tokenizer]
train = { vocab_size = 300 }"""


def recipe_text(
    *,
    task: str,
    document: str,
    steps: int,
    rate: float,
    model: str = DECODER,
    length: int = 32,
    held_out: float = 0.15,
    encoding: str = 'type = "pad"',
    train: str = "batch_size = 8",
    more: str = "",
) -> str:
    """Return a recipe of the run `tiny` on `rows.jsonl`, which is evaluated in the middle and at the end."""
    return f"""
schema = 1
[run]
name = "tiny"
[model]
{model}
[task]
{task}
[data]
sequence_length = {length}
held_out = {held_out}
encoding = {{ {encoding} }}
[[data.train]]
path = "rows.jsonl"
document = {{ {document} }}
[train]
steps = {steps}
{train}
[optimizer]
learning_rate = {rate}
[evaluate]
every = {steps // 2}
[track]
aim = false
{more}
"""


def answer_pairs(count: int) -> Iterator[dict[str, Any]]:
    """Yield prompts, each with a chosen answer that says yes and a rejected one that says no."""
    chance = random.Random(0)
    for _ in range(count):
        answers = {name: _repeated(word, chance) for name, word in (("chosen", "yes"), ("rejected", "no"))}
        yield {"prompt": _prompt(chance), **answers}


def judged_answers(count: int) -> Iterator[dict[str, Any]]:
    """Yield prompts, each with an answer: yes, which is good, or no, which is bad."""
    chance = random.Random(0)
    for _ in range(count):
        good = chance.random() < 0.5
        yield {"prompt": _prompt(chance), "completion": _repeated("yes" if good else "no", chance), "label": good}


def _prompt(chance: random.Random) -> str:
    return " ".join(chance.choices(WORDS, k=chance.randrange(1, 6)))


def _repeated(word: str, chance: random.Random) -> str:
    return " ".join([word] * chance.randrange(1, 6))


def with_baselines(task: Task, model: Any, batch: dict[str, jax.Array]) -> dict[str, Any]:
    """Return a batch with what the task measures of all of it before it computes a loss."""
    return {**batch, **eqx.filter_jit(task.measure_baselines)(model, batch)}


def mean_and_gradient(task: Task, model: Any, batch: dict[str, jax.Array]) -> tuple[Any, Any, Any]:
    """Return the mean loss of a batch, its metrics and the gradient of the mean."""
    batch = with_baselines(task, model, batch)

    def mean(model):
        found = task.loss(model, batch)
        return found.sum / found.weight, found.metrics

    (value, metrics), gradient = eqx.filter_jit(eqx.filter_value_and_grad(mean, has_aux=True))(model)
    return value, metrics, gradient


def sums(task: Task, model: Any, batch: dict[str, jax.Array], *, devices: int = 1) -> Any:
    """Return the `Loss` of a batch that lies on so many devices, and the gradient of its sum."""
    on = mesh.make_mesh(data=devices, fsdp=1)
    with jax.set_mesh(on):
        lying = {name: jax.device_put(array[None], mesh.batch_sharding(on)) for name, array in batch.items()}
        rows = with_baselines(task, model, {name: array[0] for name, array in lying.items()})

        def total(model):
            found = task.loss(model, rows)
            return found.sum, found

        (_, found), gradient = eqx.filter_jit(eqx.filter_value_and_grad(total, has_aux=True))(model)
        return jax.device_get((found, gradient))


def padded(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return a batch with two rows of padding after its own."""
    return {name: jnp.concatenate([a, jnp.zeros((2, *a.shape[1:]), a.dtype)]) for name, a in batch.items()}


def halves(batch: dict[str, jax.Array]) -> list[dict[str, jax.Array]]:
    """Return the first and the second half of a batch."""
    middle = len(next(iter(batch.values()))) // 2
    return [{name: array[part] for name, array in batch.items()} for part in (slice(middle), slice(middle, None))]
