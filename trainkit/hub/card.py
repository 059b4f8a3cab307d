"""The model card of an export: what it is, how it was made, how good it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

import trainkit
from trainkit.recipe.sections.adapter import Lora
from trainkit.recipe.toml.load import Loaded
from trainkit.recipe.toml.values import dumps
from trainkit.redaction import redact
from trainkit.text import neutralise

#: The beginning of a URL of a local file, which names no host.
NO_HOST = ":///"


@dataclass(frozen=True, kw_only=True)
class Made:
    """How an exported model was made."""

    name: str
    step: int
    recipe: str
    """TOML, as `shareable_recipe` returns it."""
    base: str | None
    """What it began with, where that is on the hub: a card links to it."""
    evaluations: Mapping[str, Mapping[str, float]]
    """The last ones, by the name of their set."""
    commands: Sequence[str] = ()
    """The commands that changed what was learned, a line each."""
    weights: str = ""
    """Which weights of that step these are, as a sentence, where there are several."""


def shareable_recipe(loaded: Loaded) -> str:
    """Return a recipe as TOML. Paths are shortened to their last part, so that they reveal nothing of the machine."""

    def show(text: str) -> str:
        return f"…/{PurePath(text).name}" if text.startswith("/") or NO_HOST in text else text

    return dumps(loaded.recipe, loaded.origins, loaded.path, shown=show)


#: kind of model or of head -> the class that loads it, and its task on the hub.
_LOADED_BY = {
    "causal": ("AutoModelForCausalLM", "text-generation"),
    "encoder": ("AutoModelForMaskedLM", "fill-mask"),
    "encoder-decoder": ("AutoModelForSeq2SeqLM", "text2text-generation"),
    "sequence": ("AutoModelForSequenceClassification", "text-classification"),
    "token": ("AutoModelForTokenClassification", "token-classification"),
    "span": ("AutoModelForQuestionAnswering", "question-answering"),
}


def card(made: Made, *, family: str, parameters: int, kind: str = "causal") -> str:
    """Return the README.md of a model in the hub's format.

    Args:
        kind: the kind of the model or, if it has classes, of its head.
    """
    loaded_by, pipeline = _LOADED_BY[kind]
    return _card(
        made,
        pipeline=pipeline,
        library="transformers",
        tags=(),
        what=f"A {family} of {parameters:,} parameters",
        origin=f", which began with `{made.base}`" if made.base else "",
        use=(
            f"from transformers import {loaded_by}, AutoTokenizer",
            "",
            'tokenizer = AutoTokenizer.from_pretrained("PATH")',
            f'model = {loaded_by}.from_pretrained("PATH")',
        ),
    )


def adapter_card(
    made: Made, adapter: Lora, *, family: str, parameters: int, tokenizer: bool, kind: str = "causal"
) -> str:
    """Return the README.md of an exported adapter.

    Args:
        tokenizer: whether its tokenizer is exported with it.
        kind: as in `card`.
    """
    base, (loaded_by, pipeline) = made.base or "BASE", _LOADED_BY[kind]
    packed = adapter.base == "nf4"
    return _card(
        made,
        pipeline=pipeline,
        library="peft",
        tags=("lora",),
        notes=_ON_NF4 if packed else (),
        what=f"An adapter ({adapter.variant}, rank {adapter.rank}) of {parameters:,} parameters for a {family}",
        origin=f": it goes with `{made.base}`" if made.base else "",
        use=(
            "from peft import PeftModel",
            f"from transformers import {loaded_by}, AutoTokenizer{', BitsAndBytesConfig' if packed else ''}",
            "",
            f'tokenizer = AutoTokenizer.from_pretrained("{"PATH" if tokenizer else base}")',
            *(_NF4_CONFIG if packed else ()),
            f'base = {loaded_by}.from_pretrained("{base}"{", quantization_config=nf4" if packed else ""})',
            'model = PeftModel.from_pretrained(base, "PATH")',
        ),
    )


#: The paragraph for an adapter that was trained on a base in 4 bit.
_NF4_CONFIG = (
    'nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)',
)
_ON_NF4 = (
    "It was trained on its base in 4 bit (NF4 with quantised scales), and answers as in training only on that base: on"
    " the unquantised base it answers differently. For a model without quantisation that answers as in training, merge"
    " the adapter into the dequantised base: `trainkit export RUN OUT --format hf`.",
    "",
)


def _card(
    made: Made,
    *,
    library: str,
    tags: Sequence[str],
    what: str,
    origin: str,
    use: Sequence[str],
    notes: Sequence[str] = (),
    pipeline: str = "text-generation",
) -> str:
    front = [f"library_name: {library}", f"pipeline_tag: {pipeline}", "tags:", "- trainkit"]
    front += [f"- {tag}" for tag in tags] + ([f"base_model: {made.base}"] if made.base else [])
    state = f"as it was after step {made.step:,} of its training with trainkit {trainkit.__version__}{origin}."
    state += f" {made.weights}" if made.weights else ""
    recipe = ["## Recipe", "", "```toml", made.recipe.rstrip(), "```"]
    lines = [
        "---",
        *front,
        "---",
        "",
        f"# {made.name}",
        "",
        f"{what}, {state}",
        "",
        *notes,
        "```python",
        *use,
        "```",
        "",
    ]
    text = "\n".join([*lines, *_results(made.evaluations), *recipe, *_commands(made.commands)])
    return redact(neutralise(text, flowing=True)) + "\n"


def _commands(commands: Sequence[str]) -> list[str]:
    if not commands:
        return []
    return ["", "These commands changed the training while it ran:", "", *(f"- {command}" for command in commands)]


def _results(evaluations: Mapping[str, Mapping[str, float]]) -> list[str]:
    if not evaluations:
        return []
    names = list(dict.fromkeys(metric for found in evaluations.values() for metric in found))
    rows = [f"| {' | '.join(['set', *names])} |", f"|{' --- |' * (len(names) + 1)}"]
    for name, found in evaluations.items():
        rows.append(f"| {' | '.join([name, *(f'{found[m]:.4f}' if m in found else '' for m in names)])} |")
    return ["## Evaluation", "", *rows, ""]
