"""Which checkpoints black boxes keep, and which recipe a replay uses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from checkpoint_child import FACTS, state_at
from sample_recipe import write

from trainkit.checkpoint import store
from trainkit.checkpoint.manifest import Manifest
from trainkit.checkpoint.saver import Saver
from trainkit.events.log import EventLog
from trainkit.recipe.toml.load import load
from trainkit.recipe.toml.values import dumps
from trainkit.run.black_box import keep_checkpoint
from trainkit.run.recorded_inputs import recipe_with
from trainkit.run.replay import logged_steps
from trainkit.rundir import checkpoint_files
from trainkit.rundir.checkpoint_files import kept_steps


def test_black_boxes_keep_the_first_and_the_newest_of_the_checkpoints_before_them(tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep_last=9, on_saved=lambda saved: None)
    for step in (2, 4, 6, 8):
        saver.save(state_at(step), step=step, kind="rolling", provenance=FACTS)
        saver.wait()
    saver.close()
    keep_checkpoint(tmp_path, 1)
    assert kept_steps(tmp_path) == set(), "the run itself is where that step can be computed again from"
    checkpoint_files.mark(store.directory_of(tmp_path) / "8", keep=True)
    for step, kept in ((3, {2}), (3, {2}), (5, {2, 4}), (7, {2, 6}), (9, {2, 8})):
        keep_checkpoint(tmp_path, step)
        assert kept_steps(tmp_path) == kept | {8}, f"{step}: a person's mark stays"


def test_a_replay_is_compared_with_the_steps_that_count_and_knows_the_recipe_of_each(tmp_path: Path) -> None:
    started = dict(schema=1, name="n", pid=1, process_started=None, host="h", orders=[], versions={})
    for attempt, (recipe, first, last) in enumerate((("a", 0, 6), ("b", 4, 8), ("c", 7, 9)), start=1):
        log = EventLog(tmp_path, attempt=attempt)
        log.write("run_started", step=first, recipe=recipe, resumed_from=first or None, **started)
        for step in range(first + 1, last + 1):
            log.write("step", step=step, metrics={"train/loss": attempt + step / 100})
            if (attempt, step) == (2, 5):
                mark = log.mark()
        log.close()
    found = logged_steps(tmp_path, None, first=4, last=8)
    assert {step: (each.recipe, each.metrics["train/loss"]) for step, each in found.items()} == {
        4: ("a", 1.04), 5: ("b", 2.05), 6: ("b", 2.06), 7: ("b", 2.07), 8: ("c", 3.08),
    }  # fmt: skip
    manifest = Manifest.model_construct(log=mark, recipe="b")
    later = logged_steps(tmp_path, manifest, first=6, last=8)
    assert later == {step: each for step, each in found.items() if step >= 6}
    beyond = Manifest.model_construct(log=(10**6, ""), recipe="b")  # the log was made smaller after the checkpoint
    assert logged_steps(tmp_path, beyond, first=4, last=8) == found


def test_steps_are_computed_again_with_the_recipe_that_a_checkpoint_has_kept(tmp_path: Path) -> None:
    before, present = load(write(tmp_path), ["train.max_grad_norm=0.5"]), load(write(tmp_path), [])
    fingerprint = before.recipe.fingerprint()
    text = dumps(before.recipe, before.origins, before.path)
    saver = Saver(tmp_path, on_saved=lambda saved: None)
    saver.save(state_at(2), step=2, kind="rolling", provenance=replace(FACTS, recipe=fingerprint, recipe_text=text))
    saver.close()
    found, is_known = recipe_with(tmp_path, fingerprint, present)
    assert is_known and found.recipe == before.recipe
    assert recipe_with(tmp_path, present.recipe.fingerprint(), present) == (present, True)
    assert recipe_with(tmp_path, "another", present) == recipe_with(tmp_path, None, present) == (present, False)
