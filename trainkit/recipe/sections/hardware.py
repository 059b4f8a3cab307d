"""[precision] and [parallel]: how the machine is used."""

from __future__ import annotations

from typing import Literal

from trainkit.recipe.spec import Count, Positive, Spec


class Precision(Spec):
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
