"""What the compiled step says of its memory, the search for one that fits, and what `trainkit plan` tells of both."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import trainer
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit.cli.plan import parse_bytes
from trainkit.cli.plan_table import lines
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.batches.layout import longest_layout
from trainkit.data.cache import build as caches
from trainkit.data.jobs import Stop, Stopped
from trainkit.errors import TrainkitError
from trainkit.events.log import EventLog
from trainkit.events.tail import read
from trainkit.models import flash_check, grouped_product
from trainkit.parallel import devices
from trainkit.parallel.hardware import available_memory, whole_memory
from trainkit.plan import SUPPOSED, USABLE, Choice, Devices, Memory, make_plan, proposal
from trainkit.recipe import Recipe
from trainkit.recipe.sections.outputs import Statistics
from trainkit.recipe.toml.load import load
from trainkit.train import choosing
from trainkit.train import program as building
from trainkit.train import program as fitting
from trainkit.train.build import build, state_shapes
from trainkit.train.forecast import forecast
from trainkit.train.planning import log_plan, log_program, previous_choice
from trainkit.train.program import compile_program, fit_program, with_statistics

LENGTH = 64
FEW = Devices(count=1)


def recipe(**train: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "schema": 1,
            "model": {"layers": 2, "hidden": 32, "heads": 4},
            "tokenizer": {"train": {"vocab_size": 300}},
            "data": {"sequence_length": LENGTH, "train": ({"type": "python-stdlib"},)},
            "train": {"steps": 10, "batch_size": 16, **train},
            "optimizer": {"learning_rate": 1e-3},
        }
    )


def planned(made: Recipe, devices: Devices = FEW):
    return make_plan(made, devices=devices, vocab_size=300, data=None)


def layouts(made: Recipe):
    return {LENGTH: longest_layout(made.data, batch_size=made.train.batch_size, vocab_size=300)}


@pytest.fixture(scope="module")
def program():
    made = recipe(micro_batch_size=16, remat="none")
    return compile_program(build(made, planned(made)), planned(made), layouts(made))


def with_share(memory, share):
    """What the step would take with `share` of all that is not the runtime's own."""
    return memory.program + share * (memory.peak - memory.program)


def test_the_categories_of_a_compiled_step_are_what_the_compiler_shows(program):
    (step,) = program.by_shapes.values()
    told, memory = step.memory_analysis(), program.memory
    assert sum(memory.temporary.values()) == told.temp_size_in_bytes
    state = state_shapes(program.built)
    assert memory.parameters == sum(leaf.size * 4 for leaf in jax.tree.leaves(state.params))
    assert memory.optimizer >= 2 * memory.parameters
    inside = memory.parameters + memory.optimizer + memory.rest
    assert inside == told.argument_size_in_bytes + told.output_size_in_bytes - told.alias_size_in_bytes
    assert memory.peak == sum(memory.by_category.values()) > inside + told.temp_size_in_bytes
    assert all(size >= 0 for size in memory.by_category.values())


def test_nothing_is_allocated_to_plan(program):
    before = {id(array) for array in jax.live_arrays()}
    made = recipe(micro_batch_size=8, remat="none")
    compile_program(build(made, planned(made)), planned(made), layouts(made))
    big = [array for array in jax.live_arrays() if id(array) not in before and array.size > 4]
    assert not big


def test_a_compiled_step_holds_its_share_of_a_state_that_is_divided():
    made = recipe(micro_batch_size=4, remat="none")
    shared = made.model_copy(update={"parallel": made.parallel.model_copy(update={"fsdp": 4})})
    plan = planned(shared, Devices(count=4))
    memory = compile_program(build(shared, plan), plan, layouts(shared)).memory
    assert memory is not None
    whole = 4 * plan.parameters
    assert whole / 4 <= memory.parameters < whole / 2


def test_a_first_guess_that_fits_is_compiled_once_and_one_that_does_not_makes_way(program):
    made = recipe(micro_batch_size="auto", remat="none")
    plan = planned(made)
    assert plan.choice.micro == 16
    assert fit_program(made, plan, build(made, plan), layouts(made)).plan.choice == plan.choice
    # the estimate lets 16 pass, the compiler does not
    limit = with_share(program.memory, 0.7)
    tight = dataclasses.replace(plan, devices=Devices(count=1, memory_bytes=int(limit / USABLE)))
    found = fit_program(made, tight, build(made, tight), layouts(made))
    assert found.plan.batch.micro < 16
    assert found.plan.batch.micro * found.plan.batch.accumulation == 16
    assert found.memory is not None and found.memory.peak <= limit
    assert found.plan.steps == plan.steps


def test_once_it_is_asked_to_stop_no_other_choice_is_compiled(monkeypatch):
    made, stop, tried = recipe(remat="none"), Stop(), []

    def too_large(built, plan, layouts):
        tried.append(plan.choice)
        stop.set()
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no workspace for autotuning")

    monkeypatch.setattr(building, "compile_program", too_large)
    with pytest.raises(Stopped):
        fit_program(made, planned(made), build(made, planned(made)), layouts(made), stop=stop)
    assert len(tried) == 1


@pytest.mark.parametrize(
    ("lengths", "told"),
    [((), 256), ((128,), 256), ((100,), None), ((64, 128), None)],
    ids=["one length", "all in blocks", "one in no block", "one too short for a block"],
)
def test_attention_is_chosen_for_all_lengths_of_batches_and_not_for_the_longest_only(monkeypatch, lengths, told):
    values = recipe().model_dump(by_alias=True)
    values["data"] |= {"sequence_length": 256, "encoding": {"type": "pad", "buckets": lengths}}
    made, chosen = Recipe.model_validate(values), []
    choose = devices.choose_attention

    def noted(device, compute, head_width, length, *others):
        chosen.append(length)
        return choose(device, compute, head_width, length, *others)

    monkeypatch.setattr(devices, "choose_attention", noted)
    build(made, planned(made))
    assert chosen == [told]


def test_kernels_that_do_not_work_are_replaced_before_the_first_step_and_an_alert_says_so(monkeypatch, tmp_path):
    values = recipe().model_dump(by_alias=True)
    values["data"] |= {"encoding": {"type": "pack"}}
    values |= {"precision": {"compute": "bfloat16"}}
    values["model"] = {
        "type": "mixtral",
        "layers": 1,
        "hidden": 32,
        "heads": 4,
        "kv_heads": 2,
        "intermediate": 48,
        "experts": 4,
    }
    made, asked = Recipe.model_validate(values), []
    monkeypatch.setattr(devices, "capabilities", lambda: devices.Capabilities("gpu", "NVIDIA H100", (9, 0)))
    monkeypatch.setattr(flash_check, "why_broken", lambda **heads: asked.append(heads) or "no Triton")
    monkeypatch.setattr(grouped_product, "why_broken", lambda: "no Pallas")
    built = build(made, planned(made))
    assert built.attention.name == "cudnn"
    heads = {"width": 8, "heads": 4, "groups": 2, "dtype": "bfloat16", "softcap": None, "sloped": False, "causal": True}
    assert asked == [heads]
    log_plan(planned(made), built, total_steps=10, log=EventLog(tmp_path, attempt=1))
    plan, alert = read(tmp_path)
    assert plan["attention"] == "cudnn" and (alert["type"], alert["kind"]) == ("alert", "kernels")
    assert "for packed rows do not work here: no Triton; attention is cudnn" in alert["message"]
    assert "for experts does not work here: no Pallas" in alert["message"]


def test_a_plan_for_devices_that_are_not_there_says_so_and_is_compiled_for_what_these_cpus_lack():
    made = recipe(micro_batch_size=4, remat="none")
    made = made.model_copy(update={"precision": made.precision.model_copy(update={"compute": "fp8"})})
    plan = planned(made, Devices(count=1, kind=SUPPOSED))
    assert forecast(made, plan).memory is not None
    assert "compiled for this many CPUs" in "\n".join(lines(plan, name="it", data=None))
    with pytest.raises(TrainkitError, match="fp8 needs an NVIDIA GPU"):
        build(made, planned(made))
    assert "CPUs" not in "\n".join(lines(planned(made), name="it", data=None))


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8), st.integers(1, 1500), st.floats(0.3, 3))
@settings(max_examples=200, deadline=None)
def test_the_search_takes_a_choice_that_fits_if_it_meets_one_and_else_the_smallest_it_has_seen(sizes, limit, error):
    choices = [Choice(micro=n, remat="none") for n in range(1, len(sizes) + 1)]
    tried: list[int] = []

    def attempt(choice: Choice) -> int:
        tried.append(choice.micro)
        return int(error * sizes[choice.micro - 1])

    def memory(size: int) -> Memory:
        return Memory(
            parameters=0, optimizer=0, snapshot=0, rest=0, batches=0, program=0, temporary={"workspace": size}
        )

    found = choosing.first_that_fits(
        choices,
        first=choices[0],
        attempt=attempt,
        memory=memory,
        estimate=lambda choice: sizes[choice.micro - 1],
        limit=limit,
    )
    seen = [int(error * sizes[n - 1]) for n in tried]
    assert len(set(tried)) == len(tried)
    assert found == (seen[-1] if seen[-1] <= limit else min(seen))
    if int(error * sizes[0]) <= limit:
        assert tried == [1]
    elif any(int(error * size) <= limit - 1 for size in sizes):
        assert found <= limit, "the smallest is tried before it is given up"


@pytest.mark.parametrize(
    ("needs", "limit", "expected", "tried"),
    [
        ({8: 800, 4: 400, 2: 200}, 900, 8, [8]),
        ({8: 800, 4: 400, 2: 200}, 500, 4, [4]),
        ({8: 800, 4: 400, 2: 200}, 300, 2, []),
        ({8: 990, 4: 400, 2: 200}, 900, 4, [8, 4]),
        ({8: 990, 4: 950, 2: 200}, 900, 2, [8, 4]),
    ],
    ids=["all", "half", "none", "not as large as it seemed", "none after all"],
)
def test_a_first_guess_that_leaves_room_is_enlarged_by_what_was_measured(needs, limit, expected, tried):
    seen: list[int] = []

    def attempt(choice: Choice) -> int:
        seen.append(choice.micro)
        return choice.micro

    def memory(micro: int) -> Memory:
        temporary = {"workspace": needs[micro]}
        return Memory(parameters=0, optimizer=0, snapshot=0, rest=0, batches=0, program=0, temporary=temporary)

    found = choosing.choose_better(
        2,
        [Choice(micro=n, remat="none") for n in (8, 4)],
        choice=Choice(micro=2, remat="none"),
        attempt=attempt,
        memory=memory,
        estimate=lambda choice: 1000 * choice.micro,  # ten times too much
        limit=limit,
    )
    assert found == expected and seen == tried


def test_a_compiler_without_memory_is_a_step_that_does_not_fit():
    choices = [Choice(micro=n, remat="none") for n in (8, 4, 2)]

    def attempt(choice: Choice) -> int:
        if choice.micro > 2:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no workspace for autotuning")
        return choice.micro

    def search(choices: list[Choice]) -> int:
        return choosing.first_that_fits(
            choices,
            first=choices[0],
            attempt=attempt,
            memory=lambda size: None,
            estimate=lambda choice: choice.micro,
            limit=None,
        )

    assert search(choices) == 2
    with pytest.raises(jax.errors.JaxRuntimeError):
        search(choices[:1])


def test_a_proposal_changes_one_key_before_two_and_the_batch_before_the_optimizer(program):
    made = recipe(micro_batch_size=16, remat="none")
    limit = int(with_share(program.memory, 0.6) / USABLE)
    plan = planned(made, Devices(count=1, memory_bytes=limit))
    found = forecast(made, plan)
    assert found.fits(plan.devices) is False
    assert found.proposal is not None
    assert list(found.proposal.changes) == ["train.micro_batch_size"]
    changed = proposal.with_changes(made, found.proposal.changes)
    again = forecast(changed, planned(changed, plan.devices))
    assert again.fits(plan.devices) is True, "what is proposed fits"
    assert again.memory == found.proposal.memory
    keys = [tuple(changes) for changes in proposal.candidates(made, plan)]
    assert [len(key) for key in keys] == sorted(len(key) for key in keys)
    assert keys[-1] == ("train.micro_batch_size", "train.remat", "optimizer.moments")
    with_more = proposal.candidates(made, planned(made.model_copy(), Devices(count=1)))
    assert all("parallel.fsdp" not in changes for changes in with_more), "one device has nobody to share with"


@pytest.mark.parametrize(
    "refusal",
    [
        TrainkitError("fsdp = 2 divides no dimension"),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no workspace for autotuning"),
    ],
    ids=["no layout", "no memory to compile"],
)
def test_a_change_that_cannot_be_laid_out_or_compiled_makes_way_for_the_next(monkeypatch, program, refusal):
    made = recipe(micro_batch_size=16, remat="none")
    plan = planned(made, Devices(count=1, memory_bytes=int(with_share(program.memory, 0.6) / USABLE)))
    first = next(proposal.likely(made, plan, program.memory))

    def refused(recipe, plan, *arguments, **options):
        if recipe.train.micro_batch_size == first["train.micro_batch_size"]:
            raise refusal
        return fit_program(recipe, plan, *arguments, **options)

    monkeypatch.setattr(building, "fit_program", refused)
    found = forecast(made, plan).proposal
    assert found is not None and found.changes != first


def test_where_nothing_helps_nothing_is_proposed():
    made = recipe()
    found = forecast(made, planned(made, Devices(count=1, memory_bytes=1000)))
    assert found.proposal is None and found.fits(Devices(count=1, memory_bytes=1000)) is False


@pytest.mark.parametrize(
    "encoding",
    [
        '{ type = "concatenate" }',
        "{ separate = true }",
        '{ type = "pack" }',
        '{ type = "windows" }',
        '{ type = "pad", buckets = [16] }',
    ],
)
def test_the_layout_that_is_planned_with_is_the_longest_of_those_that_come(tmp_path, monkeypatch, encoding):
    text = trainer.RECIPE.replace("held_out = 0.1", f"held_out = 0.1\nencoding = {encoding}")
    trainer.workplace(tmp_path, text, documents=12)
    monkeypatch.chdir(tmp_path)
    made = load(Path("tiny.toml")).recipe
    built = caches.build(made)
    found = TrainSet(built, made).layouts()
    assert found[max(found)] == longest_layout(made.data, batch_size=8, vocab_size=built.tokenizer.vocab_size)
    built.close()


@pytest.mark.parametrize(
    ("text", "size"), [("8GB", 8 * 10**9), ("80 GiB", 80 << 30), ("1.5k", 1500), ("500M", 5 * 10**8), ("7", 7)]
)
def test_a_size_of_memory_is_read_as_it_is_written(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "8 apples", "-1GB", "0GB", "1e9", "8IB"])
def test_what_is_no_size_of_memory_is_refused(text):
    with pytest.raises(TrainkitError, match="is not a size of memory"):
        parse_bytes(text)


def test_a_host_has_what_linux_calls_available_or_what_its_control_group_leaves(tmp_path):
    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    assert available_memory(tmp_path) is whole_memory(tmp_path) is None
    write("proc/meminfo", "MemTotal: 900 kB\nMemAvailable:     800 kB\n")
    assert available_memory(tmp_path) == 800 * 1024
    write("proc/self/cgroup", "0::/a/b\n")
    write("sys/fs/cgroup/a/b/memory.max", "max\n")
    write("sys/fs/cgroup/a/b/memory.current", "5\n")
    assert available_memory(tmp_path) == 800 * 1024, "without a limit"
    assert whole_memory(tmp_path) == 900 * 1024
    write("sys/fs/cgroup/a/memory.max", "5000\n")
    write("sys/fs/cgroup/a/memory.current", "4000\n")
    assert available_memory(tmp_path) == 1000
    write("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 500\n")
    assert (available_memory(tmp_path), whole_memory(tmp_path)) == (1500, 5000)


def test_a_plan_that_does_not_fit_ends_in_a_diff_with_which_it_does(tmp_path):
    whole_batch = 'micro_batch_size = 8\nremat = "none"'
    trainer.workplace(tmp_path, trainer.RECIPE.replace("micro_batch_size = 1", whole_batch))
    whole = trainer.trainkit(tmp_path, "plan", "tiny.toml", "--devices", "1")
    assert whole.returncode == 0, whole.stderr
    ((peak, unit),) = re.findall(r"memory +([\d.]+) (kB|MB) per device, compiled", whole.stdout)
    assert unit == "MB", "of which most is the runtime's: no change makes less of it"
    supposed = ("--devices", "1", "--memory", f"{(float(peak) - 0.2) / USABLE:.3f}MB")
    done = trainer.trainkit(tmp_path, "plan", "tiny.toml", *supposed)
    assert done.returncode == 0, done.stderr
    table, _, way_out = done.stdout.partition("it does not fit. With these changes it does")
    assert "DOES NOT FIT" in table and "COMPILED" in table and "attention" in table and " -\n" in table
    _, section, *changes = way_out.rstrip().splitlines()
    assert section.startswith(" [train]") and changes[0] == "-micro_batch_size = 8"
    assert (tmp_path / "tiny.toml").read_text().count(changes[0][1:]) == 1, "the line is there to take out"
    new = tomllib.loads("\n".join(line[1:] for line in changes if line.startswith("+")))
    overrides = [f"--set=train.{key}={json.dumps(value)}" for key, value in new.items()]
    again = trainer.trainkit(tmp_path, "plan", "tiny.toml", *supposed, *overrides)
    assert ": fits" in again.stdout and "does not fit" not in again.stdout


def test_the_speed_is_reported_where_the_peak_is_known(tmp_path):
    trainer.workplace(tmp_path)
    arguments = ("--devices", "2", "--mfu", "0.5", "--set", "parallel.peak_tflops=1e-6")
    done = trainer.trainkit(tmp_path, "plan", "tiny.toml", *arguments)
    assert done.returncode == 0, done.stderr
    (flops,) = re.findall(r"FLOPs +([\d.]+)k per token", done.stdout)
    (rate,) = re.findall(r"speed +([\d,]+) tokens/s at 50% MFU: .* for the whole run", done.stdout)
    assert int(rate.replace(",", "")) == pytest.approx(0.5 * 2 * 1e6 / (float(flops) * 1e3), abs=1.0)


def test_a_resumed_attempt_computes_with_what_the_one_before_it_chose(tmp_path):
    trainer.workplace(tmp_path, trainer.BARE.replace("micro_batch_size = 1", ""))
    run = tmp_path / "runs" / "tiny"
    here = Devices(count=1)
    assert previous_choice(run, here) is None
    assert trainer.trainkit(tmp_path, "run", "tiny.toml", "--plain", "--set", "train.steps=2").returncode == 0
    assert previous_choice(run, here) == Choice(micro=8, remat="none")
    assert previous_choice(run, Devices(count=2)) is previous_choice(run, Devices(count=1, kind="gpu")) is None
    planned = next(event for event in read(run) if event["type"] == "planned")
    compiled = next(event for event in read(run) if event["type"] == "compiled")
    assert planned["attention"] and planned["attention_reason"]
    assert compiled["memory"]["parameters"] > 0
    # as if that machine had had less memory
    log = run / "events.jsonl"
    log.write_text(log.read_text().replace('"micro": 8, "accumulation": 1', '"micro": 2, "accumulation": 4'))
    assert previous_choice(run, here) == Choice(micro=2, remat="none")
    assert (
        trainer.trainkit(tmp_path, "resume", "tiny", "--plain", "--set", "train.steps=3", "--raise-rate").returncode
        == 0
    )
    last = [event for event in read(run) if event["type"] == "planned"][-1]
    assert last["plan"]["batch"]["micro"] == 2


def test_arrays_count_what_one_device_holds_of_them():
    mesh = jax.make_mesh((4,), ("x",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    array = jax.device_put(np.zeros((8, 3), np.float32), split)
    assert fitting.device_bytes({"a": array}) == 2 * 3 * 4


def test_a_step_with_statistics_that_does_not_fit_is_left_out(program, monkeypatch):
    made = recipe(micro_batch_size=16, remat="none")
    asked = made.model_copy(update={"statistics": Statistics(every=2, compute=("norms",))})
    assert with_statistics(program, layouts(made)).measuring_step is None, "this recipe asks for none"

    def refused(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(building, "_compile", refused)
    program = dataclasses.replace(program, built=build(asked, planned(asked)))
    assert with_statistics(program, layouts(made)) is program
    monkeypatch.setattr(building, "_compile", lambda *_: ({}, dataclasses.replace(program.memory, rest=1 << 60)))
    small = dataclasses.replace(program, plan=planned(asked, Devices(count=1, memory_bytes=1 << 40)))
    assert with_statistics(small, layouts(made)) is small


def test_a_step_that_needs_many_times_the_memory_of_a_device_is_refused_and_one_that_needs_more_is_an_alert(
    program, tmp_path
):
    made = recipe(micro_batch_size=16, remat="none")
    small = dataclasses.replace(program, plan=planned(made, Devices(count=1, memory_bytes=program.memory.peak // 2)))
    with contextlib.closing(EventLog(tmp_path, attempt=1)) as log:
        log_program(small, guessed=small.plan, total_steps=4, log=log)
        large = dataclasses.replace(small, memory=dataclasses.replace(program.memory, rest=1 << 60))
        with pytest.raises(TrainkitError, match=r"a step needs 1\.2 EB per device, which has .*\nhint: make the model"):
            log_program(large, guessed=small.plan, total_steps=4, log=log)
    alerts = [event["message"] for event in read(tmp_path) if event["type"] == "alert"]
    assert len(alerts) == 1 and "per device, which has" in alerts[0]
