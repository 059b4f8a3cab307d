"""Going on where a step found no memory: half the micro-batch, the same batches, in the same process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import jax

from trainkit.checkpoint import store
from trainkit.errors import FAILED, TrainkitError
from trainkit.events.commands import issued_commands
from trainkit.events.log import EventLog
from trainkit.plan import Choice, Plan, divisors
from trainkit.recipe import Recipe
from trainkit.run.program import Layouts, Program, build, compile_program, log_plan
from trainkit.run.proposal import hint
from trainkit.run.repeat import commands_to_repeat
from trainkit.run.replan import replan
from trainkit.run.start import Start
from trainkit.train.checkpointing import Checkpointing
from trainkit.train.control import Commands
from trainkit.train.live_schedule import LiveSchedule
from trainkit.train.memory import is_out_of_memory
from trainkit.train.metrics import MetricsWriter
from trainkit.train.prefetch import Prefetch
from trainkit.train.state import State
from trainkit.train.step import Step


@dataclass
class OutOfMemory:
    """What the loop calls where it found no memory; see `__call__`."""

    directory: Path
    recipe: Recipe
    start: Start
    program: Program
    layouts: Layouts
    restored: Callable[[Start], State]
    course: LiveSchedule
    orders: Commands
    feed: Prefetch
    meter: MetricsWriter
    saving: Checkpointing
    log: EventLog

    def __call__(self, state: State, error: Exception) -> tuple[State, Step]:
        """The state to go on from, and a step with a smaller micro-batch.

        That is `state` itself where the step failed before it took it. A device that finds out later has lost it: then
        the run goes back to its newest checkpoint, or to its beginning, as a resumed one does.

        Raises:
            TrainkitError: the micro-batch is one sequence.
            Exception: `error`, where it is about something else.
        """
        if not is_out_of_memory(error) or jax.process_count() > 1:
            raise error
        failed = self.program.plan
        self._shrink(error)
        plan = self.program.plan
        told = f"a step found no memory for {_split(failed)}: going on with {_split(plan)} and the same batches"
        if not _is_there(state):
            self.meter.forget()
            state = self._from_disk()
            told += f", from step {int(state.step)} again: the device had lost the state"
        self.log.write("alert", step=int(state.step), kind="out of memory", message=told)
        log_plan(plan, self.program.built, total_steps=self.course.total_steps, log=self.log)
        self.feed.restart(first=int(state.step), split=plan.batch)
        return self.program.adopt(state), self.program

    def _shrink(self, error: Exception) -> None:
        """Compile for the next smaller micro-batch for which the compiler finds memory."""
        while True:
            plan = self.program.plan
            fewer = [n for n in divisors(plan.batch.global_size // plan.batch.replicas) if 2 * n <= plan.batch.micro]
            if not fewer:
                raise out_of_memory_error("a step of one sequence at a time", plan, self.recipe) from error
            smaller = replan(self.recipe, plan, Choice(micro=fewer[-1], remat=plan.remat))
            self.program = replace(self.program, plan=smaller)
            try:
                self.program = compile_program(build(self.recipe, smaller), smaller, self.layouts)
            except jax.errors.JaxRuntimeError as again:
                if not is_out_of_memory(again):
                    raise
            else:
                seconds = round(self.program.seconds, 3)
                self.log.write("compiled", step=self.log.step, what="train step", seconds=seconds)
                return

    def _from_disk(self) -> State:
        """As a new attempt would begin; what this one was ordered since is carried out again at its steps."""
        self.saving.settle()
        newest = store.newest(self.directory)
        forget = self.start.reset_optimizer and (newest is None or newest.manifest.attempt != self.log.attempt)
        start = replace(self.start, step=None, reset_optimizer=forget, orders=tuple(issued_commands(self.directory)))
        state = self.restored(start)
        self.course.begin_again(state.live)
        self.orders.begin_again(commands_to_repeat(start, self.course, first=int(state.step), log=self.log))
        return state


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
    count = f"{plan.devices.count} device{'s' * (plan.devices.count > 1)}"
    return TrainkitError(
        f"{what} does not fit in the memory of the {count} ({plan.devices.kind})",
        hint=hint(recipe, plan),
        exit_code=FAILED,
    )


def _is_there(state: State) -> bool:
    """Whether every array can still be read: none was given to the step that failed, and none came from it."""
    leaves = jax.tree.leaves(state)
    if any(leaf.is_deleted() for leaf in leaves):
        return False
    try:
        jax.block_until_ready(leaves)
    except jax.errors.JaxRuntimeError:
        return False
    return True


def _split(plan: Plan) -> str:
    return f"micro-batch {plan.batch.micro} x accumulation {plan.batch.accumulation}"
