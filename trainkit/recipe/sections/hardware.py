"""[precision] and [parallel]: how the machine is used."""

from __future__ import annotations

from typing import Literal

from trainkit.recipe.spec import Count, Positive, Spec


class Precision(Spec):
    params: Literal["float32", "bfloat16"] = "float32"
    """In which parameters are kept."""
    rounding: Literal["stochastic", "nearest"] = "stochastic"
    """How updated parameters become bfloat16: to the nearest, small updates are lost; stochastically, they count on
    average. Of parameters in float32 it says nothing."""
    compute: Literal["auto", "float32", "bfloat16", "float16", "fp8"] = "auto"
    """In which matrices are multiplied; `auto` is bfloat16 on GPU and TPU, float32 on CPU. Softmax, norms and losses
    are float32 always. float16 scales the loss as overflows teach it to; fp8 is for the products of linear layers, all
    else is bfloat16."""


class Parallel(Spec):
    platform: Literal["auto", "cpu", "gpu", "tpu"] = "auto"
    """What to train on; `auto` takes the fastest that is found, anything else is an error where it is not found."""
    data: Count | Literal["auto"] = "auto"
    """Replicas; `auto` takes every device that `fsdp` leaves."""
    fsdp: Count = 1
    """Devices over which parameters and optimiser state are sharded (ZeRO-3, Rajbhandari et al. 2020)."""
    zero1: bool = False
    """Whether replicas share the optimiser's state out among them (ZeRO-1, the same paper): less memory for a little
    more traffic."""
    peak_tflops: Positive | None = None
    """What one device can do at best in the compute dtype, in 10^12 FLOP/s, where it is not known or known wrong."""
