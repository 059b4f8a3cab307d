"""Which results of a block are kept for the backward pass, and which are computed again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar, assert_never

import jax
from jax.ad_checkpoint import checkpoint_name

from trainkit.recipe.families.sizes import Remat

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

#: The name of the arrays that `offload` moves to the host: see `block_input`.
BLOCK_INPUT = "block_input"
#: What JAX calls the kernels whose results `dots` keeps: cuDNN's attention, and those in Pallas, which are attention
#: and products with experts.
KERNELS = ("dot_product_attention_fwd_wrapper", "pallas_call")


def block_input(x: jax.Array) -> jax.Array:
    """Return `x`, marked as the one input from which a block can be computed again."""
    return checkpoint_name(x, BLOCK_INPUT)


def rematerialise(
    block: Callable[Parameters, Result], policy: Remat, *, in_loop: bool = True
) -> Callable[Parameters, Result]:
    """Return `block`, a function that is scanned over, with the memory `policy` of its backward pass.

    `none` keeps all that is needed. `blocks` keeps the input of each block and runs it again (Chen et al. 2016). `dots`
    also keeps the results of products with parameters, which are most of the work, but not attention's scores, which
    are most of the memory: products of the batch with itself. It keeps the results of a kernel of attention, which are
    as small as queries. `offload` is `blocks` with the inputs in the host's
    memory until they are needed. `in_loop` says that the scan has more than one step.
    """
    # a loop's body is compiled by itself, so nothing merges what is computed again with the first computation; XLA puts
    # the body of a loop of one step beside the rest of the program
    checkpoint = partial(jax.checkpoint, prevent_cse=not in_loop)
    match policy:
        case "none":
            return block
        case "blocks":
            return checkpoint(block)
        case "dots":
            return checkpoint(block, policy=_kept_by_dots)
        case "offload":
            moved = jax.checkpoint_policies.save_and_offload_only_these_names(
                names_which_can_be_saved=[],
                names_which_can_be_offloaded=[BLOCK_INPUT],
                offload_src="device",
                offload_dst="pinned_host",
            )
            return checkpoint(block, policy=moved)
        case _:
            assert_never(policy)


def _kept_by_dots(primitive: Any, *arguments: Any, **parameters: Any) -> Any:
    """Return whether to keep the result of a primitive, as policies of JAX answer it."""
    products = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return primitive.name in KERNELS or products(primitive, *arguments, **parameters)
