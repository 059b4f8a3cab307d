"""What `scripts/faults.py` tries by the thousand, tried a few times here, and that its judge finds what is wrong."""

from __future__ import annotations

import os
import random
import sys

import pytest
import trainer
from places import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from fault_kinds import bit_flips, kills, power_cuts, workplace
from fault_kinds.workplace import Workplace, cut_off, losses_of

FLIPS = 48


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A finished run, which is trained in a process that is forked and not started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workplace, "trainkit", trainer.trainkit)
        return Workplace.make(tmp_path_factory.mktemp("faults") / "work")


def test_a_flipped_bit_in_any_file_is_found_or_changes_nothing(place: Workplace, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bit_flips, "RESUMED_EVERY", FLIPS)
    monkeypatch.setattr(bit_flips, "trainkit", trainer.trainkit)
    outcomes = list(bit_flips.flip_bits(place, FLIPS, random.Random(2)))
    assert not [outcome for outcome in outcomes if outcome.result in ("lost", "wrong")]
    assert {"exact", "refused"} <= {outcome.result for outcome in outcomes}
    assert any(outcome.resumed for outcome in outcomes), "a process judged some of them"


@pytest.fixture
def as_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let real trainers have the devices that the run of the workplace had."""
    around = trainer.environment()
    for name in set(os.environ) - set(around):
        monkeypatch.delenv(name)
    for name, value in around.items():
        monkeypatch.setenv(name, value)
    for module in (kills, power_cuts):
        monkeypatch.setattr(module, "trainkit", trainer.trainkit)


@pytest.mark.usefixtures("as_trained")
def test_a_power_cut_loses_nothing_that_was_committed(place: Workplace):
    if (reason := power_cuts.why_impossible()) is not None:
        pytest.skip(reason)
    outcomes = list(power_cuts.cut_power(place, 2, random.Random(3)))
    assert [outcome.result for outcome in outcomes] == ["exact", "exact"], outcomes


@pytest.mark.usefixtures("as_trained")
def test_a_run_that_is_killed_again_and_again_ends_as_one_that_is_not(place: Workplace):
    outcomes = list(kills.kill_trainers(place, 2, random.Random(4)))
    assert {outcome.result for outcome in outcomes} == {"exact"}, outcomes


@pytest.mark.parametrize("part", ["recipe", "data", "state", "log", "best"])
def test_what_a_resume_would_read_differently_without_a_word_is_wrong(place: Workplace, part: str):
    expected = bit_flips.Found("recipe", "data", "state", 18, "log", "best", reported=())
    found = expected._replace(**{part: "other"})
    states = {18: ("state", "log")}
    assert bit_flips.compare(found, expected, states, "bit 0").result == "wrong"
    assert bit_flips.compare(found._replace(reported=(part,)), expected, states, "bit 0").result == "reported"
    assert bit_flips.compare(expected, expected, states, "bit 0").result == "exact"
    states[12] = ("older state", "shorter log")
    older = expected._replace(step=12, state="older state", log="shorter log")
    assert bit_flips.compare(older, expected, states, "bit 0").result == "fell back"


def test_a_process_that_resumes_reports_a_changed_loss_in_the_log(place: Workplace, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bit_flips, "trainkit", trainer.trainkit)
    cut_off(place.run, after=bit_flips.KILLED_AFTER)
    log = place.run / "events.jsonl"
    log.write_text(log.read_text().replace(f'"train/loss": {place.losses[15]}', '"train/loss": 99.0'))
    assert losses_of(place.run)[15] == 99
    assert bit_flips.resume_and_judge(place, "loss of step 15").result == "reported"
