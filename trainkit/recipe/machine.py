"""[precision] and [parallel]: how the machine is used."""

from __future__ import annotations

from typing import Literal

from trainkit.recipe.spec import Count, Spec


class Precision(Spec):
    params: Literal["float32", "bfloat16"] = "float32"
    """In which parameters and optimiser state are kept."""
    compute: Literal["auto", "float32", "bfloat16"] = "auto"
    """In which matrices are multiplied; `auto` is bfloat16 on GPU and TPU, float32 on CPU. Softmax, norms and losses
    are float32 always."""


class Parallel(Spec):
    data: Count | Literal["auto"] = "auto"
    """Replicas; `auto` takes every device that `fsdp` leaves."""
    fsdp: Count = 1
    """Devices over which parameters and optimiser state are sharded (ZeRO-3, Rajbhandari et al. 2020)."""
