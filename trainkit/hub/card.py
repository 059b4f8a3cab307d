"""The model card of an export: what it is, how it was made, how good it was."""

from __future__ import annotations

import re
from collections.abc import Mapping

import trainkit

#: An absolute path, and the last part of it.
PATH = re.compile(r"""(?<![\w.:/])/(?:[^\s"'/]+/)*([^\s"'/]+)/?""")


def card(
    *,
    name: str,
    family: str,
    step: int,
    parameters: int,
    recipe: str,
    base: str | None,
    evaluations: Mapping[str, Mapping[str, float]],
) -> str:
    """README.md as the hub reads it; `evaluations` are the last ones, by the name of their set.

    Of paths in the recipe the last part is left: where things lie on this machine is nobody's business.
    """
    front = ["---", "library_name: transformers", "pipeline_tag: text-generation", "tags:", "- trainkit"]
    # a base model is linked to, which a directory of this machine cannot be
    front += [f"base_model: {base}"] if base else []
    lines = [
        *front,
        "---",
        "",
        f"# {name}",
        "",
        f"A {family} of {parameters:,} parameters, as it was after step {step:,} of its training with trainkit"
        f" {trainkit.__version__}" + (f", which began with `{base}`." if base else "."),
        "",
        "```python",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("PATH")',
        'model = AutoModelForCausalLM.from_pretrained("PATH")',
        "```",
        "",
        *_results(evaluations),
        "## Recipe",
        "",
        "```toml",
        PATH.sub(r"…/\1", recipe.rstrip()),
        "```",
    ]
    return "\n".join(lines) + "\n"


def _results(evaluations: Mapping[str, Mapping[str, float]]) -> list[str]:
    if not evaluations:
        return []
    names = list(dict.fromkeys(metric for found in evaluations.values() for metric in found))
    rows = [f"| {' | '.join(['set', *names])} |", f"|{' --- |' * (len(names) + 1)}"]
    for name, found in evaluations.items():
        rows.append(f"| {' | '.join([name, *(f'{found[m]:.4f}' if m in found else '' for m in names)])} |")
    return ["## Evaluation", "", *rows, ""]
