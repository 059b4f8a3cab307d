"""[train], [precision] and [parallel]: how long, in what batches, in which numbers and on which devices."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from trainkit.recipe.families.sizes import Remat
from trainkit.recipe.spec import Count, NotNegative, Positive, Spec


class Train(Spec):
    """How long the run trains, and in what batches."""

    steps: Count | None = None
    """Length of the run in steps (optimiser updates)."""
    epochs: Positive | None = None
    """Length of the run in passes over the training data, which may be a fraction."""
    tokens: Count | None = None
    """Length of the run in tokens, rounded up to whole steps. Padding does not count: if examples are padded (every
    encoding except `concatenate`), the average batch is used, so all data is tokenised before the first step."""
    batch_size: Count
    """Sequences per step on all devices together."""
    micro_batch_size: Count | Literal["auto"] = "auto"
    """Sequences that one device processes at once; the rest is accumulated. `auto` is the largest number that fits."""
    remat: Literal["auto"] | Remat = "auto"
    """What the backward pass recomputes to save memory: nothing (`none`); everything except products with parameters
    (`dots`); each block from its input (`blocks`); the same with the inputs in host memory (`offload`, for GPU and
    TPU). `auto` is the fastest one that fits."""
    max_grad_norm: NotNegative = 1.0
    """Largest global norm of the gradients; larger ones are scaled down to it. 0 turns this off."""

    @model_validator(mode="after")
    def _one_length(self) -> Train:
        given = [key for key in ("steps", "epochs", "tokens") if getattr(self, key) is not None]
        if len(given) != 1:
            found = " and ".join(given) if given else "none of them"
            raise ValueError(f"give exactly one of steps, epochs and tokens; found {found}")
        return self


class Precision(Spec):
    """The dtypes of parameters and of matrix products."""

    params: Literal["float32", "bfloat16"] = "float32"
    """Dtype in which parameters are stored."""
    rounding: Literal["stochastic", "nearest"] = "stochastic"
    """How updated parameters are rounded to bfloat16: `nearest` loses small updates, `stochastic` keeps them on
    average. Only for `params = "bfloat16"` without an adapter."""
    compute: Literal["auto", "float32", "bfloat16", "float16", "fp8"] = "auto"
    """Dtype in which matrices are multiplied; `auto` is bfloat16 on GPU and TPU and float32 on CPU. Softmax, norms and
    losses are always float32. float16 adapts a scale of the loss to overflows; fp8 is used in linear layers, with
    bfloat16 for everything else."""


class Parallel(Spec):
    """The devices that train, and how they share the batch and the state."""

    platform: Literal["auto", "cpu", "gpu", "tpu"] = "auto"
    """Devices to train on. `auto` takes the fastest kind found; any other value is an error if it is missing."""
    data: Count | Literal["auto"] = "auto"
    """Replicas of the model, each trained on a part of the batch. `auto` uses every device that `fsdp` leaves."""
    fsdp: Count = 1
    """Devices that share the parameters and optimiser state of a replica (ZeRO-3, Rajbhandari et al. 2020)."""
    zero1: bool = False
    """Whether the optimiser state is divided among replicas (ZeRO-1, the same paper): less memory for a little more
    communication."""
    peak_tflops: Positive | None = None
    """Peak speed of one device in the compute dtype, in 10^12 FLOP/s, for MFU. If absent, trainkit looks it up."""
