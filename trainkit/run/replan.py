"""The same run planned otherwise: a changed recipe, or another choice of micro-batch and remat."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trainkit.events.log import of_kinds
from trainkit.plan import Choice, Devices, Plan, make_plan
from trainkit.recipe import Recipe


def count_in_steps(recipe: Recipe, plan: Plan) -> Recipe:
    """The recipe with the plan's number of steps, so that its data need not be counted again."""
    length = {"steps": plan.steps, "epochs": None, "tokens": None}
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=length)})


def replan(recipe: Recipe, plan: Plan, choice: Choice | None = None) -> Plan:
    """A plan for the same devices, vocabulary and steps."""
    counted = count_in_steps(recipe, plan)
    made = make_plan(counted, devices=plan.devices, vocab_size=plan.vocab_size, data=None, choice=choice)
    # of the data, which is not counted again here
    return replace(
        made,
        epochs=plan.epochs,
        tokens_per_step=plan.tokens_per_step,
        total_tokens=plan.total_tokens,
        total_flops=made.flops_per_token * plan.total_tokens,
    )


def previous_choice(directory: Path, devices: Devices) -> Choice | None:
    """What the run's last attempt computed with; None where it had no plan yet, or other devices."""
    *_, plan = (None, *(event["plan"] for event in of_kinds(directory, "planned")))
    try:
        if plan is None or (plan["devices"]["kind"], plan["devices"]["count"]) != (devices.kind, devices.count):
            return None
        return Choice(micro=int(plan["batch"]["micro"]), remat=plan["remat"])
    except (KeyError, TypeError, ValueError):  # from before there was a choice
        return None
