"""Commands to the trainer from the keyboard: which work now, questions before them, and their answers."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from textual.binding import Binding, BindingType
from textual.notifications import Notification, Notify

from trainkit.dashboard.keys import Ask, Confirm
from trainkit.dashboard.preferences import Preferences
from trainkit.dashboard.themed import Themed
from trainkit.errors import TrainkitError
from trainkit.events.attempts import lock_holder
from trainkit.events.commands import SOCKET, Name, Reply, how_to_train_longer, parse_command, send
from trainkit.events.view import State, View
from trainkit.printer import quote

if TYPE_CHECKING:
    from trainkit.dashboard.pages import Page

STOP = "It finishes its step, writes a checkpoint and ends. trainkit resume continues from there."
DECAY = (
    "The learning rate falls from now on, as the schedule says, and the run ends with the decay."
    " The only way back is to resume from an earlier checkpoint."
)
SAMPLE = "The model continues this text once, after the current step."
RATE = (
    "Multiply the schedule's learning rate by any number above 0."
    " The factor is {now} now; 1 restores the schedule's rate."
)


#: How a run in this state came to its end, in words.
ENDED = {"stopped": "has stopped", "interrupted": "was interrupted", "failed": "has failed", "crashed": "has crashed"}
#: Seconds for which a notice says that a command waits for its answer: longer than `send` waits.
WAITING = 90.0
#: The actions that need a trainer.
COMMANDS = frozenset({"stop", "send", "pause", "sample", "rate", "decay"})
#: Actions of pages that change the run without a trainer.
CHANGES = frozenset({"mark"})


class CommandReply(NamedTuple):
    """The trainer's reply to a command, or why there is none; `waiting` is the notice shown meanwhile."""

    command: Name
    reply: Reply | TrainkitError
    waiting: Notification


class ControlKeys(Themed[None]):
    """The keys that send commands.

    Footer, help and palette omit keys that can do nothing now; pressing one says why. A subclass provides `view` and
    `state`.
    """

    BINDING_GROUP_TITLE = "the run"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("S", "stop", "stop", key_display="S", tooltip="stop the run after a checkpoint (asks first)"),
        Binding("c", "send('save')", "save", tooltip="write a checkpoint now"),
        Binding("p", "pause", "pause", tooltip="pause the run, or continue it"),
        Binding("e", "send('evaluate')", "evaluate", tooltip="evaluate now"),
        Binding("s", "sample", "sample", show=False, tooltip="let the model continue a text (asks for the text)"),
        Binding("R", "rate", "rate", show=False, tooltip="multiply the learning rate (asks for the factor)"),
        Binding("D", "decay", "decay", show=False, tooltip="start the decay of a wsd schedule now (asks first)"),
    ]

    def __init__(
        self, run_directory: Path, preferences: Preferences, *, forbidden: str = "", ascii_only: bool = False
    ) -> None:
        """`forbidden` says why this viewer must not change the run; it is empty where it may."""
        super().__init__(preferences, ascii_only=ascii_only)
        self._run_directory, self._forbidden = run_directory, forbidden
        self._answers: queue.SimpleQueue[CommandReply] = queue.SimpleQueue()

    @property
    def view(self) -> View:
        """The run, as far as its log has been read."""
        raise NotImplementedError

    @property
    def state(self) -> State:
        """What the run is doing."""
        raise NotImplementedError

    @property
    def forbidden(self) -> str:
        """Why no command can be sent now; empty where one can."""
        return self._forbidden or without_trainer(self.state, self._run_directory)

    def offers(self, action: str) -> bool:
        if action.partition("(")[0] in COMMANDS:
            return not self.forbidden
        return action not in CHANGES or not self._forbidden

    def action_stop(self) -> None:
        self._confirm("stop", Confirm("Stop this run?", STOP, yes="stop"))

    def action_decay(self) -> None:
        self._confirm("decay", Confirm("Start the decay now?", DECAY, yes="start it"))

    def action_pause(self) -> None:
        self.action_send("continue" if self.view.paused else "pause")

    def action_sample(self) -> None:
        def answered(prompt: str | None) -> None:
            if prompt is not None:
                self.preferences.prompt = prompt
                self.remember()
                self.action_send("sample", prompt)

        if self._may():
            asked = Ask(
                "Sample", SAMPLE, value=self.preferences.prompt, check=lambda text: parse_command("sample", text)
            )
            self.push_screen(asked, answered)

    def action_rate(self) -> None:
        def answered(factor: str | None) -> None:
            if factor is not None:
                self.action_send("rate", factor)

        if self._may():
            explanation = RATE.format(now=present_rate(self.view))
            self.push_screen(
                Ask("Learning rate", explanation, check=lambda text: parse_command("rate", text)), answered
            )

    def action_send(self, command: Name, argument: str | None = None) -> None:
        """Send a command from a thread of its own, so that the screen does not wait for the answer."""
        if self._may():
            waiting = Notification("sent, waiting for the trainer", command, timeout=WAITING)
            self.post_message(Notify(waiting))
            name = f"send {command}"
            threading.Thread(target=self._send, args=(command, argument, waiting), name=name, daemon=True).start()

    def has_answers(self) -> bool:
        """Return whether answers wait to be shown."""
        return not self._answers.empty()

    def show_answers(self) -> None:
        """Show the trainer's answers since the last call."""
        while self.has_answers():
            command, reply, waiting = self._answers.get()
            waiting.timeout = 0.0  # it may not even have been shown yet
            self._unnotify(waiting)
            if isinstance(reply, TrainkitError):
                message = f"{reply.problem}\n{reply.hint}".strip()
                self.notify(message, title=command, severity="error", markup=False)
            elif reply.ok:
                self.notify(reply.detail, title=command, markup=False)
            else:
                self.notify(reply.detail, title=f"{command}: refused", severity="error", markup=False)

    def _confirm(self, command: Name, question: Confirm) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self.action_send(command)

        if self._may():
            self.push_screen(question, answered)

    def on_page_act(self, event: Page.Act) -> None:
        if self._may(self._forbidden):
            event.do()

    def _may(self, forbidden: str | None = None) -> bool:
        """Return whether nothing forbids it, by default a command; otherwise show why not."""
        forbidden = self.forbidden if forbidden is None else forbidden
        if forbidden:
            self.notify(forbidden, severity="warning", markup=False)
        return not forbidden

    def _send(self, command: Name, argument: str | None, waiting: Notification) -> None:
        try:
            self._answers.put(CommandReply(command, send(self._run_directory, command, argument), waiting))
        except TrainkitError as error:
            self._answers.put(CommandReply(command, error, waiting))


def without_trainer(state: State, run: Path) -> str:
    """Return why a run in this state takes no commands, and what to do instead; empty where its trainer takes them.

    A trainer opens its control socket once it has cached its data and compiled its step, and takes commands from then
    on, even if the log has no step yet or the step is compiled again.
    """
    match state:
        case "waiting":
            return "no trainer has written to this run's log yet"
        case "starting" | "caching" | "compiling" if not (run / SOCKET).exists():
            return f"the trainer is {state}: it takes commands once training begins"
        case "finished":
            return f"the run is finished; to train it longer: {how_to_train_longer(run)}"
        case "stopped" | "interrupted" | "failed" | "crashed":
            return f"the run {ENDED[state]}; to continue it: trainkit resume {quote(run)}"
    return ""


def farewell(run: Path, state: State | Literal["replayed"]) -> str:
    """Return what to print when the dashboard has closed: the run's state, how to come back and how to stop it."""
    back = f"  come back:  trainkit watch {quote(run)}"
    match state:
        case "replayed":
            return f"left the replay of {run}\n  see it again:  trainkit watch {quote(run)} --replay"
        case "waiting" | "starting" | "caching" | "compiling" if not (run / SOCKET).exists():
            # the log may not know the process
            if (trainer := lock_holder(run)) is None:
                return f"detached from {run}\n{back}"
            doing = "at work" if state == "waiting" else state
            return f"detached; the trainer is {doing} and continues\n{back}\n  stop it:    kill {trainer}"
        case "finished":
            return f"the run is finished: {run}"
        case "stopped" | "interrupted" | "failed" | "crashed":
            return f"the run {ENDED[state]}; to continue it:  trainkit resume {quote(run)}"
    return f"detached; the run continues\n{back}\n  stop it:    trainkit send {quote(run)} stop"


def present_rate(view: View) -> str:
    """Return the learning-rate factor that was commanded last and still applies."""
    texts = (marker.text for marker in reversed(view.markers) if marker.kind == "command")
    return next((text.removeprefix("rate ") for text in texts if text.startswith("rate ")), "1")
