"""Settings for generation: what a person gives, else what the model's files say, else defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from trainkit.errors import TrainkitError
from trainkit.hub.generation import Generation
from trainkit.infer.sampling import Sampling

#: What a token is drawn with where nobody says anything else.
OURS = Sampling(temperature=0.8)
_SAMPLING = tuple(field.name for field in fields(Sampling))
#: Of which any means that tokens are drawn.
_DRAWING = {"temperature", "top_k", "top_p", "min_p"}


@dataclass(frozen=True)
class GenerationSettings:
    """How texts go on."""

    sampling: Sampling
    max_tokens: int
    notes: tuple[str, ...]
    """A line of what was taken from the model's generation config, and one of what in it is not done."""


def settle(typed: Mapping[str, Any], config: Generation | None, *, max_tokens: int) -> GenerationSettings:
    """The settings, by our names; `typed` holds those that a person gave (`top_k`: 0 for none), `max_tokens` is ours.

    A config that does not say `do_sample = true` means the likeliest token, unless something is typed by which one is
    drawn.

    Raises:
        TrainkitError: a value is out of its range.
    """
    ours = {**vars(OURS), "max_tokens": max_tokens}
    typed = {**typed, "top_k": None} if typed.get("top_k") == 0 else typed
    if config is None:
        return _settings({**ours, **typed})
    theirs = {name: value for name, value in config.values.items() if name not in typed}
    greedy = config.greedy and not _DRAWING & typed.keys()
    if greedy:
        theirs = {"temperature": 0.0} | {name: value for name, value in theirs.items() if name not in _DRAWING}
    try:
        _settings({**ours, **theirs})
    except TrainkitError as error:
        hint = "correct it there, or type what is to count instead"
        raise TrainkitError(error.problem, where=str(config.path), hint=hint) from None
    news = [f"{name.replace('_', '-')} {value}" for name, value in theirs.items() if value != ours[name]]
    if greedy and config.silent:
        news[0] += " (it has no do_sample)"
    notes = [f"as {config.path} says: {', '.join(news)}"] if news else []
    if config.unknown:
        notes.append(f"{config.path} asks for what is not done here: {', '.join(config.unknown)}")
    return _settings({**ours, **theirs, **typed}, tuple(notes))


def _settings(values: Mapping[str, Any], notes: tuple[str, ...] = ()) -> GenerationSettings:
    if values["max_tokens"] < 1:
        raise TrainkitError(f"max_tokens must be at least 1, found {values['max_tokens']}")
    return GenerationSettings(Sampling(**{name: values[name] for name in _SAMPLING}), values["max_tokens"], notes)
