"""Images and predictions of samples: drawn where they can be, a word where they cannot, and never a crash or a wait."""

from __future__ import annotations

import os
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import fake_run
import pytest
from fake_run import HOSTILE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pages import drive, frame, only, settle
from PIL import Image
from terminal import Terminal
from textual.pilot import Pilot

from trainkit.dashboard.app import Dashboard
from trainkit.dashboard.pages.samples import SamplesPage
from trainkit.dashboard.panels import sample as images
from trainkit.dashboard.panels.sample import SampleImage, prediction_lines
from trainkit.dashboard.terminal import once
from trainkit.events import plain_log
from trainkit.events.log import EventLog
from trainkit.events.tail import read
from trainkit.events.view import SampleText

PREDICTIONS = [["cat", 0.7], ["dog", 0.2], ["[b]owl[/]", 0.1]]


@pytest.fixture(autouse=True)
def only_this_page(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, SamplesPage)


def sampled(step: int, prompt: str = "one", **fields: Any) -> dict[str, Any]:
    told = {"prompt": prompt, "text": "", "seconds": 0.1, **fields}
    return {"type": "sampled", "t": 1.7e9 + step, "step": step, "attempt": 1, **told}


def write(run: Path, *events: dict[str, Any]) -> Path:
    return fake_run.write(run, [*fake_run.events(3, total=600)[:2], *events])


def picture(path: Path, size: tuple[int, int] = (12, 8)) -> Path:
    """Red above, blue below."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, (255, 0, 0))
    image.paste((0, 0, 255), (0, size[1] // 2, *size))
    image.save(path)
    return path


def test_a_sample_with_an_image_and_predictions_is_written_read_and_reported_in_a_line(tmp_path: Path) -> None:
    log = EventLog(tmp_path, attempt=1)
    fields = {"prompt": "p", "text": "t", "seconds": 0.1}
    log.write("sampled", step=1, **fields, image="samples/1.png", predictions=PREDICTIONS, expected="dog\x1b")
    log.write("sampled", step=2, **fields, predictions=PREDICTIONS, expected="cat")
    log.write("sampled", step=3, **fields)
    with pytest.raises(AssertionError):
        log.write("sampled", step=4, **fields, picture="x")
    log.close()
    first, second, third = (plain_log.text(event) or "" for event in read(tmp_path))
    assert "cat 70.0%, dog 20.0%" in first and "wrong: expected dog␛" in first and "image samples/1.png" in first
    assert "right: cat" in second and "\n" not in third.partition("| t")[2]


def test_an_image_is_drawn_in_half_blocks_also_in_a_picture_of_the_page(tmp_path: Path) -> None:
    picture(tmp_path / "run" / "samples" / "1.png")
    run = write(tmp_path / "run", sampled(1, image="samples/1.png"))

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        rows = [row for row in frame(dashboard).split("\n") if "▀" * 12 in row]
        assert len(rows) == 4
        dashboard.theme = "plain"
        dashboard.draw_all()
        await pilot.pause()
        assert "▀" not in frame(dashboard) and "░" in frame(dashboard), "shades where there are no colours"

    drive(run, steps)
    assert once(run, page="samples").count("▀" * 12) == 4


def test_half_blocks_have_the_colours_of_the_pixels() -> None:
    image = Image.new("RGB", (1, 4))
    for place, color in enumerate([(1, 2, 3), (4, 5, 6), (7, 8, 9), (10, 11, 12)]):
        image.putpixel((0, place), color)
    drawn = images.blocks(image, 1, 2, colors=True)
    assert drawn.plain == "▀\n▀"
    assert [str(span.style) for span in drawn.spans] == ["rgb(1,2,3) on rgb(4,5,6)", "rgb(7,8,9) on rgb(10,11,12)"]


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 200), st.integers(1, 60))
def test_an_image_fits_its_room_and_is_not_made_larger(width: int, height: int, columns: int, lines: int) -> None:
    cells = images.size_in_cells(Image.new("1", (width, height)), columns, lines)
    assert 1 <= cells[0] <= min(columns, width) and 1 <= cells[1] <= min(lines, -(-height // 2))


def bomb(width: int, height: int) -> bytes:
    """A PNG that says it has so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_what_cannot_be_shown_is_a_word_and_nobody_waits_for_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    picture(tmp_path / "outside.png")
    (run / "folder").mkdir(parents=True)
    os.mkfifo(run / "fifo")
    (run / "link.png").symlink_to(tmp_path / "outside.png")
    (run / "loop").symlink_to("loop")
    (run / "text.png").write_text("no image")
    for side in (5_000, 10_000, 100_000):
        (run / f"{side}.png").write_bytes(bomb(side, side))
    (run / "empty.png").write_bytes(b"")
    with (run / "huge.png").open("wb") as file:
        file.truncate(images.MOST_BYTES + 1)
    expected = {
        "../outside.png": "outside the run's directory", "/etc/passwd": "outside the run's directory",
        "link.png": "outside the run's directory", "none.png": "cannot be read", "loop": "cannot be read",
        "a\0b": "cannot be read", "x" * 5000: "cannot be read", "fifo": "not a file", "folder": "cannot be read",
        "text.png": "not a readable image", "empty.png": "not a readable image", "huge.png": "too large",
        **{f"{side}.png": "too large" for side in (5_000, 10_000, 100_000)},
    }  # fmt: skip
    for path, word in expected.items():
        found = images.read_image(run, path)
        assert isinstance(found, str) and word in found, (path[:20], found)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from(images.FORMATS))
def test_a_damaged_image_is_drawn_or_a_word(tmp_path: Path, data: st.DataObject, kind: str) -> None:
    whole = tmp_path / "image"
    Image.linear_gradient("L").resize((24, 24)).convert("RGB").save(whole, format=kind)
    damaged = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    whole.write_bytes(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    found = images.read_image(tmp_path, "image")
    assert isinstance(found, str) or max(found.size) <= images.SIDE


def test_a_hostile_sample_is_inert_and_the_page_continues(tmp_path: Path) -> None:
    picture(tmp_path / "run" / "ok.png")
    labels = [[HOSTILE, 0.5], ["x" * 500, float("1e9")], ["", -1]]
    run = write(
        tmp_path / "run", sampled(1, "p", image=f"../{HOSTILE}", predictions=labels, expected=HOSTILE),
        sampled(1, "bad", predictions=[["x"]]), sampled(1, "worse", predictions=[[[], "x"]]),
        sampled(1, "worst", image=["x"]), sampled(2, "p", image="ok.png"),
    )  # fmt: skip

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        for key in ("j", "w", "n", "k"):
            await pilot.press(key)
            await settle(pilot)
            assert all(c == "\n" or c.isprintable() for c in frame(dashboard))
        assert "▀▀▀" in frame(dashboard) and dashboard._source.problem.startswith("2 lines")

    drive(run, steps, size=(90, 40))


@pytest.mark.parametrize(
    ("expected", "signs"),
    [("cat", ["✓", " ", " "]), ("dog", ["✗", "○", " "]), ("", [" ", " ", " "]), ("fox", ["✗", " ", " ", "○"])],
)
def test_predictions_are_bars_whose_signs_say_right_or_wrong(expected: str, signs: list[str]) -> None:
    sample = SampleText(1, "p", "", predictions=(("cat", 0.7), ("dog", 0.25), ("[b]owl[/]", 0.05)), expected=expected)
    lines = [line.plain for line in prediction_lines(sample)]
    assert [line[0] for line in lines] == signs
    full = [line.count("━") for line in lines]
    assert full[:3] == sorted(full[:3], reverse=True) and full[0] > full[1] and "70.0%" in lines[0]
    assert "[b]owl[/]" in lines[2]
    assert ["expected" in line for line in lines] == [expected != "" and f" {expected} " in line for line in lines]


def test_two_steps_have_their_images_side_by_side(tmp_path: Path) -> None:
    for step, size in ((1, (6, 4)), (2, (12, 8))):
        picture(tmp_path / "run" / f"{step}.png", size)
    run = write(tmp_path / "run", *(sampled(step, image=f"{step}.png") for step in (1, 2)))

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press("w")
        await settle(pilot)
        shown = [image for image in dashboard.query(SampleImage) if image.display]
        assert [image._blocks.size for image in shown] == [(12, 4), (6, 2)]

    drive(run, steps)


#: trainkit, that waits longer than a tenth of a second for what the terminal answers.
PATIENT = """
import textual_image._terminal as terminal
from trainkit.cli import program
read = terminal.read
terminal.read = lambda descriptor, length, timeout: read(descriptor, length, 240.0)
program()
"""


def test_a_terminal_that_draws_images_is_sent_them_as_such(tmp_path: Path) -> None:
    run = write(tmp_path / "run", sampled(1, image="1.png"))
    picture(run / "1.png")
    command = [sys.executable, "-c", PATIENT, "watch", str(run), "--readonly", "--page", "samples"]
    environment = {**os.environ, "TERM": "xterm-kitty", "XDG_STATE_HOME": str(tmp_path), "COLORTERM": "truecolor"}
    for name in ("TMUX", "STY", "NO_COLOR"):
        environment.pop(name, None)
    answers = {b"\x1b[c": b"\x1b[?62c", b"a=q": b"\x1b_Gi=1;OK\x1b\\"}
    terminal = Terminal(command, environment, cells=(40, 120), pixels=(1200, 800), answers=answers)
    try:
        terminal.until(rb"U=1")
        terminal.until("\U0010eeee".encode())  # a place for the image among the characters
    finally:
        terminal.close()
    assert all(asked in terminal.written for asked in answers), "both questions were asked"


def test_only_terminals_that_may_draw_images_are_asked_and_none_behind_a_multiplexer() -> None:
    assert images.may_draw({"TERM": "xterm-kitty"}) and images.may_draw({"TERM_PROGRAM": "WezTerm"})
    assert not images.may_draw({"TERM": "xterm-256color"}) and not images.may_draw({})
    assert not images.may_draw({"KITTY_WINDOW_ID": "1", "TMUX": "/tmp/x"})
