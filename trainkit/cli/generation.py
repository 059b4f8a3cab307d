"""What `generate` and `chat` share: the options of sampling, opening a model, printing its text, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from trainkit.errors import TrainkitError
from trainkit.printer import complain
from trainkit.text import Neutral, NeutralStream, neutralise

if TYPE_CHECKING:
    from trainkit.infer.beam_search import BeamSearch
    from trainkit.infer.settings import GenerationSettings
    from trainkit.infer.trained_model import TrainedModel

T = TypeVar("T")

#: The most tokens of a text, if neither the options nor the model's files say how many.
MAX_TOKENS = 100
#: Seconds between two attempts to make the main thread handle a Ctrl-C.
REPEAT_SECONDS = 0.05

Model = Annotated[
    str,
    typer.Argument(
        metavar="RUN[/STEP]",
        help="A run, one of its checkpoints, or a directory with a Hugging Face checkpoint or PEFT adapter.",
        show_default=False,
    ),
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `generate` and `chat` that control sampling; None where one is not given."""

    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The most tokens to generate; the model's context is the other limit.",
            show_default="100; 500 in chat",
        ),
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option(help="Divide the logits by this; 0 always takes the most likely token.", show_default="0.8"),
    ] = None
    top_k: Annotated[
        int | None,
        typer.Option(min=0, help="Sample from this many most likely tokens; 0: from all.", show_default=False),
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(help="Sample from the most likely tokens with this total probability.", show_default=False),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(
            help="Sample from tokens at least this fraction as likely as the best.",
            show_default=False,
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option(help="Above 1, makes tokens that already occurred less likely.", show_default="1"),
    ] = None
    stop: Annotated[
        list[str] | None, typer.Option(help="End the text at this string; may be repeated.", show_default=False)
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**32 - 1,
            help="The same seed gives the same text; random if omitted.",
            show_default=False,
        ),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Return the options that were given, for `trainkit.infer.settings`."""
        return {name: value for name, value in vars(self).items() if name not in ("stop", "seed") and value is not None}


def with_options(command: Callable[..., T]) -> Callable[..., T]:
    """Return the command with an option for each field of `Options`; it receives them together as `options`."""
    hints = get_type_hints(Options, include_extras=True)
    added = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hint) for name, hint in hints.items()]
    own = [p for p in signature(command, eval_str=True).parameters.values() if p.name != "options"]

    @wraps(command)
    def wrapper(**given: Any) -> T:
        options = Options(**{name: given.pop(name) for name in hints})
        return command(**given, options=options)

    wrapper.__signature__ = Signature([*own, *added])  # type: ignore[attr-defined]
    return wrapper


def open_model(what: str, *, average: bool | None = None) -> TrainedModel:
    """Return the model of RUN or RUN/STEP, or of a directory with a Hugging Face checkpoint or a PEFT adapter.

    `average` is `--average` or `--no-average`, which only a run has.

    Raises TrainkitError.
    """
    from trainkit.rundir.find import find_run
    from trainkit.rundir.summary import is_run

    path = Path(what)
    configs = (path / "config.json", path / "adapter_config.json")
    pretrained = any(config.is_file() for config in configs) and not is_run(path)
    directory, step = (path, None) if pretrained else find_run(what)
    if pretrained and average is not None:
        option = "--average" if average else "--no-average"
        raise TrainkitError(f"{option} is for runs, and this is an export", where=what, hint=f"omit {option}")
    from trainkit.infer.trained_model import open_pretrained, open_run
    from trainkit.parallel.xla import use_compile_cache

    use_compile_cache()
    return open_pretrained(directory) if pretrained else open_run(directory, step, average=average)


def new_seed() -> int:
    """Return a random seed."""
    import secrets  # it loads hashlib, base64 and random

    return secrets.randbits(32)


def check(options: Options) -> None:
    """Raise TrainkitError where an option is out of range, before a model is loaded."""
    from trainkit.infer.settings import settle

    if "" in (options.stop or ()):
        raise TrainkitError(
            "an empty stop string would end every text before it begins", where="--stop", hint="omit it"
        )
    settle(options.settings(), None, max_tokens=MAX_TOKENS)


def settle_options(options: Options, trained: TrainedModel, *, max_tokens: int) -> GenerationSettings:
    """Return the options, with the rest from the model's files, which is noted on stderr. Raises TrainkitError."""
    from trainkit.infer.settings import generation, settle

    config = generation(trained.directories)
    if config is not None and trained.spec.kind == "encoder-decoder":
        config = config.of_searcher()
    return _note(settle(options.settings(), config, max_tokens=max_tokens))


def settle_beams(
    options: Options, trained: TrainedModel, *, beams: int, length_penalty: float | None, max_tokens: int
) -> tuple[GenerationSettings, BeamSearch]:
    """Return the same for a search with beams, and how it searches. Raises TrainkitError."""
    from trainkit.infer.settings import generation, settle_search

    typed = options.settings() | ({} if length_penalty is None else {"length_penalty": length_penalty})
    config = generation(trained.directories)
    if config is not None and trained.spec.kind == "encoder-decoder":
        config = config.of_searcher()
    settings, search = settle_search(typed, config, beams=beams, max_tokens=max_tokens)
    return _note(settings), search


def _note(settings: GenerationSettings) -> GenerationSettings:
    for note in settings.notes:
        complain(note)
    return settings


def printable(text: str) -> Neutral:
    """Return a model's text for stdout: on a terminal it must not move the cursor."""
    return Neutral(neutralise(text, flowing=True) if sys.stdout.isatty() else text)


def stream_printable() -> Callable[[str], Neutral]:
    """Return a function that does the same for a text that comes in pieces."""
    stream = NeutralStream()
    return lambda piece: Neutral(stream.add(piece) if sys.stdout.isatty() else piece)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C was pressed. The first is only remembered; a second one interrupts."""
    presses: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        presses.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: bool(presses)
    finally:
        signal.signal(signal.SIGINT, before)


def ask(prompt: str) -> str:
    """Return a line from the terminal. A Ctrl-C raises one KeyboardInterrupt at once.

    `input` with readline sleeps until a key is pressed or a signal wakes the main thread. A signal that comes just
    before it sleeps, or that the system delivers to another thread, would be handled only at the next key. So a thread
    reads the signals that Python reports through `set_wakeup_fd`, and repeats each to the main thread until it is
    handled.
    """
    handled, main = threading.Event(), threading.get_ident()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not handled.is_set():
            handled.set()
            raise KeyboardInterrupt

    def insist() -> None:
        while number := os.read(reader, 1):
            while number[0] == signal.SIGINT and not handled.wait(REPEAT_SECONDS):
                signal.pthread_kill(main, signal.SIGINT)

    before, wakeup = signal.signal(signal.SIGINT, interrupt), signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=insist, daemon=True)
    thread.start()
    try:
        try:
            return input(prompt)
        finally:
            handled.set()
    finally:
        signal.set_wakeup_fd(wakeup)
        os.close(writer)
        thread.join()
        os.close(reader)
        signal.signal(signal.SIGINT, before)
