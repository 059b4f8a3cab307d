"""`trainkit generate`: what a model makes of prompts."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainkit.cli.where import find_run
from trainkit.errors import TrainkitError
from trainkit.rundir.summary import is_run
from trainkit.text import NeutralStream, neutralise

if TYPE_CHECKING:
    from trainkit.cli.use import Options
    from trainkit.infer.settings import GenerationSettings
    from trainkit.infer.trained_model import TrainedModel

#: Sequences that are continued at once.
BATCH = 16
#: Of a text, where neither a person nor the model's maker says how many.
MAX_TOKENS = 100


def generate(
    what: str, prompts: Sequence[str], *, file: Path | None, options: Options, count: int, as_json: bool
) -> None:
    """Print what the model makes of each prompt, `count` times each, in their order.

    Raises:
        TrainkitError: there is no such model or no prompt, or a prompt is longer than the model's context.
    """
    from trainkit.infer.generator import Generator, Request

    check(options)
    texts = [text for text in _prompts(prompts, file) for _ in range(count)]
    served = open_model(what)
    settings = settled(options, served, max_tokens=MAX_TOKENS)
    first = new_seed() if options.seed is None else options.seed
    # so that each text can be had again by itself
    seeds = [(first + copy) % 2**32 for copy in range(count)] * (len(texts) // count)
    requests = [Request(served.prompt(text), seed) for text, seed in zip(texts, seeds, strict=True)]
    generator = Generator(served.model, served.codec, served.ends, served.mesh)
    generator.check([request.ids for request in requests[::count]])  # all, before the first is continued
    sampling, most, stop = settings.sampling, settings.max_tokens, options.stop or []
    if len(requests) == 1 and not as_json:
        tell = telling()
        for news in generator.stream(requests, max_tokens=most, sampling=sampling, stop=stop):
            print(tell(news.text), end="", flush=True)
        print(flush=True)
        return
    for start in range(0, len(requests), BATCH):
        some = slice(start, start + BATCH)
        answers = generator.answers(requests[some], max_tokens=most, sampling=sampling, stop=stop)
        for text, seed, answer in zip(texts[some], seeds[some], answers, strict=True):
            fields = {"prompt": text, "text": answer.text, "reason": answer.reason, "tokens": len(answer.ids)}
            told = json.dumps(fields | {"seed": seed}, ensure_ascii=False) if as_json else shown(answer.text)
            print(told, flush=True)


def open_model(what: str) -> TrainedModel:
    """The model of RUN or RUN/STEP, or in a directory with a Hugging Face checkpoint or an adapter of PEFT.

    Raises TrainkitError.
    """
    path = Path(what)
    configs = (path / "config.json", path / "adapter_config.json")
    pretrained = any(config.is_file() for config in configs) and not is_run(path)
    directory, step = (path, None) if pretrained else find_run(what)
    from trainkit.infer.trained_model import open_pretrained, open_run
    from trainkit.parallel.compile_cache import use_compile_cache

    use_compile_cache()
    return open_pretrained(directory) if pretrained else open_run(directory, step)


def new_seed() -> int:
    return secrets.randbits(32)


def check(options: Options) -> None:
    """Raises TrainkitError where something typed is wrong, before a model is read for it."""
    from trainkit.infer.settings import settle

    if "" in (options.stop or ()):
        raise TrainkitError("a stop string is empty, and so would end every text before it begins", where="--stop")
    settle(options.settings(), None, max_tokens=MAX_TOKENS)


def settled(options: Options, served: TrainedModel, *, max_tokens: int) -> GenerationSettings:
    """What was typed, and for the rest what the model comes with, which is told. Raises TrainkitError."""
    from trainkit.hub.generation import generation
    from trainkit.infer.settings import settle

    config = generation(served.directories)
    settings = settle(options.settings(), config, max_tokens=max_tokens)
    for note in settings.notes:
        print(neutralise(note), file=sys.stderr)
    return settings


def shown(text: str) -> str:
    """A text as a terminal may have it: one of a model's must not move the cursor."""
    return neutralise(text, flowing=True) if sys.stdout.isatty() else text


def telling() -> Callable[[str], str]:
    """The same for a text that comes in pieces."""
    return NeutralStream().add if sys.stdout.isatty() else str


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
