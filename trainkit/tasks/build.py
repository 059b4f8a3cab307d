"""Builds a task from its spec, and checks that its tokenizer fits."""

from __future__ import annotations

from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.task_spec import TaskSpec
from trainkit.recipe.spec import implementation_of
from trainkit.tasks.task import Task


def build(spec: TaskSpec, tokenizer: LoadedTokenizer | None = None) -> Task:
    """Return the task of a recipe. Without a tokenizer it has the right shapes and must not be trained with."""
    task: Task = implementation_of(spec).build(spec, tokenizer)
    return task


def check_tokenizer(spec: TaskSpec, tokenizer: LoadedTokenizer) -> None:
    """Raise TrainkitError if the task needs a token that the tokenizer lacks."""
    if spec.masks and tokenizer.mask is None:
        raise TrainkitError(
            f"the task {spec.type} needs a mask token, and the tokenizer has none",
            where=str(tokenizer.path),
            hint='name it in a tokenizer_config.json beside it, {"mask_token": "…"}, or use a tokenizer that has one',
        )
    if spec.needs_words and tokenizer.continuations is None:
        raise TrainkitError(
            "the task chooses whole words, and the tokens do not say where words begin",
            where=str(tokenizer.path),
            hint='use a tokenizer that marks them with ##, Ġ or ▁, or choose spans: [task] unit = "span"',
        )
