"""The keys of a replay: pause, faster, slower, back, forward, go to a step."""

from __future__ import annotations

from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.widgets import Input

from trainkit.dashboard.charts.viewport import viewport_of
from trainkit.dashboard.keys import Ask
from trainkit.errors import TrainkitError
from trainkit.rundir.follow import Replay

ACTIONS = ("play", "speed", "seek", "go_to_step")


class ReplayKeys(App[None]):
    """The keys of a replay, which precede those of every page, but not those of an input line, a dialog or a
    crosshair."""

    BINDING_GROUP_TITLE = "the replay"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "play", "pause replay", show=False, priority=True, tooltip="pause the replay, or continue it"),
        Binding("full_stop,greater_than_sign", "speed(1)", "faster", show=False, priority=True),
        Binding("comma,less_than_sign", "speed(-1)", "slower", show=False, priority=True),
        Binding("left,h", "seek(-1)", "back", show=False, priority=True, tooltip="back by a hundredth of the run"),
        Binding("right", "seek(1)", "forward", show=False, priority=True, tooltip="forward by a hundredth of the run"),
        Binding("G", "go_to_step", "go to step", show=False, priority=True, tooltip="go to a step (asks for it)"),
    ]

    replay: Replay | None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ACTIONS:
            if self.replay is None or len(self.screen_stack) != 1 or isinstance(self.focused, Input):
                return False
            if action == "seek" and viewport_of(self).pinned:
                return False
        return super().check_action(action, parameters)

    def draw_all(self) -> None:
        """Redraw everything, because the moment that is shown has changed."""
        raise NotImplementedError

    def action_play(self) -> None:
        """Continue or pause the replay."""
        if self.replay:
            self.replay.playing = not self.replay.playing
            self.draw_all()

    def action_speed(self, by: int) -> None:
        if self.replay:
            self.replay.faster(by)
            self.draw_all()

    def action_seek(self, steps: int) -> None:
        """Move by so many hundredths of the run, back where negative."""
        if self.replay:
            view = self.replay.view
            hundredth = max(1, (view.total_steps or 100) // 100)
            self._seek(max(1, view.step + steps * hundredth))

    def action_go_to_step(self) -> None:
        def answered(step: str | None) -> None:
            if step is not None:
                self._seek(int(step))

        if self.replay:
            explanation = f"Show the run as it was after this step. The replay is at step {self.replay.view.step:,}."
            self.push_screen(Ask("Go to step", explanation, check=_step), answered)

    def _seek(self, step: int) -> None:
        if self.replay:
            self.replay.seek(step)
            self.draw_all()


def status(replay: Replay) -> str:
    """Return how fast a replay runs, and its keys."""
    how = "ended" if replay.over else f"x{replay.speed:g}" if replay.playing else "paused"
    return f"replay {how}   space , . ← → G"


def _step(text: str) -> int:
    if not text.strip().isdecimal():
        raise TrainkitError("a step is a whole number, such as 100")
    return int(text)
