"""How a task of lm-eval wants its texts generated: the `generation_kwargs` of its YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainkit.errors import TrainkitError
from trainkit.infer.beam_search import GREEDY, BeamSearch
from trainkit.infer.sampling import Sampling

#: The keys for the number of tokens that are generated at most, the first one before the others, and the number where a
#: task has none: those of lm-eval's model for transformers.
_MOST_TOKENS, _USUAL_MOST = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"), 256
#: The keys of drawing tokens, with the types of their values.
_SAMPLING: Mapping[str, type] = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repetition_penalty": float,
}
#: As in transformers, tokens are drawn from so many where a task does not say from how many.
_USUAL_TOP_K = 50
#: The keys of a beam search, with the types of their values.
_SEARCH: Mapping[str, type] = {"num_beams": int, "length_penalty": float, "early_stopping": bool}


@dataclass(frozen=True)
class HarnessGeneration:
    """How the text of a request is generated."""

    max_tokens: int
    sampling: Sampling
    search: BeamSearch
    stop: tuple[str, ...]


def read_generation_kwargs(
    kwargs: Mapping[str, Any], *, where: str, search: BeamSearch | None = None
) -> HarnessGeneration:
    """Return how texts are generated.

    Args:
        kwargs: the task's `generation_kwargs`.
        where: the place that errors name.
        search: how the model searches where the task does not say it; None if the model cannot search with beams.

    Raises:
        TrainkitError: a key is unknown, or a value is of another type or out of its range.
    """
    left = {key: value for key, value in kwargs.items() if value is not None}
    until = left.pop("until", ())
    stop = (until,) if isinstance(until, str) else tuple(until)
    most = [_value(key, left.pop(key), int, where) for key in _MOST_TOKENS if key in left]
    samples = _value("do_sample", left.pop("do_sample"), bool, where) if "do_sample" in left else None
    drawing = {key: _value(key, left.pop(key), kind, where) for key, kind in _SAMPLING.items() if key in left}
    searching = {key: _value(key, left.pop(key), kind, where) for key, kind in _SEARCH.items() if key in left}
    if search is None and searching.get("num_beams", 1) == 1:
        searching = {}  # one beam is no search
    if unknown := [*left, *(searching if search is None else ())]:
        known = ["until", "do_sample", *_SAMPLING, *(() if search is None else _SEARCH), *_MOST_TOKENS]
        raise TrainkitError(
            f"generation_kwargs has {' and '.join(sorted(unknown))}, which trainkit does not support",
            where=where,
            hint=f"supported are {', '.join(known)}",
        )
    try:
        sampling = _sampling(samples, drawing)
        found = _search(search or GREEDY, searching, draws=sampling.temperature > 0)
        return HarnessGeneration(most[0] if most else _USUAL_MOST, sampling, found, tuple(filter(None, stop)))
    except TrainkitError as error:
        raise TrainkitError(f"generation_kwargs: {error.problem}", where=where) from None


def _value(key: str, value: Any, kind: type, where: str) -> Any:
    """Return a value as what it must be. Raises TrainkitError if it is something else."""
    fits = isinstance(value, bool) if kind is bool else not isinstance(value, bool) and isinstance(value, (int, kind))
    if not fits:
        must = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
        raise TrainkitError(f"generation_kwargs: {key} must be {must}, found {value!r}", where=where)
    return value


def _sampling(samples: bool | None, values: Mapping[str, Any]) -> Sampling:
    """Return how a token is drawn: as in lm-eval, with a temperature above 0 or where `do_sample` asks for it."""
    temperature = float(values.get("temperature", 0.0))
    if samples is False:
        temperature = 0.0
    elif samples and not temperature:
        temperature = 1.0
    top_k = values.get("top_k", _USUAL_TOP_K) if temperature else None
    kept = {key: values[key] for key in ("top_p", "min_p", "repetition_penalty") if key in values}
    return Sampling(temperature=temperature, top_k=top_k or None, **kept)  # 0 means all tokens


def _search(usual: BeamSearch, values: Mapping[str, Any], *, draws: bool) -> BeamSearch:
    beams = values.get("num_beams", 1 if draws else usual.beams)
    if draws and beams > 1:
        raise TrainkitError(f"num_beams must be 1 where tokens are drawn, found {beams}")
    return BeamSearch(
        beams,
        values.get("length_penalty", usual.length_penalty),
        values.get("early_stopping", usual.early_stopping),
        usual.rules,
    )
