"""[schedules] of batches: their size, the length of their sequences, and the mixture of their sources."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import data_room as room
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_recipe import changed, write

from trainkit.cli.plan_table import lines
from trainkit.cli.schedule_plot import draw_schedules
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache import build as caches
from trainkit.data.cache.token_cache import Cache
from trainkit.errors import TrainkitError
from trainkit.plan import Devices, make_plan
from trainkit.recipe import Recipe
from trainkit.recipe.sections.embedding_task import Embedding
from trainkit.recipe.sections.schedules import Schedules
from trainkit.recipe.sections.stages import STAIRS, Stages, mixture_stages, token_stages
from trainkit.recipe.spec import with_tuples
from trainkit.recipe.toml.load import check_lengths, load
from trainkit.recipe.toml.values import differences
from trainkit.rundir.changes import check_changes

SIZES = ((0, 2), (3, 4), (5, 8))


def scheduled(recipe: Recipe, **train: Any) -> Recipe:
    """Return the recipe with these `[schedules]`."""
    return recipe.model_copy(update={"schedules": Schedules.model_validate(with_tuples(train))})


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 9)), min_size=1, max_size=5), st.integers(0, 400))
def test_stages_count_as_a_sum_over_the_steps_does(parts: list[tuple[int, int]], total: int) -> None:
    begins = np.cumsum([0, *(length for length, _ in parts[:-1])]).tolist()
    stages = Stages([(begin, value) for begin, (_, value) in zip(begins, parts, strict=True)])
    assert [stages.before(step + 1) - stages.before(step) for step in range(60)] == list(map(stages.at, range(60)))
    assert stages.before(0) == 0
    fewest = stages.steps_for(total)
    assert stages.before(fewest) >= total and (fewest == 0 or stages.before(fewest - 1) < total)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Cache]:
    directory = tmp_path_factory.mktemp("mixed")
    sources = []
    for number, name in enumerate("ab"):
        texts = [room.text(100 * number + i, words=60) for i in range(30)]
        path = room.write_jsonl(directory / f"{name}.jsonl", texts)
        sources.append({"path": str(path), "name": name, "weight": 1.0})
    recipe = room.recipe(directory, *sources, batch_size=8)
    return recipe, caches.build(recipe)


def tokens(data: TrainSet, steps: int) -> np.ndarray:
    return np.concatenate([data.batch(step)["tokens"] for step in range(steps)])


def test_batches_of_any_size_have_the_same_examples_in_the_same_order(mixed: tuple[Recipe, Cache]) -> None:
    recipe, cache = mixed
    plain, grown = TrainSet(cache, recipe), TrainSet(cache, scheduled(recipe, batch_size=SIZES))
    assert [len(grown.batch(step)["tokens"]) for step in range(7)] == [2, 2, 2, 4, 4, 8, 8]
    np.testing.assert_array_equal(tokens(grown, 9), tokens(plain, 6)[:46])
    np.testing.assert_array_equal(grown.batch(5, np.array([1, 6]))["tokens"], grown.batch(5)["tokens"][[1, 6]])
    assert [row.example for row in grown.rows(4)] == [row.example for row in plain.rows(1)][2:6]
    assert sum(grown.epochs(5).values()) == pytest.approx(14 / 8 * sum(plain.epochs(1).values()), rel=0.2)


def test_batches_of_tokens_change_at_the_first_step_after_so_many_tokens(mixed: tuple[Recipe, Cache]) -> None:
    recipe, cache = mixed
    length = recipe.data.positions
    tokens = [[0, 2 * length], [5 * length, 4 * length], [13 * length + 1, 8 * length]]
    by_tokens = scheduled(recipe, batch_tokens=tokens)
    assert by_tokens.batch_sizes.begins == [0, 3, 5] and by_tokens.batch_sizes.values == [2, 4, 8]
    same = scheduled(recipe, batch_size=[[0, 2], [3, 4], [5, 8]])
    ours, theirs = TrainSet(cache, by_tokens), TrainSet(cache, same)
    for step in (2, 4, 5, 9):
        np.testing.assert_array_equal(ours.batch(step)["tokens"], theirs.batch(step)["tokens"])
    assert ours.schedule_values(3) == {"schedules/batch_size": 4}
    # an end within a stage that has begun: each stage has a step
    assert token_stages([(0, 64), (1, 32), (2, 96)], 32) == ((0, 2), (1, 1), (2, 3))


@pytest.mark.parametrize("encoding", ["pack", "pad", "windows"])
def test_padded_and_packed_rows_are_cut_with_all_their_tokens(tmp_path: Path, encoding: str) -> None:
    texts = room.write_jsonl(tmp_path / "a.jsonl", [room.text(i, words=1 + 2 * i) for i in range(12)])
    recipe = room.recipe(tmp_path, texts, batch_size=8, sequence_length=64, encoding={"type": encoding})
    data = TrainSet(caches.build(recipe), scheduled(recipe, sequence_length=[[0, 16], [1, 64]]))
    whole, cut = data.batch(0), data.cut_batch(0)
    for name in ("tokens", "targets", "weights"):
        np.testing.assert_array_equal(cut[name].reshape(8, 64), whole[name])
    assert {name: array.shape for name, array in cut.items()} == {
        name: shape for name, (shape, _) in data.layouts()[16].items()
    }
    if encoding != "pack":
        np.testing.assert_array_equal(cut["filled"].reshape(8, 4).sum(1), whole["filled"])
        assert (cut["filled"] == 0).any(), "parts without a token"
        return
    np.testing.assert_array_equal(cut["segments"].reshape(8, 64), whole["segments"])
    positions = whole["positions"].reshape(-1, 16)
    assert positions[:, 0].any(), "rows that begin within a document"
    column = np.arange(16)
    np.testing.assert_array_equal(cut["positions"], np.where(positions > column, column, positions))


@pytest.mark.parametrize("separate", [False, True])
def test_short_sequences_are_parts_of_the_same_rows(tmp_path: Path, separate: bool) -> None:
    texts = room.write_jsonl(tmp_path / "a.jsonl", [room.text(i, words=3 + 5 * i) for i in range(12)])
    recipe = room.recipe(tmp_path, texts, batch_size=4, encoding={"type": "concatenate", "separate": separate})
    cache = caches.build(recipe)
    data = TrainSet(cache, scheduled(recipe, sequence_length=[[0, 4], [2, 8], [3, 16]]))
    short = TrainSet(cache, recipe.model_copy(update={"data": recipe.data.model_copy(update={"sequence_length": 4})}))
    for step, length in enumerate((4, 4, 8, 16)):
        whole, cut = data.batch(step), data.cut_batch(step)
        assert cut["tokens"].shape == (64 // length, length)
        for name in ("tokens", "targets", "weights"):
            np.testing.assert_array_equal(cut[name].reshape(4, 16), whole[name])
        assert {name: array.shape[1:] for name, array in cut.items()} == {
            name: shape[1:] for name, (shape, _) in data.layouts()[length].items()
        }
    # what is in a short row does not depend on whether it was cut
    found, all_short = data.cut_batch(1), [short.batch(step) for step in range(short.examples // 4)]
    known = {row.tobytes(): (batch, at) for batch in all_short for at, row in enumerate(batch["tokens"])}
    same = [(at, known[row.tobytes()]) for at, row in enumerate(found["tokens"]) if row.tobytes() in known]
    assert len(same) >= 8
    for at, (batch, other) in same:
        name = "positions" if separate else "filled"
        np.testing.assert_array_equal(found[name][at], batch[name][other])
        if separate:
            ours, theirs = (found["segments"][at], batch["segments"][other])
            np.testing.assert_array_equal(np.diff(ours) != 0, np.diff(theirs) != 0)


def test_a_mixture_follows_its_lines_and_is_as_ever_without_them(mixed: tuple[Recipe, Cache]) -> None:
    recipe, cache = mixed
    changing = scheduled(recipe, mixture={"a": [[100, 1.0], [300, 0.0]]})
    plain, data = TrainSet(cache, recipe), TrainSet(cache, changing)
    assert mixture_stages(recipe.data.train) == {0: [1.0, 1.0]}
    np.testing.assert_array_equal(tokens(data, 100), tokens(plain, 100))

    def seen(first: int, last: int) -> np.ndarray:
        return np.diff([data._mixture.counts_before(8 * step) for step in (first, last)], axis=0)[0]  # type: ignore[union-attr]

    for first, last, share in ((100, 200, 0.43), (200, 300, 0.19)):
        steps = np.arange(first, last) + 0.5
        exact = np.mean((300 - steps) / 200 / (1 + (300 - steps) / 200))
        assert exact == pytest.approx(share, abs=0.01)
        assert seen(first, last)[0] / (8 * (last - first)) == pytest.approx(exact, abs=0.04)
    assert seen(300, 400)[0] == 0
    again = TrainSet(cache, changing)
    for step in (350, 150, 222):
        np.testing.assert_array_equal(again.batch(step)["tokens"], data.batch(step)["tokens"])
    assert data.schedule_values(200) == {"schedules/mixture/a": pytest.approx(1 / 3, abs=0.01),
                                   "schedules/mixture/b": pytest.approx(2 / 3, abs=0.01)}  # fmt: skip
    assert plain.schedule_values(200) == {}


@pytest.mark.parametrize(
    ("weight", "table", "where"),
    [
        ("1.0", "mixture = { a = [[0, 1.0], [10, 0.0]] }", "schedules.mixture.a"),
        ("[[0, 1.0], [10, 0.0]]", "", "data.train.0.weight"),
    ],
)
def test_a_mixture_of_nothing_is_refused_by_check_where_it_is_scheduled(
    tmp_path: Path, weight: str, table: str, where: str
) -> None:
    source = ("[[data.train]]", f'[[data.train]]\nname = "a"\nweight = {weight}')
    path = write(tmp_path, changed(source, ("[optimizer]", f"[schedules]\n{table}\n[optimizer]")))
    said = rf"{path.name}:\d+: {where}: from step 10 on every source has the weight 0"
    with pytest.raises(TrainkitError, match=said):
        load(path)


def test_a_line_is_a_staircase_of_few_steps(tmp_path: Path) -> None:
    recipe = room.recipe(tmp_path, {"path": "a", "name": "a", "weight": 2.0}, {"path": "b", "name": "b", "weight": 1.0})
    stages = mixture_stages(recipe.data.train, {"a": ((0, 1.0), (10_000, 0.5))})
    assert len(stages) == STAIRS + 1
    assert all(before[0] > after[0] for before, after in pairwise(stages.values()))
    assert stages[5000][0] == pytest.approx(1.5, abs=0.01) and stages[10_000] == [1.0, 1.0]


def written(directory: Path, table: str) -> Path:
    return write(directory, changed(("[optimizer]", f"[schedules]\n{table}\n[optimizer]")))


def test_the_plan_counts_tokens_and_work_of_all_stages_and_lists_them(tmp_path: Path) -> None:
    table = "batch_size = [[0, 2], [10, 8]]\nsequence_length = [[0, 16], [4, 64]]"
    recipe, plain = load(written(tmp_path, table)).recipe, load(write(tmp_path, changed())).recipe
    one: Any = {"devices": Devices(count=1), "vocab_size": 300, "data": None}
    plan, before = make_plan(recipe, **one), make_plan(plain, **one)
    assert plan.total_tokens == 64 * (10 * 2 + 10 * 8) and before.stages == ()
    assert [(s.begin, s.batch_size, s.length) for s in plan.stages] == [(0, 2, 16), (4, 2, 64), (10, 8, 64)]
    short, _, whole = (stage.flops_per_token for stage in plan.stages)
    assert short < whole == before.flops_per_token
    assert plan.total_flops == short * 4 * 2 * 64 + whole * (plan.total_tokens - 4 * 2 * 64)
    assert plan.accumulations(16) == [2 // plan.batch.micro] and len(plan.accumulations(64)) == 2
    assert plan.accumulations(32) == [], "nothing is compiled for a length that no step has"
    said = "\n".join(lines(plan, name="x", data=None))
    assert "from step 1: 2 sequences of 64, cut into sequences of 16" in said and "3 shapes of batches" in said
    drawn = "\n".join(draw_schedules(recipe, steps=plan.steps, width=80))
    assert "sequences in a batch" in drawn and "length of sequences" in drawn
    length = {"steps": None, "tokens": plan.total_tokens}
    by_tokens = recipe.model_copy(update={"train": recipe.train.model_copy(update=length)})
    assert make_plan(by_tokens, **one).steps == plan.steps


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("batch_size = [[1, 4], [5, 8]]", "must begin at step 0 and list its steps in rising order, found .1, 5"),
        ("batch_size = [[0, 2], [5, 4]]", "batch_size reaches 4, and train.batch_size = 8"),
        ("batch_size = [[0, 4], [9999, 8]]", "schedules.batch_size changes at step 10,000, and the run has"),
        ("batch_size = [[0, 0]]", "schedules.batch_size"),
        ("batch_size = [[0, 8]]\nbatch_tokens = [[0, 512]]", "contradict each other: give one of them"),
        ("batch_tokens = [[0, 100], [999, 512]]", "100 is no multiple of data.sequence_length = 64: write 64 or 128"),
        ("batch_tokens = [[0, 64], [999, 1024]]", "reaches 1024, which is 16 sequences, and train.batch_size = 8"),
        ("batch_tokens = [[9, 64], [1, 512]]", "must begin at token 0 and list its tokens in rising order"),
        ("batch_tokens = [[0, 64], [640000, 512]]", "batch_tokens changes at step 10,001, and the run has"),
        ("sequence_length = [[0, 10], [5, 64]]", "10 does not divide data.sequence_length = 64"),
        ("sequence_length = [[0, 32]]", "reaches 32, and data.sequence_length = 64"),
        ("mixture = { web = [[0, 1.0], [10, 0.5]] }", 'no \\[\\[data.train\\]\\] has name = "web" and a weight'),
        ("batch_siz = [[0, 8]]", "did you mean batch_size"),
    ],
)
def test_wrong_schedules_of_batches_are_refused(tmp_path: Path, table: str, said: str) -> None:
    path = written(tmp_path, table)
    with pytest.raises(TrainkitError, match=said):
        check_lengths(load(path), "full")


@pytest.mark.parametrize(
    ("table", "data", "said"),
    [
        ("batch_tokens = [[0, 512]]", '{ type = "pack" }', "count sequences, with schedules.batch_size"),
        ("sequence_length = [[0, 64]]", '{ type = "pad", buckets = [16] }', 'data.encoding = { type = "pack" }'),
    ],
)
def test_what_an_encoding_cannot_do_is_refused_with_what_fits(tmp_path: Path, table: str, data: str, said: str) -> None:
    path = written(tmp_path, table)
    path.write_text(path.read_text().replace("held_out", f"encoding = {data}\nheld_out"))
    with pytest.raises(TrainkitError) as refused:
        load(path)
    line = path.read_text().splitlines().index(table) + 1
    assert said in f"{refused.value.problem}" and refused.value.where.endswith(f"sample.toml:{line}")


def test_a_batch_that_cannot_be_divided_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "batch_size = [[0, 3], [9, 8]]")
    with pytest.raises(TrainkitError, match="batch_size = 3 cannot be divided") as refused:
        make_plan(load(path).recipe, devices=Devices(count=2), vocab_size=300, data=None)
    assert refused.value.where == "schedules.batch_size"
    path = written(tmp_path, "batch_tokens = [[0, 192], [999, 512]]")
    with pytest.raises(TrainkitError, match="batch_size = 3 cannot be divided") as refused:
        make_plan(load(path).recipe, devices=Devices(count=2), vocab_size=300, data=None)
    assert refused.value.where in refused.value.hint == "schedules.batch_tokens = 128 or 256"


def test_batches_with_no_common_divisor_are_planned_one_by_one_or_refused(tmp_path: Path) -> None:
    table = 'batch_size = [[0, 3], [9, 8]]\n[statistics]\nevery = 10\ncompute = ["noise-scale"]'
    one: Any = {"devices": Devices(count=1), "vocab_size": 300, "data": None}
    recipe = load(written(tmp_path, table)).recipe
    assert make_plan(recipe, **one).batch.micro == 1
    comparing = recipe.model_copy(update={"task": Embedding(type="embedding")})
    with pytest.raises(TrainkitError, match="would have 1 in all") as refused:
        make_plan(comparing, **one)
    assert refused.value.where == "schedules.batch_size"


def test_a_run_keeps_its_batches(mixed: tuple[Recipe, Cache]) -> None:
    recipe, _ = mixed
    for table in (
        {"batch_size": SIZES},
        {"batch_tokens": [[0, 64]]},
        {"sequence_length": [[0, 4], [2, 16]]},
        {"mixture": {"a": [[0, 0.5]]}},
    ):
        other = scheduled(recipe, **table)
        with pytest.raises(TrainkitError, match="cannot change within a run"):
            check_changes(recipe, other, differences(recipe, other), reset_optimizer=False)
