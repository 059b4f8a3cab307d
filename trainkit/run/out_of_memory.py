"""What an attempt continues with after a step found no memory: a smaller micro-batch, the same batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import jax

from trainkit.checkpoint import store
from trainkit.errors import FAILED, TrainkitError
from trainkit.events.commands import issued_commands
from trainkit.events.log import EventLog
from trainkit.plan import Choice, Plan, divisors, replan
from trainkit.plan.proposal import hint
from trainkit.recipe import Recipe
from trainkit.run.start import Start
from trainkit.text import plural
from trainkit.train.build import BuiltStep, build
from trainkit.train.memory import is_out_of_memory
from trainkit.train.program import Layouts, Program, compile_program


@dataclass(frozen=True)
class Restart:
    """How a process continues after a step of the plan `failed` ran out of memory, with `step` steps dispatched.

    It starts with `plan` as any resumed attempt does, from the newest checkpoint or from the beginning.
    """

    failed: Plan
    plan: Plan
    step: int

    def report(self, *, first: int, log: EventLog) -> None:
        """Write the alert. `first` is the step from which training continues."""
        message = f"out of memory with {_split(self.failed)}: continuing with {_split(self.plan)} and the same batches"
        if first < self.step:
            message += f", again from step {first}, because the state after it was lost"
        log.write("alert", step=first, kind="out of memory", message=message)


def start_again(directory: Path, start: Start, *, log: EventLog) -> Start:
    """Return how an attempt that began as `start` says starts again: from its newest checkpoint, if any.

    The commands of this attempt are carried out again at their steps. An optimizer that was to be reset has been where
    this attempt has saved.
    """
    newest = store.newest(directory)
    saved = newest is not None and newest.manifest.attempt == log.attempt
    issued = (
        given for given in issued_commands(directory) if not start.forget_commands or given.attempt == log.attempt
    )
    return replace(
        start,
        step=None,
        reset_optimizer=start.reset_optimizer and not saved,
        forget_commands=False,
        issued=tuple(issued),
        profile=start.profile if start.profile and start.profile[0] > log.step else None,
    )


def smaller_plan(recipe: Recipe, plan: Plan) -> Plan:
    """Return the plan with the largest micro-batch that is at most half as large.

    Raises:
        TrainkitError: the micro-batch is one sequence.
    """
    fewer = [n for n in divisors(plan.batch.global_size // plan.batch.replicas) if 2 * n <= plan.batch.micro]
    if not fewer:
        raise out_of_memory_error("a step of one sequence at a time", plan, recipe)
    return replan(recipe, plan, Choice(micro=fewer[-1], remat=plan.remat))


def compile_smaller(recipe: Recipe, plan: Plan, built: BuiltStep, layouts: Layouts) -> Program:
    """Return the step of `plan` or, while the compiler itself finds no memory, of the next smaller one.

    Raises:
        TrainkitError: the compiler finds none for one sequence at a time.
    """
    while True:
        try:
            return compile_program(built, plan, layouts)
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
        plan = smaller_plan(recipe, plan)
        built = build(recipe, plan, task=built.task)


@contextmanager
def explain_out_of_memory(what: str, plan: Plan, recipe: Recipe) -> Iterator[None]:
    """Memory that runs out in this block, in which `what` is made, becomes an error with a way out."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory_error(what, plan, recipe) from error


def out_of_memory_error(what: str, plan: Plan, recipe: Recipe) -> TrainkitError:
    count = plural(plan.devices.count, "device")
    return TrainkitError(
        f"{what} does not fit in the memory of the {count} ({plan.devices.kind})",
        hint=hint(recipe, plan),
        exit_code=FAILED,
    )


def _split(plan: Plan) -> str:
    return f"micro-batch {plan.batch.micro} x accumulation {plan.batch.accumulation}"
