"""`trainkit generate`: continue prompts with a model."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from trainkit.cli.arguments import Average
from trainkit.cli.generation import (
    MAX_TOKENS,
    Model,
    Options,
    check,
    new_seed,
    open_model,
    printable,
    settle_beams,
    settle_options,
    stream_printable,
    with_options,
)  # fmt: skip
from trainkit.errors import TrainkitError
from trainkit.printer import printable_json, show

#: Sequences that are continued at once.
BATCH = 16


@with_options
def generate(
    model: Model,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROMPT]…", help="Texts to continue; standard input if omitted.", show_default=False),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Continue the text of a file; of a .jsonl, each line.", show_default=False),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Texts per prompt, with consecutive seeds.")] = 1,
    beams: Annotated[
        int, typer.Option(min=1, help="Search for the best target with this many beams (encoder-decoders).")
    ] = 1,
    length_penalty: Annotated[
        float | None, typer.Option(help="With beams: above 0 favours longer targets.", show_default="1")
    ] = None,
    average: Average = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per text.")] = False,
    *,
    options: Options,
) -> None:
    """Continue prompts with a model and print the texts.

    An encoder-decoder such as T5 writes the target of a source instead.

    Options that are not given follow the model's generation_config.json, where it has one.
    """
    from trainkit.infer.beam_search import BeamSearch
    from trainkit.infer.generator import Request

    check(options)
    _check_search(options, beams, length_penalty)
    texts = [text for text in _prompts(prompts or [], file) for _ in range(count)]
    trained = open_model(model, average=average)
    if beams > 1:
        settings, search = settle_beams(
            options, trained, beams=beams, length_penalty=length_penalty, max_tokens=MAX_TOKENS
        )
    else:
        settings = settle_options(options, trained, max_tokens=MAX_TOKENS)
        search = BeamSearch(rules=settings.rules)
    first = new_seed() if options.seed is None else options.seed
    # so that each text can be generated again by itself
    seeds = [(first + copy) % 2**32 for copy in range(count)] * (len(texts) // count)
    requests = [Request(trained.prompt(text), seed) for text, seed in zip(texts, seeds, strict=True)]
    generator = trained.generator(search)
    generator.check([request.ids for request in requests[::count]])  # all of them before the first is continued
    sampling, most, stop = settings.sampling, settings.max_tokens, options.stop or []
    if len(requests) == 1 and not json:
        neutral = stream_printable()
        for news in generator.stream(requests, max_tokens=most, sampling=sampling, stop=stop):
            show(neutral(news.text), end="")
        show("")
        return
    for start in range(0, len(requests), BATCH):
        some = slice(start, start + BATCH)
        answers = generator.answers(requests[some], max_tokens=most, sampling=sampling, stop=stop)
        for text, seed, answer in zip(texts[some], seeds[some], answers, strict=True):
            fields = {"prompt": text, "text": answer.text, "reason": answer.reason, "tokens": len(answer.ids)}
            show(printable_json(fields | {"seed": seed}) if json else printable(answer.text))


def _check_search(options: Options, beams: int, length_penalty: float | None) -> None:
    """Raise TrainkitError where an option changes nothing: beams draw no tokens."""
    drawing = sorted(options.settings().keys() - {"max_tokens"})
    if beams > 1 and drawing:
        name = drawing[0].replace("_", "-")
        raise TrainkitError(f"--{name} changes nothing with --beams {beams}", hint=f"omit --{name} or --beams")
    if beams == 1 and length_penalty is not None:
        raise TrainkitError("--length-penalty changes nothing without --beams", hint="add --beams 4, for example")


def _prompts(given: Sequence[str], file: Path | None) -> list[str]:
    """Return the prompts of the command line and of the file; without any, the one on standard input."""
    found = [*given, *(_in_file(file) if file is not None else [])]
    if found:
        return found
    if sys.stdin is None or sys.stdin.isatty():
        raise TrainkitError("no prompt is given", hint='trainkit generate RUN "Once upon a time"   or --file FILE')
    return [sys.stdin.read().removesuffix("\n")]


def _in_file(path: Path) -> Iterator[str]:
    """Yield a prompt per line of a .jsonl; of any other file its text, without the last line feed."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise TrainkitError(f"the prompts cannot be read: {reason}", where=str(path)) from error
    if path.suffix != ".jsonl":
        yield text.removesuffix("\n")
        return
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found = json_format.loads(line)
        except ValueError:
            found = None
        prompt = found.get("prompt") if isinstance(found, dict) else found
        if not isinstance(prompt, str):
            problem = 'a line must be a JSON string or an object with a string "prompt"'
            raise TrainkitError(problem, where=f"{path}:{number}")
        yield prompt
