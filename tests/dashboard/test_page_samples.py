"""The page of samples: steps, prompts, two steps side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_run
import pytest
from fake_run import HOSTILE
from pages import drive, frame, only
from textual.pilot import Pilot

from trainkit.dashboard.app import Dashboard
from trainkit.dashboard.pages.samples import EMPTY, UNKNOWN, SamplesPage, by_step, compared_with
from trainkit.events.view import SampleText

PROMPTS = ("def main(", "class Queue:\n")


def sampled(step: int, prompt: str, text: str) -> dict[str, Any]:
    fields = {"prompt": prompt, "text": text, "seconds": 0.1}
    return {"type": "sampled", "t": 1.7e9 + step, "step": step, "attempt": 1, **fields}


def written(steps: range) -> list[dict[str, Any]]:
    return [sampled(step, prompt, f"{prompt}text {number} of {step}") for step in steps
            for number, prompt in enumerate(PROMPTS)]  # fmt: skip


@pytest.fixture(autouse=True)
def only_this_page(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, SamplesPage)


def test_without_samples_it_says_what_will_be_here(tmp_path: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        for key in ("j", "k", "n", "b", "w", "w", "home", "pagedown"):
            await pilot.press(key)
        assert EMPTY[:20] in frame(dashboard)

    drive(tmp_path, steps)


@pytest.mark.parametrize("size", [(200, 60), (60, 20)])
def test_the_newest_step_is_shown_and_the_keys_go_through_steps_and_prompts(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    run = fake_run.write(tmp_path / "run", [*fake_run.events(5, total=600)[:2], *written(range(10, 50, 10))])

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        page = dashboard.query_one(SamplesPage)
        expected = [("", 40), ("j", 30), ("down", 20), ("k", 30), ("up", 40), ("up", 40)]
        for key, step in expected:
            if key:
                await pilot.press(key)
                await pilot.pause()
            assert page._chosen == step and f"of {step}" in frame(dashboard)
        await pilot.press("n")
        await pilot.pause()
        assert f"text 1 of {page._chosen}" in frame(dashboard)
        await pilot.press("b", "b")
        assert page._prompts[page._prompt] == PROMPTS[1]

    drive(run, steps, size=size)


def test_w_shows_the_step_before_then_the_first_then_one_step_again(tmp_path: Path) -> None:
    run = fake_run.write(tmp_path / "run", written(range(10, 50, 10)))

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        for other, shown in (("step 30 · the previous step", "text 0 of 30"), ("step 10 · the first", "text 0 of 10")):
            await pilot.press("w")
            await pilot.pause()
            told = frame(dashboard)
            assert "text 0 of 40" in told and other in told and shown in told and "text 1" not in told
        await pilot.press("w")
        await pilot.pause()
        assert "text 1 of 40" in frame(dashboard) and not dashboard.query_one("#sample-other").display

    drive(run, steps)


def test_the_newest_is_followed_until_another_step_is_chosen(tmp_path: Path) -> None:
    run = fake_run.write(tmp_path / "run", written(range(10, 30, 10)))

    def more(step: int) -> None:
        with (run / fake_run.NAME).open("a") as file:
            file.writelines(fake_run.json.dumps(event) + "\n" for event in written(range(step, step + 1)))

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        page = dashboard.query_one(SamplesPage)
        for key, new, chosen in (("k", 30, 30), ("j", 40, 20), ("home", 50, 50)):
            await pilot.press(key)
            more(new)
            dashboard.load()
            await pilot.pause()
            assert page._chosen == chosen

    drive(run, steps)


def test_a_click_on_a_step_chooses_it(tmp_path: Path) -> None:
    run = fake_run.write(tmp_path / "run", written(range(10, 50, 10)))

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.click("Steps", offset=(3, 2))
        await pilot.pause()
        assert dashboard.query_one(SamplesPage)._chosen == 20

    drive(run, steps)


def test_hostile_prompts_and_texts_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    run = fake_run.write(tmp_path / "run", [sampled(1, HOSTILE, HOSTILE), sampled(2, "▸", HOSTILE)])

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert UNKNOWN in frame(dashboard) and "[bold red]boo[/]" in frame(dashboard)
        for key in ("n", "j", "w"):
            await pilot.press(key)
            await pilot.pause()
            assert all(c == "\n" or c.isprintable() for c in frame(dashboard))

    drive(run, steps)


def test_the_step_compared_with_is_one_at_which_the_same_prompt_was_sampled() -> None:
    samples = by_step([SampleText(1, "a", ""), SampleText(2, "a", ""), SampleText(3, "b", ""), SampleText(4, "a", "")])
    assert compared_with(4, "a", samples, "before") == 2
    assert compared_with(4, "a", samples, "first") == 1
    assert compared_with(1, "a", samples, "first") is None and compared_with(3, "b", samples, "before") is None


def test_the_chosen_prompt_stays_chosen_when_new_ones_come_and_the_first_is_when_it_goes(tmp_path: Path) -> None:
    run = fake_run.write(tmp_path / "run", written(range(10, 30, 10)))

    def more(*events: dict[str, Any]) -> None:
        with (run / fake_run.NAME).open("a") as file:
            file.writelines(fake_run.json.dumps(event) + "\n" for event in events)

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        page = dashboard.query_one(SamplesPage)
        await pilot.press("n")
        more(sampled(30, "typed", "typed, and then"))
        dashboard.load()
        assert page._prompts == ["typed", *PROMPTS] and page._prompts[page._prompt] == PROMPTS[1]
        await pilot.press("n", "b")
        more(*(sampled(step, "typed", "again") for step in range(40, 110)))
        dashboard.load()
        await pilot.pause()
        assert page._prompts == ["typed"] and page._prompt == 0 and page.preferences()["prompt"] == PROMPTS[1]

    drive(run, steps)
