"""The words and options of the commands that use what was trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

Model = Annotated[
    str,
    typer.Argument(
        metavar="RUN[/STEP]",
        help="A run, one checkpoint of it, or a directory with a Hugging Face checkpoint or PEFT adapter.",
        show_default=False,
    ),
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How texts are to go on, as far as it is typed: what `generate` and `chat` both can be told."""

    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The most tokens of a text; the model's context is another end.",
            show_default="100, of an answer in chat 500",
        ),
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option(help="What logits are divided by; 0 takes the likeliest token always.", show_default="0.8"),
    ] = None
    top_k: Annotated[
        int | None, typer.Option(min=0, help="Draw from the likeliest so many only; 0 from all.", show_default=False)
    ] = None
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the likeliest that have so much probability.", show_default=False)
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(help="Draw from those at least this many times as likely as the likeliest.", show_default=False),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option(help="Above 1, tokens that were there before become less likely.", show_default="1"),
    ] = None
    stop: Annotated[
        list[str] | None, typer.Option(help="A string that ends a text; may be repeated.", show_default=False)
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**32 - 1,
            help="The same gives the same text; another each time where not given.",
            show_default=False,
        ),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Those for `trainkit.infer.settings`."""
        return {name: value for name, value in vars(self).items() if name not in ("stop", "seed") and value is not None}


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each field of `Options`, which it is given as `options`."""
    hints = get_type_hints(Options, include_extras=True)
    added = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hint) for name, hint in hints.items()]
    own = [p for p in signature(command, eval_str=True).parameters.values() if p.name != "options"]

    @wraps(command)
    def called(**given: Any) -> None:
        options = Options(**{name: given.pop(name) for name in hints})
        command(**given, options=options)

    called.__signature__ = Signature([*own, *added])  # type: ignore[attr-defined]
    return called


class ExportFormat(StrEnum):
    """What an export is for."""

    HF = "hf"
    PEFT = "peft"


class ExportDtype(StrEnum):
    """What the weights of an export are."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


@with_options
def generate(
    model: Model,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROMPT]…", help="What to go on with; standard input where not given.", show_default=False
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A prompt in a file; of a .jsonl one a line.", show_default=False),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Texts for each prompt, with seeds one after the other.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object a text.")] = False,
    *,
    options: Options,
) -> None:
    """Let a model go on with prompts, and print what it makes of them.

    Options that are not given are as the model's generation_config.json says, where it has one.
    """
    from trainkit.cli.generate import generate

    generate(model, prompts or [], file=file, options=options, count=count, as_json=json)


@with_options
def chat(
    model: Model,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The system's message.", show_default=False)
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Go on with a text, without a chat template.")] = False,
    *,
    options: Options,
) -> None:
    """Converse with a model in the terminal; /help says how.

    Options that are not given are as the model's generation_config.json says, where it has one.
    """
    from trainkit.cli.chat import chat

    chat(model, system=system, raw=raw, options=options)


def export(
    run: Annotated[
        str, typer.Argument(metavar="RUN[/STEP]", help="A run, or one checkpoint of it.", show_default=False)
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A directory that does not exist yet.")],
    format: Annotated[
        ExportFormat, typer.Option(help="hf: what transformers loads, an adapter merged; peft: the adapter alone.")
    ] = ExportFormat.HF,
    dtype: Annotated[
        ExportDtype | None, typer.Option(help="Of the weights; as in training where not given.", show_default=False)
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(metavar="REPO", help="Upload it to the Hugging Face hub, such as me/model.", show_default=False),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Where --push makes a new repository.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object of what was written.")] = False,
) -> None:
    """Write a run's model for transformers: weights, config, tokenizer, model card; read back and compared."""
    from trainkit.cli.export import export

    adapter, given = format is ExportFormat.PEFT, dtype.value if dtype else None
    print(export(run, out, adapter=adapter, dtype=given, push=push, private=private, as_json=json))
