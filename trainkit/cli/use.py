"""The words and options of the commands that use what was trained."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Argument(
        metavar="RUN[/STEP]",
        help="A run, one checkpoint of it, or a directory with a Hugging Face checkpoint.",
        show_default=False,
    ),
]
MaxTokens = Annotated[int, typer.Option(min=1, help="The most tokens of a text; the model's context is another end.")]
Temperature = Annotated[float, typer.Option(help="What logits are divided by; 0 takes the likeliest token always.")]
TopK = Annotated[int | None, typer.Option(help="Draw from the likeliest so many only.", show_default=False)]
TopP = Annotated[
    float | None, typer.Option(help="Draw from the likeliest that have so much probability.", show_default=False)
]
MinP = Annotated[
    float | None,
    typer.Option(help="Draw from those at least this many times as likely as the likeliest.", show_default=False),
]
Penalty = Annotated[float, typer.Option(help="Above 1, tokens that were there before become less likely.")]
Stop = Annotated[list[str] | None, typer.Option(help="A string that ends a text; may be repeated.", show_default=False)]
Seed = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=2**32 - 1,
        help="The same gives the same text; another each time where not given.",
        show_default=False,
    ),
]


class ExportFormat(StrEnum):
    """What an export is for."""

    HF = "hf"
    PEFT = "peft"


class ExportDtype(StrEnum):
    """What the weights of an export are."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


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
    max_tokens: MaxTokens = 100,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: Penalty = 1.0,
    stop: Stop = None,
    seed: Seed = None,
    count: Annotated[int, typer.Option(min=1, help="Texts for each prompt, with seeds one after the other.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object a text.")] = False,
) -> None:
    """Let a model go on with prompts, and print what it makes of them."""
    from trainkit.cli.generate import generate
    from trainkit.infer.sampling import Sampling

    generate(
        model,
        prompts or [],
        file=file,
        max_tokens=max_tokens,
        sampling=Sampling(temperature, top_k, top_p, min_p, repetition_penalty),
        stop=stop or [],
        seed=seed,
        count=count,
        as_json=json,
    )


def chat(
    model: Model,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The system's message.", show_default=False)
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Go on with a text, without a chat template.")] = False,
    max_tokens: MaxTokens = 500,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: Penalty = 1.0,
    stop: Stop = None,
    seed: Seed = None,
) -> None:
    """Converse with a model in the terminal; /help says how."""
    from trainkit.cli.chat import chat
    from trainkit.infer.sampling import Sampling

    chat(
        model,
        system=system,
        raw=raw,
        max_tokens=max_tokens,
        sampling=Sampling(temperature, top_k, top_p, min_p, repetition_penalty),
        stop=stop or [],
        seed=seed,
    )


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
) -> None:
    """Write a run's model for transformers: weights, config, tokenizer, model card; read back and compared."""
    from trainkit.cli.export import export, export_adapter

    if format is ExportFormat.PEFT:
        print(export_adapter(run, out, dtype=dtype.value if dtype else None, push=push, private=private))
        return
    print(export(run, out, dtype=dtype.value if dtype else None, push=push, private=private))
