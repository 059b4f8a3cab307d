"""The plan: everything that follows from a recipe, the devices and the data by arithmetic."""

from trainkit.plan.length import DataSize, steps_need_data
from trainkit.plan.memory import IN_HOST_MEMORY, KeptByAttention
from trainkit.plan.plan import (
    WITHIN_STEP,
    Compute,
    Memory,
    Plan,
    count_in_steps,
    make_plan,
    replan,
)
from trainkit.plan.split import (
    ENOUGH_TOKENS,
    SUPPOSED,
    USABLE,
    BatchSplit,
    Choice,
    Devices,
    choices,
)
from trainkit.recipe.families.sizes import divisors

#: Tokens for each parameter at which a budget of FLOPs gives the lowest loss (Hoffmann et al. 2022, table 3).
COMPUTE_OPTIMAL = 20

__all__ = [
    "COMPUTE_OPTIMAL",
    "ENOUGH_TOKENS",
    "IN_HOST_MEMORY",
    "SUPPOSED",
    "USABLE",
    "WITHIN_STEP",
    "BatchSplit",
    "Choice",
    "Compute",
    "DataSize",
    "Devices",
    "KeptByAttention",
    "Memory",
    "Plan",
    "choices",
    "count_in_steps",
    "divisors",
    "make_plan",
    "replan",
    "steps_need_data",
]
