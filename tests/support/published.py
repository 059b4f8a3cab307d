"""Checkpoints of the hub that recipes begin with, by what is kept here of them."""

from __future__ import annotations

import json
from typing import NamedTuple

from places import ROOT

from trainkit.hub.config import family_of, spec_values
from trainkit.recipe.toml.pretrained import PretrainedCheckpoint

CONFIGS = ROOT / "tests" / "fixtures" / "configs"


class Published(NamedTuple):
    """What is kept here of a checkpoint or a tokenizer on the hub."""

    config: str
    """The published configuration of the same family."""
    tokenizer: str
    """The family whose tokenizer is alike."""


CHECKPOINTS = {
    "facebook/bart-base": Published("bart-base", "wordpiece"),
    "google-bert/bert-base-cased": Published("bert-base-uncased", "wordpiece"),
    "meta-llama/Llama-3.2-1B": Published("llama-3.2-1b", "llama-3"),
    "HuggingFaceTB/SmolLM2-135M-Instruct": Published("smollm2-135m-instruct", "qwen"),
    "openai-community/gpt2": Published("gpt2", "gpt2"),
}


def look_up(name: str, revision: str | None) -> PretrainedCheckpoint:
    """Return what the configuration of a checkpoint on the hub gives, from the files that are kept here."""
    config = json.loads((CONFIGS / f"{CHECKPOINTS[name].config}.json").read_text())
    family = family_of(config, where=name)
    values = spec_values(config, family, where=name)
    return PretrainedCheckpoint(
        values=values, pretrained=name, revision=None, config=name, changeable=family.spec.changeable
    )
