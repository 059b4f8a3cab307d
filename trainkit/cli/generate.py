"""`trainkit generate`: what a model makes of prompts."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainkit.cli.where import find_run
from trainkit.dashboard.runs.glance import is_run
from trainkit.errors import TrainkitError

if TYPE_CHECKING:
    from trainkit.infer.generator import Generator, Request
    from trainkit.infer.sampling import Sampling
    from trainkit.run.serving import Served

#: Sequences that are continued at once.
BATCH = 16


def generate(
    what: str,
    prompts: Sequence[str],
    *,
    file: Path | None,
    max_tokens: int,
    sampling: Sampling,
    stop: Sequence[str],
    seed: int | None,
    count: int,
    as_json: bool,
) -> None:
    """Print what the model makes of each prompt, `count` times each, in their order.

    Raises:
        TrainkitError: there is no such model or no prompt, or a prompt is longer than the model's context.
    """
    from trainkit.infer.generator import Generator, Request

    check_stop(stop)
    texts = [text for text in _prompts(prompts, file) for _ in range(count)]
    served = open_model(what)
    first = new_seed() if seed is None else seed
    # so that each text can be had again by itself
    seeds = [(first + copy) % 2**32 for copy in range(count)] * (len(texts) // count)
    requests = [Request(served.prompt(text), seed) for text, seed in zip(texts, seeds, strict=True)]
    generator = Generator(served.model, served.codec, served.ends, served.rows)
    if len(requests) == 1 and not as_json:
        _print_streaming(generator, requests[0], max_tokens=max_tokens, sampling=sampling, stop=stop)
        return
    for start in range(0, len(requests), BATCH):
        some = slice(start, start + BATCH)
        answers = generator.answers(requests[some], max_tokens=max_tokens, sampling=sampling, stop=stop)
        for text, seed, answer in zip(texts[some], seeds[some], answers, strict=True):
            fields = {"prompt": text, "text": answer.text, "reason": answer.reason, "tokens": len(answer.ids)}
            told = json.dumps(fields | {"seed": seed}, ensure_ascii=False) if as_json else shown(answer.text)
            print(told, flush=True)


def open_model(what: str) -> Served:
    """The model of RUN or RUN/STEP, or in a directory with a Hugging Face checkpoint. Raises TrainkitError."""
    path = Path(what)
    pretrained = (path / "config.json").is_file() and not is_run(path)
    directory, step = (path, None) if pretrained else find_run(what)
    from trainkit.run.assemble import use_compile_cache
    from trainkit.run.serving import open_pretrained, open_run

    use_compile_cache()
    return open_pretrained(directory) if pretrained else open_run(directory, step)


def new_seed() -> int:
    return secrets.randbits(32)


def check_stop(stop: Sequence[str]) -> None:
    """Raises TrainkitError."""
    if "" in stop:
        raise TrainkitError("a stop string is empty, and so would end every text before it begins", where="--stop")


def shown(text: str) -> str:
    """A text as a terminal may have it: one of a model's must not move the cursor."""
    if not sys.stdout.isatty():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def _print_streaming(
    generator: Generator, request: Request, *, max_tokens: int, sampling: Sampling, stop: Sequence[str]
) -> None:
    for news in generator.stream([request], max_tokens=max_tokens, sampling=sampling, stop=stop):
        print(shown(news.text), end="", flush=True)
    print(flush=True)


def _prompts(given: Sequence[str], file: Path | None) -> list[str]:
    """Those of the command line and of the file; where there are none, that of the standard input."""
    found = [*given, *(_in_file(file) if file is not None else [])]
    if found:
        return found
    if sys.stdin is None or sys.stdin.isatty():
        raise TrainkitError("there is no prompt", hint='trainkit generate RUN "Once upon a time"   or --file FILE')
    return [sys.stdin.read().removesuffix("\n")]


def _in_file(path: Path) -> Iterator[str]:
    """A prompt a line of a .jsonl; the text of any other file, without its last line's end."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise TrainkitError(f"cannot read the prompts: {reason}", where=str(path)) from error
    if path.suffix != ".jsonl":
        yield text.removesuffix("\n")
        return
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        prompt = found.get("prompt") if isinstance(found, dict) else found
        if not isinstance(prompt, str):
            problem = 'a line is a string, or an object with a string "prompt"'
            raise TrainkitError(problem, where=f"{path}:{number}")
        yield prompt
