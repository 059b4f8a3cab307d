"""`trainkit chat`: a conversation in the terminal, or through pipes: one line in, one answer out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from trainkit.cli.arguments import Average
from trainkit.cli.generation import (
    Model,
    Options,
    ask,
    check,
    interruptible,
    new_seed,
    open_model,
    settle_options,
    stream_printable,
    with_options,
)
from trainkit.errors import TrainkitError
from trainkit.printer import harmless, quote, show

if TYPE_CHECKING:
    from trainkit.infer.generator import Generator
    from trainkit.infer.settings import GenerationSettings
    from trainkit.infer.text_format import Conversation
    from trainkit.infer.trained_model import TrainedModel

EXCLUSIVE = [("--system", "--raw", "without a chat template there is no system message")]
#: The most tokens of an answer, if neither the options nor the model's files say how many.
MAX_TOKENS = 500
HELP = """\
/reset          start a new conversation
/system [TEXT]  start a new conversation with TEXT as the system message, or without one
/save FILE      append the conversation to FILE as a line of JSON, which a recipe can train on
/help           show this list
/quit           quit, as Ctrl-D does
//TEXT          say something that starts with a slash
A line that ends with a backslash continues on the next line. Ctrl-C stops an answer."""


class Talk(Protocol):
    """A conversation: what was said so far, and how it becomes a prompt."""

    def prompt(self, said: str) -> list[int]:
        """Return the tokens to continue after the person has said this."""

    def add(self, said: str, answer: str) -> None:
        """Add what the person said and the answer."""

    def reset(self) -> None:
        """Forget the conversation."""

    def instruct(self, text: str) -> None:
        """Set the system message."""

    def as_json(self) -> dict[str, object]:
        """Return the conversation as JSON, for a file."""


class Templated:
    """A conversation, as the model's chat template writes it."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self.prompt, self.add = conversation.prompt, conversation.add

    def reset(self) -> None:
        self._conversation.turns.clear()

    def instruct(self, text: str) -> None:
        """Raises TrainkitError where the template takes no system message."""
        before, self._conversation.system = self._conversation.system, text or None
        try:
            self.prompt("")
        except TrainkitError:
            self._conversation.system = before
            raise
        self.reset()

    def as_json(self) -> dict[str, object]:
        return {"messages": self._conversation.messages}


class Raw:
    """One text that the person and the model continue in turn."""

    def __init__(self, trained: TrainedModel) -> None:
        self._prompt, self._text = trained.prompt, ""

    def prompt(self, said: str) -> list[int]:
        return self._prompt(self._text + said)

    def add(self, said: str, answer: str) -> None:
        self._text += said + answer

    def reset(self) -> None:
        self._text = ""

    def instruct(self, text: str) -> None:
        raise TrainkitError("with --raw there is no system message: the model continues a text")

    def as_json(self) -> dict[str, object]:
        return {"text": self._text}


@with_options
def chat(
    model: Model,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system message.", show_default=False)] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue one text, without a chat template.")] = False,
    average: Average = None,
    *,
    options: Options,
) -> None:
    """Chat with a model in the terminal; /help lists the commands.

    Options that are not given follow the model's generation_config.json, where it has one.
    """
    from trainkit.infer.generator import Generator
    from trainkit.infer.text_format import Conversation, end_of_answer

    check(options)
    trained, stop = open_model(model, average=average), options.stop or []
    if trained.spec.kind == "encoder-decoder":
        raise TrainkitError(
            "the model is an encoder-decoder, which holds no conversation",
            where=model,
            hint=f'for the target of one source: trainkit generate {quote(model)} "…"',
        )
    talk: Talk
    if raw:
        talk = Raw(trained)
    else:
        template = trained.template()
        talk = Templated(Conversation(template, trained.codec, trained.begin))
        stop = [*stop, *end_of_answer(template, trained.codec)[1]]
    if system is not None:
        talk.instruct(system)
    settings = settle_options(options, trained, max_tokens=MAX_TOKENS)
    generator = Generator(trained.model, trained.codec, trained.ends, trained.mesh, remembers=True)
    session = Session(talk, generator, settings, stop=stop, seed=options.seed)
    session.greet(model)
    for line in session.lines():
        if not session.take(line):
            return


class Session:
    """Reads what a person types and prints answers on stdout; without a terminal, all else goes to stderr."""

    def __init__(
        self, talk: Talk, generator: Generator, settings: GenerationSettings, *, stop: Sequence[str], seed: int | None
    ) -> None:
        from rich.console import Console

        self._talk, self._generator, self._settings = talk, generator, settings
        self._stop, self._seed = stop, seed
        self._terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._console = Console(stderr=not self._terminal, highlight=False, markup=False)

    def greet(self, what: str) -> None:
        """Show how to begin, if a person types into a terminal."""
        if self._terminal:
            self.show(f"{what}: /help lists the commands, Ctrl-D quits")

    def lines(self) -> Iterator[str]:
        """Yield what the person types, until the input ends."""
        if self._terminal:
            import readline  # noqa: F401 (keys and a history for input)
        said: list[str] = []
        while True:
            try:
                line = ask("… " if said else "> ") if self._terminal else input()
            except EOFError:
                if self._terminal:
                    self._console.print()
                return
            except KeyboardInterrupt:
                if not self._terminal:
                    raise
                said.clear()
                self.show("\nCtrl-D or /quit quits")
                continue
            said.append(line.removesuffix("\\"))
            if not line.endswith("\\"):
                yield "\n".join(said)
                said = []

    def take(self, line: str) -> bool:
        """Do what a line asks for, and return whether the conversation continues."""
        try:
            if line.startswith("/") and not line.startswith("//"):
                return self._command(line)
            if line.strip():
                self._answer(line.removeprefix("/") if line.startswith("//") else line)
        except TrainkitError as error:
            self.show(f"error: {error}", style="red")
        return True

    def show(self, text: str, *, style: str = "dim") -> None:
        """Print a line that is not part of an answer."""
        self._console.print(harmless(text, flowing=True), style=style, soft_wrap=True)

    def _command(self, line: str) -> bool:
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        match word:
            case "/quit" | "/exit":
                return False
            case "/reset":
                self._talk.reset()
                self.show("new conversation")
            case "/system":
                self._talk.instruct(rest)
                self.show(
                    "new conversation with this system message" if rest else "new conversation without a system message"
                )
            case "/save":
                self._save(rest)
            case "/help":
                self.show(HELP)
            case _:
                self.show(f"there is no command {word}; the commands are:\n{HELP}")
        return True

    def _save(self, name: str) -> None:
        if not name:
            raise TrainkitError("/save needs the name of a file", hint="/save chat.jsonl")
        path = Path(os.path.expanduser(name))
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(self._talk.as_json(), ensure_ascii=False) + "\n")
        except OSError as error:
            raise TrainkitError(f"the conversation cannot be saved: {error.strerror}", where=str(path)) from error
        self.show(f"added to {path}")

    def _answer(self, said: str) -> None:
        from trainkit.infer.generator import Request

        request = Request(self._talk.prompt(said), new_seed() if self._seed is None else self._seed)
        reason, text, neutral = None, "", stream_printable()
        most, sampling = self._settings.max_tokens, self._settings.sampling
        streaming = self._generator.stream([request], max_tokens=most, sampling=sampling, stop=self._stop)
        with interruptible() as stopped:
            for news in streaming:
                text, reason = news.answer.text, news.answer.reason
                show(neutral(news.text), end="")
                if stopped():
                    break
        show("")
        self._talk.add(said, text)
        if stopped() and reason is None:
            self.show("stopped")
        elif reason == "length":
            self.show(f"stopped after {len(news.answer.ids)} tokens (--max-tokens, or the model's context)")
