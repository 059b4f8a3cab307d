"""The texts of the model by step and prompt, two steps side by side; if it writes none, the newest evaluation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from PIL.Image import Image
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.events import Click, Resize
from textual.message import Message
from textual.widgets import Static

from trainkit.dashboard import theme
from trainkit.dashboard.charts import titles
from trainkit.dashboard.charts.columns import StepRange
from trainkit.dashboard.pages.page import Page
from trainkit.dashboard.panels.evaluation import Evaluations, evaluation_lines
from trainkit.dashboard.panels.rows import cell
from trainkit.dashboard.panels.sample import Text, prediction_lines, read_image, text_of
from trainkit.events.series import Series
from trainkit.events.view import SampleText, View
from trainkit.text import format_quantity, one_line

#: prompt -> sample, in the order of the prompts, by step.
ByStep = dict[int, dict[str, SampleText]]
#: The step shown beside the chosen one.
Beside = Literal["nothing", "before", "first"]
BESIDE: tuple[Beside, ...] = ("nothing", "before", "first")
#: Images that are kept in memory.
MOST_IMAGES = 64
#: Cells below which the list of steps is above the text.
NARROW = 78
EMPTY = "no samples: the texts that the model writes for the prompts of [sample] in the recipe appear here"
#: Below an evaluation that is longer than its frame.
SCROLL = "j k scroll"
UNKNOWN = "this prompt was not sampled at this step"


class Steps(Static):
    """The steps, newest first, one a line; a click chooses."""

    class Chosen(Message):
        def __init__(self, line: int) -> None:
            super().__init__()
            self.line = line

    def on_click(self, event: Click) -> None:
        self.post_message(self.Chosen(event.y))


class SamplesPage(Page):
    """The texts of one step: the newest, until a person chooses another."""

    NAME = "samples"
    WORDS = True
    DEFAULT_CSS = """
    SamplesPage #sample-all { height: 1fr; layout: horizontal; }
    SamplesPage #sample-steps { width: 25; padding: 0 1; }
    SamplesPage #sample-texts { width: 1fr; height: 1fr; }
    SamplesPage Text { width: 1fr; height: 1fr; }
    SamplesPage VerticalScroll {
        scrollbar-size-vertical: 1; scrollbar-color: $edge; scrollbar-color-hover: $dim; scrollbar-background: $ground;
    }
    SamplesPage.-column #sample-all { layout: vertical; }
    SamplesPage.-column #sample-steps { width: 1fr; height: 30%; max-height: 8; min-height: 4; }
    SamplesPage.-column #sample-texts { layout: vertical; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", "older", key_display="j"),
        Binding("k,up", "move(-1)", "newer", key_display="k"),
        Binding("home", "newest", show=False),
        Binding("n", "prompt(1)", "next prompt"),
        Binding("b", "prompt(-1)", "previous prompt"),
        Binding("w", "beside", "compare"),
        Binding("pagedown,space", "scroll(1)", "text down", show=False),
        Binding("pageup", "scroll(-1)", "text up", show=False),
    ]

    def __init__(self, run_directory: Path) -> None:
        super().__init__(run_directory)
        self._samples: ByStep = {}
        self._loss: Series | None = None
        self._step: int | None = None
        #: The chosen prompt; the first is shown if the samples do not have it.
        self._wanted = ""
        self._beside: Beside = "nothing"
        self._seen: object = None
        #: By path: an image, the reason why there is none, or None while it is being read.
        self._images: dict[str, Image | str | None] = {}
        self._evaluations = Evaluations(run_directory)

    def compose(self) -> ComposeResult:
        with Horizontal(id="sample-all"):
            with VerticalScroll(id="sample-steps", classes="framed", can_focus=False):
                yield Steps("", markup=False)
            with Horizontal(id="sample-texts"):
                yield Text(id="sample-text")
                yield Text(id="sample-other")

    def show_view(self, view: View, *, now: float) -> None:
        if not view.samples and self._evaluations.has_new(view):
            self.work(self._read_evaluations, group="evaluations", only=True)
        newest = view.samples[-1] if view.samples else None
        if (seen := (newest, len(view.samples), self.app.theme)) == self._seen:
            return
        self._seen = seen
        self._samples, self._loss = by_step(view.samples), view.series.get("train/loss")
        self._draw()

    async def _read_evaluations(self) -> None:
        await asyncio.to_thread(self._evaluations.read)
        self._draw()

    def preferences(self) -> dict[str, Any]:
        return {"prompt": self._wanted, "beside": self._beside}

    def adopt(self, preferences: Mapping[str, Any]) -> None:
        if isinstance(prompt := preferences.get("prompt"), str):
            self._wanted = prompt
        self._beside = next((beside for beside in BESIDE if beside == preferences.get("beside")), self._beside)

    def copy_text(self) -> str | None:
        """Return the texts of the step that is shown."""
        if not self._samples:
            return None
        return "\n\n".join(sample.text for sample in self._samples[self._chosen].values())

    def offers(self, action: str) -> bool:
        return bool(self._samples or (self._evaluations.results and action.startswith("scroll")))

    @property
    def _steps(self) -> list[int]:
        return sorted(self._samples, reverse=True)

    @property
    def _chosen(self) -> int:
        """The step that is shown: the chosen one if it has samples, otherwise the newest."""
        return self._step if self._step in self._samples else self._steps[0]

    @property
    def _prompts(self) -> list[str]:
        return list(dict.fromkeys(prompt for step in self._steps for prompt in self._samples[step]))

    @property
    def _prompt(self) -> int:
        """The index of the chosen prompt, which changes as prompts come and go."""
        return self._prompts.index(self._wanted) if self._wanted in self._prompts else 0

    def _draw(self) -> None:
        text, other = self.query_one("#sample-text", Text), self.query_one("#sample-other", Text)
        steps = self.query_one("#sample-steps")
        steps.display = bool(self._samples)
        other.display = bool(self._samples) and self._beside != "nothing"
        if not self._samples:
            lines = evaluation_lines(self._evaluations, text.scrollable_content_region.width)
            text.show("evaluation" if lines else "samples", Content("\n").join(lines or [cell(EMPTY, theme.DIM)]))
            text.border_subtitle = cell(SCROLL if len(lines) > text.size.height else "", theme.DIM)
            return
        text.border_subtitle = ""
        steps.border_title = Content.styled("step · loss", theme.DIM)
        self.query_one(Steps).update(Content("\n").join(self._step_line(step) for step in self._steps))
        prompt = self._prompts[self._prompt]
        if self._beside == "nothing":
            title = f"step {self._chosen:,} · {len(self._samples[self._chosen])} of {len(self._prompts)} prompts"
            text.show(title, Content("\n\n").join(self._all_prompts()), self._image(self._chosen, prompt))
            return
        of = f"prompt {self._prompt + 1} of {len(self._prompts)}"
        text.show(f"step {self._chosen:,} · {of}", self._one(self._chosen, prompt), self._image(self._chosen, prompt))
        compared = compared_with(self._chosen, prompt, self._samples, self._beside)
        if compared is None:
            other.show(
                f"the {self._beside} step", Content.styled("no earlier sample of this prompt is kept", theme.DIM)
            )
        else:
            which = "the previous step" if self._beside == "before" else "the first step"
            other.show(f"step {compared:,} · {which}", self._one(compared, prompt), self._image(compared, prompt))

    def _step_line(self, step: int) -> Content:
        loss = None if self._loss is None else titles.last(self._loss, StepRange(0, step))
        label = f"{step:>9,} {'' if loss is None else format_quantity(loss):>9}"
        chosen = step == self._chosen
        return Content.styled(f"{'▸' if chosen else ' '}{label}", f"bold {theme.BRIGHT}" if chosen else theme.DIM)

    def _one(self, step: int, prompt: str) -> Content:
        sample = self._samples[step].get(prompt)
        if sample is None:
            return Content.styled(UNKNOWN, theme.DIM)
        return Content("\n").join([text_of(sample), *prediction_lines(sample)])

    def _image(self, step: int, prompt: str) -> Image | str:
        """Return the image of a sample; a message while it is being read or if it cannot be shown."""
        sample = self._samples[step].get(prompt)
        if sample is None or not sample.image:
            return ""
        if sample.image not in self._images:
            self._images[sample.image] = None
            self.work(partial(self._read, sample.image), group="image")
        found = self._images[sample.image]
        name = one_line(sample.image)
        return f"reading {name} …" if found is None else f"{name}: {found}" if isinstance(found, str) else found

    async def _read(self, path: str) -> None:
        self._images[path] = await asyncio.to_thread(read_image, self.run_directory, path)
        while len(self._images) > MOST_IMAGES:
            del self._images[next(iter(self._images))]
        self._choose_again()

    @property
    def settled(self) -> bool:
        return None not in self._images.values()

    def _all_prompts(self) -> list[Content]:
        parts = []
        for number, prompt in enumerate(self._prompts):
            chosen = number == self._prompt
            head = f"{'▸' if chosen else ' '} prompt {number + 1} of {len(self._prompts)}"
            style = theme.TRAIN if chosen else theme.DIM
            parts.append(Content.assemble((head, style), "\n", self._one(self._chosen, prompt)))
        return parts

    def action_move(self, lines: int) -> None:
        """Choose an older or a newer step; scroll an evaluation, which has no steps to choose."""
        if self._samples:
            self._choose(self._steps.index(self._chosen) + lines)
        else:
            self.query_one("#sample-text", Text).scroll_relative(y=lines, animate=False)

    def action_newest(self) -> None:
        """Go to the newest step, and stay with the newest."""
        self._step = None
        self._choose_again()

    def action_prompt(self, prompts: int) -> None:
        """Choose the next prompt, or the one before."""
        if self._samples:
            self._wanted = self._prompts[(self._prompt + prompts) % len(self._prompts)]
            self._choose_again()

    def action_beside(self) -> None:
        """Show the previous step beside the chosen one, then the first, then none."""
        self._beside = BESIDE[(BESIDE.index(self._beside) + 1) % len(BESIDE)]
        self._choose_again()

    def action_scroll(self, pages: int) -> None:
        """Scroll the texts, all that are shown by the same amount."""
        for text in self.query(Text):
            text.scroll_relative(y=pages * max(1, text.size.height - 1), animate=False)

    def on_steps_chosen(self, event: Steps.Chosen) -> None:
        self._choose(event.line)

    def on_resize(self, event: Resize) -> None:
        self.set_class(event.size.width < NARROW, "-column")
        self.call_after_refresh(self._choose_again)

    def _choose(self, line: int) -> None:
        line = max(0, min(line, len(self._steps) - 1))
        self._step = self._steps[line] if line else None
        self._choose_again()

    def _choose_again(self) -> None:
        self._draw()
        self.call_after_refresh(self._into_sight)

    def _into_sight(self) -> None:
        """Scroll so that the chosen step and the chosen prompt can be seen."""
        if not self._samples:
            return
        steps = self.query_one("#sample-steps")
        line = self._steps.index(self._chosen)
        steps.scroll_to(y=max(0, line - steps.size.height // 2), animate=False)
        text = self.query_one("#sample-text", Text)
        if self._beside == "nothing":
            above = self._all_prompts()[: self._prompt]
            lines = sum(len(part.wrap(max(2, text.scrollable_content_region.width))) + 1 for part in above)
            text.scroll_to(y=lines, animate=False)


def by_step(samples: Iterable[SampleText]) -> ByStep:
    """Return the samples by step and prompt; the later one if a step has two of a prompt."""
    grouped: ByStep = {}
    for sample in samples:
        grouped.setdefault(sample.step, {})[sample.prompt] = sample
    return grouped


def compared_with(step: int, prompt: str, samples: ByStep, beside: Beside) -> int | None:
    """Return the previous, or the first, earlier step with a sample of the prompt; None if there is none."""
    earlier = sorted(other for other, there in samples.items() if other < step and prompt in there)
    if not earlier or beside == "nothing":
        return None
    return earlier[-1] if beside == "before" else earlier[0]
