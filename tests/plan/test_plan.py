from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainkit.errors import TrainkitError
from trainkit.plan import ENOUGH_TOKENS, Choice, DataSize, Devices, choices, divisors, make_plan
from trainkit.plan.size import check_estimate
from trainkit.plan.split import USABLE_OF_GPU
from trainkit.plan.statistics import costs_in_words, statistic_costs, step_flops
from trainkit.recipe import Recipe
from trainkit.recipe.families.model import ModelSpec
from trainkit.recipe.sections.outputs import StatisticName, Statistics

DATA = DataSize(examples=1000, tokens=64_001, documents=10, bytes=300_000)
modest = settings(max_examples=80, deadline=None)


def recipe(train: dict[str, Any] | None = None, **sections: Any) -> Recipe:
    values = {
        "schema": 1,
        "model": {"layers": 2, "hidden": 32, "heads": 4},
        "tokenizer": {"train": {"vocab_size": 300}},
        "data": {"sequence_length": 64, "train": ({"type": "python-stdlib"},)},
        "train": {"steps": 10, "batch_size": 8, **(train or {})},
        "optimizer": {"learning_rate": 1e-3},
        **sections,
    }
    values["train"] = {key: value for key, value in values["train"].items() if value is not None}
    return Recipe.model_validate(values)


def plan(made: Recipe, *, devices: int = 1, data: DataSize | None = None, **device: Any):
    return make_plan(made, devices=Devices(count=devices, **device), vocab_size=300, data=data)


@given(
    size=st.integers(1, 96),
    micro=st.just("auto") | st.integers(1, 24),
    devices=st.integers(1, 9),
    fsdp=st.integers(1, 4),
)
@modest
def test_a_batch_is_split_without_remainder_or_the_error_names_sizes_that_are(size, micro, devices, fsdp):
    def split(**train: Any):
        given_batch = {"batch_size": size, "micro_batch_size": micro, **train}
        return plan(recipe(given_batch, parallel={"fsdp": fsdp}), devices=devices).batch

    try:
        batch = split()
    except TrainkitError as error:
        if error.where == "parallel.fsdp":
            assert devices % fsdp
            return
        sizes, _, micros = error.hint.partition("; or ")
        for text in re.findall(r"\d+", sizes):
            assert split(batch_size=int(text)).global_size == int(text)
        for text in re.findall(r"\d+", micros):
            assert split(micro_batch_size=int(text)).micro == int(text)
        assert re.search(r"\d", sizes)
    else:
        assert batch.micro * batch.accumulation * batch.replicas == batch.global_size == size
        assert batch.replicas == devices


@given(devices=st.integers(1, 64), fsdp=st.integers(1, 70))
@modest
def test_the_mesh_takes_every_device_or_the_error_names_an_fsdp_that_does(devices, fsdp):
    def mesh(fsdp: int):
        return plan(recipe({"batch_size": devices}, parallel={"fsdp": fsdp}), devices=devices)

    try:
        made = mesh(fsdp)
    except TrainkitError as error:
        for text in re.findall(r"\d+", error.hint):
            assert mesh(int(text)).fsdp_axis == int(text)
        assert re.search(r"\d", error.hint)
    else:
        assert made.data_axis * made.fsdp_axis == devices


def test_more_replicas_than_devices_are_an_error_and_fewer_are_not():
    assert plan(recipe(parallel={"data": 2}), devices=4).batch.replicas == 2
    with pytest.raises(TrainkitError, match="needs 8 devices; found 4") as found:
        plan(recipe(parallel={"data": 4, "fsdp": 2}), devices=4)
    assert found.value.hint == "parallel.data = 2"


@given(tokens=st.integers(1, 10**9), size=st.integers(1, 1000), length=st.integers(1, 5000))
@example(tokens=1, size=768, length=2605)
@example(tokens=2 * 1000 * 5000 + 1, size=1000, length=5000)
@modest
def test_tokens_are_rounded_up_to_whole_steps(tokens, size, length):
    data = {"sequence_length": length, "train": ({"type": "python-stdlib"},)}
    made = plan(recipe({"steps": None, "tokens": tokens, "batch_size": size}, data=data))
    assert 0 <= made.total_tokens - tokens < made.tokens_per_step
    assert made.total_tokens == made.steps * size * length


def test_epochs_need_to_know_the_data():
    made = recipe({"steps": None, "epochs": 1.5})
    assert plan(made, data=DATA).steps == 188  # 1.5 x 1000 / 8, rounded up
    assert plan(made, data=DATA).epochs == pytest.approx(1.504)
    with pytest.raises(TrainkitError, match="before the data is counted") as found:
        plan(made)
    assert "trainkit cache-data" in found.value.hint
    assert plan(recipe()).epochs is None


@pytest.mark.parametrize("encoding", ["pack", "pad", "windows"])
def test_where_examples_are_padded_tokens_are_counted_without_padding_and_need_to_know_the_data(encoding):
    data = {"sequence_length": 64, "train": ({"type": "python-stdlib"},), "encoding": {"type": encoding}}
    made = recipe({"steps": None, "tokens": 10_000}, data=data)
    size = replace(DATA, tokens_per_batch=100.5)  # of 8 x 64 positions
    assert plan(made, data=size).steps == 100  # 99.5, rounded up
    assert plan(made, data=size).total_tokens == 10_050
    with pytest.raises(TrainkitError, match="tokens = 10000 cannot be converted to steps before the data is counted"):
        plan(made)


def test_data_that_does_not_fill_one_example_is_an_error():
    empty = DataSize(examples=0, tokens=12, documents=1, bytes=40)
    with pytest.raises(TrainkitError, match="does not fill one example of 64 tokens"):
        plan(recipe(), data=empty)


def test_the_micro_batch_is_the_largest_that_fits_the_memory():
    made = recipe({"batch_size": 12, "remat": "none"})
    assert plan(made).batch.micro == 12
    whole = plan(made, platform="gpu", memory_bytes=10**12)
    state = whole.total_bytes - whole.bytes["activations"] - whole.bytes["logits"]
    one = (whole.total_bytes - state) // 12
    for fitting, micro in ((12, 12), (11, 6), (5, 4), (1, 1), (0, 1)):
        memory = int((state + (fitting + 0.5) * one) / USABLE_OF_GPU)
        small = plan(made, platform="gpu", memory_bytes=memory)
        assert small.batch.micro == micro, fitting
        assert small.fits == (fitting >= 1)


def test_a_step_that_no_device_could_ever_hold_is_refused_with_the_estimate():
    check_estimate(plan(recipe(), memory_bytes=10**9))
    for memory, has in ((10**9, "it has 1.0 GB"), (None, "no device has so much")):
        scores = plan(
            recipe(data={"sequence_length": 200_000_000, "train": ({"type": "python-stdlib"},)}), memory_bytes=memory
        )
        with pytest.raises(TrainkitError, match=f"a step needs about .* PB on each device; {has}") as refused:
            check_estimate(scores)
        assert refused.value.where == "data.sequence_length"
    with pytest.raises(TrainkitError, match="a step needs about") as refused:
        check_estimate(plan(recipe(model={"layers": 2, "hidden": 32768, "heads": 4}), memory_bytes=10**8))
    assert refused.value.where == "model"
    check_estimate(plan(recipe()), memory=lambda: pytest.fail("a small recipe asks for it"))
    with pytest.raises(TrainkitError, match=r"this machine has 1\.0 GB"):
        check_estimate(scores, memory=lambda: 10**9)


def test_state_is_divided_by_fsdp_and_activations_are_not():
    one, four = plan(recipe()), plan(recipe({"batch_size": 32}, parallel={"fsdp": 4}), devices=4)
    for part in ("parameters", "gradients", "optimizer", "snapshot"):
        assert four.bytes[part] == pytest.approx(one.bytes[part] / 4, abs=8)
    assert four.bytes["activations"] == one.bytes["activations"]
    assert one.bytes["parameters"] == 4 * one.parameters == 4 * sum(one.parameters_by_part.values())
    assert one.bytes["optimizer"] == 8 * one.parameters


def test_on_a_gpu_state_gradients_and_snapshot_take_16_bytes_a_parameter() -> None:
    made = plan(recipe(precision={"params": "float32"}), platform="gpu")
    assert "snapshot" not in made.bytes
    assert sum(made.bytes[part] for part in ("parameters", "optimizer", "gradients")) == 16 * made.parameters


def test_averages_are_float32_in_the_state_and_in_its_snapshot():
    few = {"params": "bfloat16"}
    none, some = plan(recipe(precision=few)), plan(recipe(precision=few, average={"start": 0.5}))
    assert some.bytes["averages"] == 4 * some.parameters == some.bytes["snapshot"] - none.bytes["snapshot"]
    assert "averages" not in none.bytes


def test_an_average_that_begins_after_the_run_is_refused():
    steps = plan(recipe()).steps
    plan(recipe(average={"type": "mean", "start": steps}))
    with pytest.raises(TrainkitError, match=f"start = {steps + 1} is beyond the run, which has {steps}"):
        plan(recipe(average={"type": "mean", "start": steps + 1}))


def test_flops_count_every_matrix_once_and_attention_as_causal():
    made = plan(recipe())
    matrices = 2 * (4 * 32 * 32 + 2 * 32 * 128) + 300 * 32
    attention = 2 * 2 * 2 * 32 * 65 // 2
    assert made.flops_per_token == 6 * matrices + 3 * attention
    assert made.total_flops == made.flops_per_token * 10 * 8 * 64


@pytest.mark.parametrize(
    ("asked", "platform", "found"),
    [
        ("auto", "cpu", "float32"),
        ("auto", "gpu", "bfloat16"),
        ("auto", "tpu", "bfloat16"),
        ("float32", "gpu", "float32"),
    ],
)
def test_compute_auto_is_bfloat16_where_that_is_fast(asked, platform, found):
    assert plan(recipe(precision={"compute": asked}), platform=platform).compute == found


def test_the_summary_is_plain_json():
    import json

    made = plan(recipe(), data=DATA)
    told = json.loads(json.dumps(made.summary()))
    assert told["batch"] == {"global_size": 8, "micro": 8, "accumulation": 1, "replicas": 1}
    assert told["steps"] == 10 and told["total_bytes"] == made.total_bytes and told["fits"] is None


@given(size=st.integers(1, 70), devices=st.integers(1, 9))
@modest
def test_an_evaluation_that_cannot_be_divided_over_the_devices_is_refused_with_sizes_that_can(size, devices):
    def batch(size: int):
        return plan(recipe({"batch_size": devices}, evaluate={"batch_size": size}), devices=devices).batch

    if size % devices == 0:
        assert batch(size).replicas == devices
        return
    with pytest.raises(TrainkitError, match=f"batch_size = {size} cannot be divided") as refused:
        batch(size)
    assert refused.value.where == "evaluate.batch_size"
    fitting = [int(text) for text in re.findall(r"\d+", refused.value.hint)]
    assert fitting and all(batch(size).replicas == devices for size in fitting)


def test_gradients_are_summed_in_float32_whatever_the_parameters_are():
    wide, narrow = plan(recipe()), plan(recipe(precision={"params": "bfloat16"}))
    assert narrow.bytes["parameters"] == wide.bytes["parameters"] / 2
    assert narrow.bytes["gradients"] == wide.bytes["gradients"] == 4 * wide.parameters


def test_choices_keep_the_micro_batch_large_before_they_keep_everything():
    made = recipe({"batch_size": 64})
    data = {"sequence_length": 1024, "train": ({"type": "python-stdlib"},)}
    found = list(choices(recipe({"batch_size": 64}, data=data), replicas=2, platform="gpu"))
    assert len(set(found)) == len(found) == 6 * 4
    assert found[0] == Choice(micro=32, remat="none")
    large = [choice.micro * 1024 >= ENOUGH_TOKENS for choice in found]
    assert large == sorted(large, reverse=True) and not large[-1]
    assert {c.remat for c in choices(made, replicas=1, platform="cpu")} == {"none", "dots", "blocks"}
    fixed = recipe({"batch_size": 64, "micro_batch_size": 4, "remat": "dots"})
    assert list(choices(fixed, replicas=1, platform="gpu")) == [Choice(micro=4, remat="dots")]


@given(size=st.integers(1, 64), remat=st.sampled_from(["none", "dots", "blocks"]), data=st.data())
@modest
def test_a_choice_goes_before_recipe_and_estimate_and_keeps_the_batch(size, remat, data):
    micro = data.draw(st.sampled_from(divisors(size)))
    made = recipe({"batch_size": size, "micro_batch_size": size, "remat": "none"})
    chosen = make_plan(
        made, devices=Devices(count=1), vocab_size=300, data=None, choice=Choice(micro=micro, remat=remat)
    )
    assert chosen.choice == Choice(micro=micro, remat=remat)
    assert chosen.batch.micro * chosen.batch.accumulation == size
    assert chosen.steps == plan(made).steps


def test_what_lives_within_a_step_is_part_of_the_whole():
    made = plan(recipe(precision={"compute": "bfloat16"}))
    assert 0 < made.step_bytes < made.total_bytes
    assert made.total_bytes - made.step_bytes == sum(made.bytes[w] for w in ("parameters", "optimizer", "snapshot"))
    assert made.tokens_per_parameter == made.total_tokens / made.parameters


@pytest.mark.parametrize(
    ("platform", "heads", "length", "flash"),
    [
        ("tpu", 2, 512, True),
        ("tpu", 4, 512, False),
        ("tpu", 2, 500, False),
        ("gpu", 4, 500, True),
        ("gpu", 1, 512, True),
        ("gpu", 64, 512, False),
    ],
)
def test_the_estimate_keeps_no_probabilities_where_a_flash_attention_is_chosen(platform, heads, length, flash):
    data = {"sequence_length": length, "train": ({"type": "python-stdlib"},)}
    made = recipe(model={"layers": 2, "hidden": 256, "heads": heads}, data=data)
    there, choice = Devices(count=1, platform=platform, kind="x"), Choice(micro=1, remat="none")
    planned = make_plan(made, devices=there, vocab_size=320, data=None, choice=choice)
    floats = made.model.activation_floats_per_token(sequence_length=length, remat="none", flash=flash)
    assert planned.bytes["activations"] == length * floats * 2


def test_the_noise_scale_has_two_micro_batches_or_is_refused() -> None:
    noise = {"statistics": {"every": 10, "compute": ("norms", "noise-scale")}}
    assert plan(recipe()).batch.accumulation == 1
    assert plan(recipe(**noise)).batch.accumulation == plan(recipe(**noise), devices=4).batch.accumulation == 2
    for train, where, hint in (
        ({"micro_batch_size": 8}, "train.micro_batch_size", "train.micro_batch_size = 4"),
        ({"batch_size": 1}, "train.batch_size", "train.batch_size of at least 2"),
    ):
        with pytest.raises(TrainkitError) as caught:
            plan(recipe(train, **noise))
        assert (caught.value.where, caught.value.hint) == (where, hint)


def test_what_statistics_remember_is_counted() -> None:
    without = plan(recipe()).bytes
    assert plan(recipe(statistics={"every": 10, "compute": ("norms",)})).bytes == without
    for name, copies in (("last-parameters", 1), ("cosines", 3)):
        kept = plan(recipe(statistics={"every": 10, "compute": (name,)})).bytes
        assert kept["statistics"] == copies * without["parameters"]
        assert kept["snapshot"] == without["snapshot"] + kept["statistics"]


def test_what_statistics_cost_is_in_words() -> None:
    def words(*names: str) -> str:
        return recipe(statistics={"every": 10, "compute": names}).statistics.in_words()

    assert (recipe().statistics.in_words(), words("histograms")) == ("", "")
    assert words("norms", "histograms") == "norms every 10 steps"
    passes = "last-parameters, hessian every 10 steps, with 29 gradients more"
    assert words("hessian", "last-parameters") == passes


def test_a_plan_says_what_each_statistic_costs() -> None:
    names = get_args(StatisticName)
    made = recipe({"micro_batch_size": 2}, statistics={"every": 10, "compute": names})
    planned = plan(made)
    costs = {cost.name: cost for cost in statistic_costs(made, planned)}
    assert set(costs) == set(names) - {"histograms"}
    whole, n = step_flops(planned), planned.trainable
    assert whole == planned.flops_per_token * 8 * 64 and planned.batch.accumulation == 4
    assert (costs["last-parameters"].passes, costs["hessian"].passes) == (1, 28)
    assert costs["hessian"].flops == pytest.approx(28 * whole, rel=0.1)
    assert costs["activations"].flops == round(whole / 12), "a forward pass of a fourth of the batch"
    scores = made.model.attention_flops_per_token(sequence_length=64) * 8 * 64 // 4 // 2
    assert costs["attention"].flops == scores, "the pass is that of activations"
    assert costs["noise-scale"].flops == 2 * n * 4
    assert [costs[name].kept for name in ("norms", "cosines", "last-parameters")] == [0, 12 * n, 4 * n]
    alone = recipe(statistics={"every": 1, "compute": ("attention",)})
    assert statistic_costs(alone, plan(alone))[0].flops > step_flops(plan(alone)) / 3
    rows = dict(costs_in_words(made, planned))
    assert rows["  hessian"].startswith("28 gradients more, ") and "keeps" in rows["  cosines"]
    assert rows["  activations"].startswith("a forward pass of a micro-batch, ")
    total = sum(cost.flops for cost in costs.values()) / whole
    assert rows[""] == f"together {total:.2%} of a step's FLOPs every 10 steps: {total / 10:.2%} on average"
    assert costs_in_words(recipe(statistics={"every": 10}), planned) == []


def test_statistics_that_would_never_be_computed_are_refused() -> None:
    for wrong, message in (
        ({"compute": ("norms",)}, "set statistics.every"),
        ({"every": 0}, "greater than or equal to 1"),
        ({"every": 1, "compute": ("norm",)}, "'norms'"),
        ({"every": 1, "compute": ()}, "at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            recipe(statistics=wrong)


def test_statistics_of_layers_are_refused_for_a_model_without_them() -> None:
    table = cast(ModelSpec, SimpleNamespace(type="table", kind="plain"))
    for name in ("activations", "attention"):
        with pytest.raises(ValueError, match=f'"{name}" is for transformers, and not for model.type = "table"'):
            Statistics(every=1, compute=("norms", name)).check_model(table)
        Statistics(every=1, compute=(name,)).check_model(recipe().model)
