"""Settings for generation: those that a person gives, else those in the model's files, else defaults."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from trainkit.data.hub_files import read_object
from trainkit.errors import TrainkitError
from trainkit.hub.tokenizer import GENERATION, IDS_ONLY
from trainkit.infer.beam_search import BeamSearch
from trainkit.infer.sampling import Sampling
from trainkit.infer.target_rules import NO_RULES, TargetRules

#: Their key → ours, the type of its number, and the values that switch it off.
_KEYS: Mapping[str, tuple[str, type, tuple[float, ...]]] = {
    "temperature": ("temperature", float, ()),
    "top_k": ("top_k", int, (0, -1)),
    "top_p": ("top_p", float, (1.0,)),
    "min_p": ("min_p", float, (0.0,)),
    "repetition_penalty": ("repetition_penalty", float, ()),
    "max_new_tokens": ("max_tokens", int, ()),
}
#: Keys that change no text here: tokens that are read elsewhere, settings of memory and of the output, settings that
#: matter only with beams, and the length of a text with its prompt, which is the model's context.
_HARMLESS = frozenset(
    """
    bos_token_id eos_token_id pad_token_id decoder_start_token_id transformers_version _from_model_config
    trust_remote_code use_cache cache_implementation cache_config return_legacy_cache return_dict_in_generate
    output_attentions output_hidden_states output_scores output_logits num_return_sequences prefill_chunk_size
    compile_config disable_compile low_memory early_stopping length_penalty num_beam_groups diversity_penalty max_length
    """.split()  # noqa: SIM905
)
#: The values that transformers uses if a file asks for sampling without giving them.
_DRAWN = {"temperature": 1.0, "top_k": 50}
#: The keys of a file that a beam search uses, with their types and defaults.
_SEARCH: Mapping[str, tuple[tuple[type, ...], Any]] = {
    "length_penalty": ((int, float), 1.0),
    "early_stopping": ((bool,), False),
}
#: Values of other keys that have no effect, besides false, 0 and empty ones.
_OFF: Mapping[str, float] = {"num_beams": 1, "typical_p": 1, "encoder_repetition_penalty": 1, "guidance_scale": 1}


#: Where older checkpoints have settings for generation.
_CONFIG = "config.json"
#: Rules for the tokens of targets.
_RULES = frozenset(
    {"forced_bos_token_id", "forced_eos_token_id", "no_repeat_ngram_size", "min_length", "min_new_tokens"}
)


@dataclass(frozen=True)
class Generation:
    """The contents of a generation_config.json."""

    path: Path
    values: Mapping[str, Any]
    """By our names; None where it switches something off."""
    greedy: bool
    """Whether the likeliest token is taken: as in transformers, wherever `do_sample` is not true."""
    silent: bool
    """Whether it says nothing of `do_sample`."""
    unknown: tuple[str, ...]
    """What it asks for and is not done, each as `key = value`."""
    rules: TargetRules
    """Which tokens a target must or must not have."""
    search: Mapping[str, Any]
    """What it says of a search with beams, by its names."""
    applied: tuple[str, ...] = ()
    """What it says of rules, where these are applied."""

    def of_searcher(self) -> Generation:
        """Return the same for a model that can search with beams, but only where a person asks for it."""
        applied = tuple(one for one in self.unknown if one.partition(" ")[0] in _RULES and one[-1].isdigit())
        rest = (one for one in self.unknown if one not in applied)
        unknown = (f"{one} (without --beams)" if one.startswith("num_beams ") else one for one in rest)
        return replace(self, unknown=tuple(unknown), applied=applied)

    @property
    def applied_rules(self) -> TargetRules:
        """The rules, where a model that writes targets applies them."""
        return self.rules if self.applied else NO_RULES


def generation(directories: Iterable[Path]) -> Generation | None:
    """Return the generation_config.json of the first of these directories that has one; None if none has.

    Raises:
        TrainkitError: it cannot be read, or a value that must be a number is not.
    """
    directories = list(directories)
    path = next((directory / GENERATION for directory in directories if (directory / GENERATION).is_file()), None)
    if path is not None:
        config = {key: value for key, value in read_object(path).items() if value is not None}
    else:
        found = ((directory / _CONFIG, settings_in_config(directory)) for directory in directories)
        path, config = next(((path, said) for path, said in found if said), (None, {}))
    if path is None:
        return None
    if config.pop(IDS_ONLY, False):
        return None
    sampled = config.pop("do_sample", None)
    if not isinstance(sampled, bool | None):
        raise TrainkitError(f"do_sample = {json.dumps(sampled)}: it must be true or false", where=str(path))
    values: dict[str, Any] = dict(_DRAWN) if sampled else {}
    for theirs, (ours, kind, off) in _KEYS.items():
        if theirs in config:
            value = config[theirs]
            if isinstance(value, bool) or not isinstance(value, (int, kind)):
                must = "a whole number" if kind is int else "a number"
                raise TrainkitError(f"{theirs} = {json.dumps(value)}: it must be {must}", where=str(path))
            values[ours] = None if value in off else value
    others = {key: value for key, value in config.items() if key not in _KEYS and key not in _HARMLESS}
    # an id may be 0
    asked = {key: value for key, value in others.items() if value or (key.endswith("token_id") and value == 0)}
    unknown = [f"{key} = {json.dumps(value)}" for key, value in asked.items() if value != _OFF.get(key)]
    search = {key: config[key] for key in _SEARCH if key in config}
    return Generation(path, values, not sampled, sampled is None, tuple(unknown), _rules(config), search)


def settings_in_config(directory: Path) -> dict[str, Any]:
    """Return the settings for generation in the config.json of an encoder-decoder, where older checkpoints have them;
    none where there are none."""
    config = read_object(directory / _CONFIG, missing_ok=True)
    known = {*_KEYS, *_RULES, *_SEARCH, "do_sample", "num_beams"} if config.get("is_encoder_decoder") else ()
    return {key: config[key] for key in known if config.get(key) is not None}


def rules_beside(directory: Path) -> TargetRules:
    """Return the rules in the generation_config.json of a directory; none where it has none."""
    return _rules(read_object(directory / GENERATION, missing_ok=True))


def _rules(config: Mapping[str, Any]) -> TargetRules:
    """Return the rules of a config, as far as its values are whole numbers."""
    said = {key: config[key] for key in _RULES if type(config.get(key)) is int}
    return TargetRules(
        first=said.get("forced_bos_token_id"),
        last=said.get("forced_eos_token_id"),
        no_repeat=max(0, said.get("no_repeat_ngram_size", 0)),
        # the token before the target counts in min_length
        least=max(0, said.get("min_length", 0) - 1, said.get("min_new_tokens", 0)),
    )


#: Defaults.
OURS = Sampling(temperature=0.8)
_SAMPLING = tuple(field.name for field in fields(Sampling))
#: Options that imply drawing tokens.
_DRAWING = {"temperature", "top_k", "top_p", "min_p"}


@dataclass(frozen=True)
class GenerationSettings:
    """The settings of a generation."""

    sampling: Sampling
    max_tokens: int
    notes: tuple[str, ...]
    """A line on what was taken from the model's generation config, and one on what of it is not supported."""
    rules: TargetRules = NO_RULES
    """For the tokens of targets."""


def settle(typed: Mapping[str, Any], config: Generation | None, *, max_tokens: int) -> GenerationSettings:
    """Return the settings. `typed` holds those that a person gave (`top_k`: 0 for none); `max_tokens` is the default.

    A config without `do_sample = true` means the likeliest token, unless an option for drawing tokens is typed.

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
        hint = "correct it there, or override it with an option"
        raise TrainkitError(error.problem, where=str(config.path), hint=hint) from None
    news = [f"{name.replace('_', '-')} {value}" for name, value in theirs.items() if value != ours[name]]
    if greedy and config.silent:
        news[0] += " (it has no do_sample)"
    news += config.applied
    notes = [f"as {config.path} says: {', '.join(news)}"] if news else []
    if config.unknown:
        notes.append(f"{config.path} asks for what is not done here: {', '.join(config.unknown)}")
    return _settings({**ours, **theirs, **typed}, tuple(notes), config.applied_rules)


def settle_search(
    typed: Mapping[str, Any], config: Generation | None, *, beams: int, max_tokens: int
) -> tuple[GenerationSettings, BeamSearch]:
    """Return the settings of a generation with beam search, which draws no token, and of the search.

    Args:
        typed: the values of `length_penalty` and `max_tokens` that a person gave.
        max_tokens: the default.

    Raises:
        TrainkitError: a value is out of its range.
    """
    ours = {**{key: usual for key, (_, usual) in _SEARCH.items()}, "max_tokens": max_tokens}
    theirs: dict[str, Any] = {}
    notes: list[str] = []
    if config is not None:
        said = {**config.search, **config.values}
        fits = {key: type(said[key]) in kinds for key, (kinds, _) in _SEARCH.items() if key in said}
        theirs = {key: said[key] for key in ours if key in said and key not in typed and fits.get(key, True)}
        news = [f"{key.replace('_', '-')} {value}" for key, value in theirs.items() if value != ours[key]]
        news += config.applied
        notes += [f"as {config.path} says: {', '.join(news)}"] if news else []
        # the number of beams is typed; settings that change the choice of a token are not supported with beams
        undone: dict[str, Any] = {} if config.greedy else {"do_sample": True}
        undone |= {key: said[key] for key, fit in fits.items() if not fit and key not in typed}
        undone |= {key: said[key] for key in ("repetition_penalty",) if said.get(key, 1) != 1}
        unknown = [one for one in config.unknown if not one.startswith("num_beams ")]
        unknown += [f"{key} = {json.dumps(value)}" for key, value in undone.items()]
        notes += [f"{config.path} asks for what is not done here: {', '.join(unknown)}"] if unknown else []
    values = {**ours, **theirs, **typed}
    rules = NO_RULES if config is None else config.applied_rules
    settings = _settings({**vars(OURS), "temperature": 0.0, "max_tokens": values["max_tokens"]}, tuple(notes), rules)
    return settings, BeamSearch(beams, values["length_penalty"], values["early_stopping"], rules)


def _settings(
    values: Mapping[str, Any], notes: tuple[str, ...] = (), rules: TargetRules = NO_RULES
) -> GenerationSettings:
    if values["max_tokens"] < 1:
        raise TrainkitError(f"max_tokens must be at least 1, found {values['max_tokens']}")
    sampling = Sampling(**{name: values[name] for name in _SAMPLING})
    return GenerationSettings(sampling, values["max_tokens"], notes, rules)
