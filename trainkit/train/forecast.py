"""The memory that a run would need, by compiling its step: on this machine's devices, or on supposed ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

from trainkit.errors import TrainkitError
from trainkit.plan import Choice, Devices, Memory, Plan, count_in_steps, make_plan
from trainkit.plan.proposal import Proposal
from trainkit.recipe import Recipe
from trainkit.recipe.spec import with_tuples


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The micro-batch and remat that a run would choose, and the memory of its compiled step."""

    choice: Choice
    memory: Memory | None
    """None if the compiler does not report it."""
    attention: str
    attention_reason: str
    proposal: Proposal | None
    """If the step does not fit, changes that do; None if there are none, or none are needed."""

    def fits(self, devices: Devices) -> bool | None:
        """Return whether the step fits in the memory of the devices; None if unknown."""
        return None if self.memory is None else devices.have_room_for(self.memory.peak)


def forecast(recipe: Recipe, plan: Plan) -> Forecast:
    """Return the forecast of a plan by compiling its step in this process. Nothing is allocated on the devices.

    Raises:
        TrainkitError: the model cannot be sharded over the devices.
    """
    from jax.errors import JaxRuntimeError

    from trainkit.data.batches.layout import longest_layout
    from trainkit.plan import proposal
    from trainkit.train.build import build
    from trainkit.train.out_of_memory import is_out_of_memory
    from trainkit.train.program import fit_program

    def layouts(recipe: Recipe) -> dict[int, Any]:
        longest = longest_layout(
            recipe.data,
            batch_size=recipe.train.batch_size,
            vocab_size=plan.vocab_size,
            shifted=recipe.task.shifted,
            reference=recipe.task.reference,
        )
        return {recipe.data.positions: longest}

    def memory(recipe: Recipe, plan: Plan) -> Memory | None:
        try:
            return fit_program(recipe, plan, build(recipe, plan), layouts(recipe)).memory
        except TrainkitError:  # it cannot be sharded over the devices
            return None
        except JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return None

    built = build(recipe, plan)
    # the largest batches need most memory
    program = fit_program(recipe, replace(plan, stages=()), built, layouts(recipe), enlarge=True)
    result = Forecast(
        choice=program.plan.choice,
        memory=program.memory,
        attention=built.attention.name,
        attention_reason=built.attention.reason,
        proposal=None,
    )
    if result.fits(plan.devices) is not False:
        return result
    smaller = proposal.find(recipe, program.plan, program.memory, compiled=memory)
    return Forecast(**{**vars(result), "proposal": smaller})


def forecast_supposed(recipe: Recipe, plan: Plan) -> Forecast:
    """Return the forecast for as many CPU devices as the plan has, from a process that JAX starts with so many.

    Raises TrainkitError as `forecast`, and RuntimeError if that process fails.
    """
    question = {
        "recipe": count_in_steps(recipe, plan).model_dump(mode="json", by_alias=True),
        "devices": asdict(plan.devices),
        "vocab_size": plan.vocab_size,
    }
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(plan.devices.count)}
    child = subprocess.run(
        [sys.executable, "-m", "trainkit.train.forecast"],
        input=json.dumps(question),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        raise RuntimeError(f"the plan could not be compiled: {child.stderr[-2000:]}")
    answer = json.loads(child.stdout)
    if "problem" in answer:
        raise TrainkitError(answer["problem"], where=answer["where"], hint=answer["hint"])
    return _from_json(answer)


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    from trainkit.recipe.toml.plugins import recipe_class_of

    recipe = recipe_class_of(question["recipe"]).model_validate(with_tuples(question["recipe"]))
    devices = Devices(**question["devices"])
    try:
        plan = make_plan(recipe, devices=devices, vocab_size=question["vocab_size"], data=None)
        return asdict(forecast(recipe, plan))
    except TrainkitError as error:
        return {"problem": error.problem, "where": error.where, "hint": error.hint}


def _from_json(answer: dict[str, Any]) -> Forecast:
    memory, proposal = answer["memory"], answer["proposal"]
    return Forecast(
        choice=Choice(**answer["choice"]),
        memory=memory and Memory(**memory),
        attention=answer["attention"],
        attention_reason=answer["attention_reason"],
        proposal=proposal and Proposal(proposal["changes"], Memory(**proposal["memory"])),
    )


if __name__ == "__main__":
    json.dump(_answer(json.load(sys.stdin)), sys.stdout)
