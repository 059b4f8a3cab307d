"""`trainkit chat`: a conversation in the terminal, or through pipes: a line in, an answer out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trainkit.cli.generate import check, new_seed, open_model, settled, telling
from trainkit.cli.interrupts import ask, interruptible
from trainkit.errors import TrainkitError
from trainkit.text import neutralise

if TYPE_CHECKING:
    from trainkit.cli.use import Options
    from trainkit.infer.chat import Conversation
    from trainkit.infer.generator import Generator
    from trainkit.infer.settings import GenerationSettings
    from trainkit.infer.trained_model import TrainedModel

#: Of an answer, where neither a person nor the model's maker says how many.
MAX_TOKENS = 500
HELP = """\
/reset          forget what was said
/system [TEXT]  begin anew, with TEXT as the system's message, or without one
/save FILE      add the conversation to FILE as a line of JSON, as a recipe's data may be
/help           this
/quit           end, as Ctrl-D does
//TEXT          say what begins with a slash
A line that ends with a backslash goes on in the next one. Ctrl-C stops an answer."""


class Talk(Protocol):
    """What is said in turn, and how it becomes a prompt."""

    def prompt(self, said: str) -> list[int]: ...
    def add(self, said: str, answer: str) -> None: ...
    def reset(self) -> None: ...
    def instruct(self, text: str) -> None: ...
    def saved(self) -> dict[str, object]: ...


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

    def saved(self) -> dict[str, object]:
        return {"messages": self._conversation.messages}


class Raw:
    """One text, which the person and the model go on with in turn."""

    def __init__(self, served: TrainedModel) -> None:
        self._prompt, self._text = served.prompt, ""

    def prompt(self, said: str) -> list[int]:
        return self._prompt(self._text + said)

    def add(self, said: str, answer: str) -> None:
        self._text += said + answer

    def reset(self) -> None:
        self._text = ""

    def instruct(self, text: str) -> None:
        raise TrainkitError("--raw knows no system's message: it goes on with a text")

    def saved(self) -> dict[str, object]:
        return {"text": self._text}


def chat(what: str, *, system: str | None, raw: bool, options: Options) -> None:
    """Converse until the person ends it.

    Raises:
        TrainkitError: there is no such model, or it has no chat template that can be used.
    """
    from trainkit.infer.chat import Conversation, closing
    from trainkit.infer.generator import Generator

    check(options)
    served, stop = open_model(what), options.stop or []
    talk: Talk
    if raw:
        talk = Raw(served)
    else:
        template = served.template()
        talk = Templated(Conversation(template, served.codec, served.begin))
        stop = [*stop, *closing(template, served.codec)[1]]
    if system is not None:
        talk.instruct(system)
    settings = settled(options, served, max_tokens=MAX_TOKENS)
    generator = Generator(served.model, served.codec, served.ends, served.mesh, remembers=True)
    session = Session(talk, generator, settings, stop=stop, seed=options.seed)
    session.greet(what)
    for line in session.lines():
        if not session.take(line):
            return


class Session:
    """What is typed, and what is printed: answers on stdout, all else on stderr where there is no terminal."""

    def __init__(
        self, talk: Talk, generator: Generator, settings: GenerationSettings, *, stop: Sequence[str], seed: int | None
    ) -> None:
        from rich.console import Console

        self._talk, self._generator, self._settings = talk, generator, settings
        self._stop, self._seed = stop, seed
        self._terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._console = Console(stderr=not self._terminal, highlight=False, markup=False)

    def greet(self, what: str) -> None:
        if self._terminal:
            self.tell(f"{what}: /help says what there is, Ctrl-D ends")

    def lines(self) -> Iterator[str]:
        """What the person says, until there is no more."""
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
                self.tell("\nCtrl-D or /quit ends")
                continue
            said.append(line.removesuffix("\\"))
            if not line.endswith("\\"):
                yield "\n".join(said)
                said = []

    def take(self, line: str) -> bool:
        """Do what a line asks for; whether the conversation goes on after it."""
        try:
            if line.startswith("/") and not line.startswith("//"):
                return self._command(line)
            if line.strip():
                self._answer(line.removeprefix("/") if line.startswith("//") else line)
        except TrainkitError as error:
            self.tell(f"error: {error}", style="red")
        return True

    def tell(self, text: str, *, style: str = "dim") -> None:
        # a file's name or a template's words must not move the cursor
        self._console.print(neutralise(text, flowing=True), style=style, soft_wrap=True)

    def _command(self, line: str) -> bool:
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        match word:
            case "/quit" | "/exit":
                return False
            case "/reset":
                self._talk.reset()
                self.tell("what was said is forgotten")
            case "/system":
                self._talk.instruct(rest)
                self.tell("begun anew, with this message of the system" if rest else "begun anew, without a system")
            case "/save":
                self._save(rest)
            case "/help":
                self.tell(HELP)
            case _:
                self.tell(f"there is no {word}; there are:\n{HELP}")
        return True

    def _save(self, name: str) -> None:
        if not name:
            raise TrainkitError("/save wants the name of a file", hint="/save chat.jsonl")
        path = Path(name).expanduser()
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(self._talk.saved(), ensure_ascii=False) + "\n")
        except OSError as error:
            raise TrainkitError(f"cannot be written: {error.strerror}", where=str(path)) from error
        self.tell(f"added to {path}")

    def _answer(self, said: str) -> None:
        from trainkit.infer.generator import Request

        request = Request(self._talk.prompt(said), new_seed() if self._seed is None else self._seed)
        reason, text, tell = None, "", telling()
        most, sampling = self._settings.max_tokens, self._settings.sampling
        streaming = self._generator.stream([request], max_tokens=most, sampling=sampling, stop=self._stop)
        with interruptible() as stopped:
            for news in streaming:
                text, reason = news.answer.text, news.answer.reason
                print(tell(news.text), end="", flush=True)
                if stopped():
                    break
        print(flush=True)
        self._talk.add(said, text)
        if stopped() and reason is None:
            self.tell("stopped")
        elif reason == "length":
            self.tell(f"stopped after {len(news.answer.ids)} tokens (--max-tokens, or the model's context)")
