"""The plan of a run on this machine's devices, and the events that report it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import jax

from trainkit.errors import FAILED, TrainkitError
from trainkit.events.log import EventLog
from trainkit.events.tail import of_kinds
from trainkit.parallel import devices
from trainkit.parallel.precision import compute_dtype
from trainkit.plan import Choice, DataSize, Devices, Plan, choices, make_plan
from trainkit.plan.size import BEYOND_RUN, check_estimate
from trainkit.recipe import Recipe
from trainkit.text import format_bytes
from trainkit.train.build import BuiltStep, choose_attention
from trainkit.train.program import Program

#: The share of a GPU's usable memory from which on a state leaves XLA too little to try its kernels in.
CROWDED = 0.5
#: Stands for data of unknown size where the number of steps does not matter.
UNKNOWN_SIZE = DataSize(examples=1, tokens=1, documents=1, bytes=1)


def plan_of(recipe: Recipe, *, vocab_size: int, data: DataSize | None, directory: Path | None = None) -> Plan:
    """Return the plan on this machine's devices.

    Args:
        data: None while it is still being tokenised.
        directory: a run, whose last choice on such devices is used again if it is still possible, so that a resumed
            run computes the same in the same order.
    """
    local = devices.local(recipe.parallel.platform)
    planned = partial(plan_for, recipe, devices=local, vocab_size=vocab_size, data=data)
    plan = planned()
    choice = previous_choice(directory, local) if directory else None
    possible = list(choices(recipe, replicas=plan.batch.replicas, platform=local.platform))
    return planned(choice=choice) if choice in possible else plan


def plan_for(
    recipe: Recipe, *, devices: Devices, vocab_size: int, data: DataSize | None, choice: Choice | None = None
) -> Plan:
    """Return the plan on devices of this machine, with what attention needs there: its kernels are tried once.

    Raises:
        TrainkitError: as `make_plan`; a step needs far more memory than a device has; or the devices cannot compute in
            the plan's precision.
    """
    planned = partial(make_plan, recipe, devices=devices, vocab_size=vocab_size, data=data, choice=choice)
    plan = planned()
    attention = choose_attention(recipe, plan).keeps(compute_dtype(plan.compute))
    if attention != plan.attention:
        plan = planned(attention=attention)
    check_estimate(plan)
    return plan


def previous_choice(directory: Path, local: Devices) -> Choice | None:
    """Return the choice of the run's last plan; None without one, or if that was for devices other than `local`."""
    *_, plan = (None, *(event["plan"] for event in of_kinds(directory, "planned")))
    try:
        if plan is None or (plan["devices"]["kind"], plan["devices"]["count"]) != (local.kind, local.count):
            return None
        return Choice(micro=int(plan["batch"]["micro"]), remat=plan["remat"])
    except (KeyError, TypeError, ValueError):  # early versions logged no choice
        return None


def needs_room_to_compile(plan: Plan) -> bool:
    """Return whether the step is compiled before the state exists: XLA tries kernels on a GPU, in its memory."""
    usable, state = plan.devices.usable_bytes, plan.total_bytes - plan.step_bytes
    return plan.devices.platform == "gpu" and usable is not None and state > CROWDED * usable


def log_plan(plan: Plan, built: BuiltStep, *, total_steps: int, log: EventLog) -> None:
    """Write the `planned` event."""
    log.write(
        "planned",
        step=log.step,
        total_steps=total_steps,
        plan=plan.summary(),
        devices=[f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()],
        attention=built.attention.name,
        attention_reason=built.attention.reason,
    )
    if built.attention.fallback:
        log.write("alert", step=log.step, kind="kernels", message=built.attention.fallback)


def log_program(program: Program, *, guessed: Plan, total_steps: int, log: EventLog) -> None:
    """Write the `compiled` event of the step and, if the first guess did not fit, the plan that runs instead.

    Raises:
        TrainkitError: the step needs many times the memory of a device. What needs a little more is only an alert,
            because the compiler may be wrong.
    """
    plan, memory = program.plan, program.memory
    fields = {"memory": memory.by_category} if memory else {}
    log.write("compiled", step=log.step, what="train step", seconds=round(program.seconds, 3), **fields)
    if plan.choice != guessed.choice:
        log_plan(plan, program.built, total_steps=total_steps, log=log)
        message = f"{_describe(guessed)} does not fit: continuing with {_describe(plan)}"
        log.write("log", step=log.step, level="info", message=message)
    if program.built.measuring_step and not program.measuring_step:
        message = "no memory for the step with statistics: those of statistics.compute are off, except histograms"
        log.write("alert", step=log.step, kind="out of memory", message=message)
    limit = plan.devices.memory_bytes
    if memory and limit is not None and memory.peak > limit:
        problem = f"a step needs {format_bytes(memory.peak)} per device, which has {format_bytes(limit)}"
        if memory.peak > BEYOND_RUN * limit:
            fix = "make the model, the sequences or the batch smaller; for details: trainkit plan RECIPE"
            raise TrainkitError(problem, hint=fix, exit_code=FAILED)
        message = f"{problem}; to see what would fit: trainkit plan RECIPE"
        log.write("alert", step=log.step, kind="memory", message=message)


def _describe(plan: Plan) -> str:
    return f"micro_batch_size = {plan.batch.micro}, remat = {plan.remat}"
