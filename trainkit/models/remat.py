"""Which results of a block are kept for the backward pass, and which are computed again."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, assert_never

import jax
from jax.ad_checkpoint import checkpoint_name

from trainkit.recipe.families.sizes import Remat

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

#: The name of the arrays that `offload` moves to the host: see `block_input`.
BLOCK_INPUT = "block_input"


def block_input(x: jax.Array) -> jax.Array:
    """Return `x`, marked as the one input from which a block can be computed again."""
    return checkpoint_name(x, BLOCK_INPUT)


def rematerialise(block: Callable[Parameters, Result], policy: Remat) -> Callable[Parameters, Result]:
    """Return `block`, a function that is scanned over, with the memory `policy` of its backward pass.

    `none` keeps all that is needed. `blocks` keeps the input of each block and runs it again (Chen et al. 2016). `dots`
    also keeps the results of products with parameters, which are most of the work, but not attention's scores, which
    are most of the memory: products of the batch with itself. `offload` is `blocks` with the inputs in the host's
    memory until they are needed.
    """
    # a scan's body is compiled by itself, so nothing merges what is computed again with the first computation
    match policy:
        case "none":
            return block
        case "blocks":
            return jax.checkpoint(block, prevent_cse=False)
        case "dots":
            kept = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
            return jax.checkpoint(block, prevent_cse=False, policy=kept)
        case "offload":
            moved = jax.checkpoint_policies.save_and_offload_only_these_names(
                names_which_can_be_saved=[],
                names_which_can_be_offloaded=[BLOCK_INPUT],
                offload_src="device",
                offload_dst="pinned_host",
            )
            return jax.checkpoint(block, prevent_cse=False, policy=moved)
        case _:
            assert_never(policy)
