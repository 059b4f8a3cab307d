"""What torch's optimizers make of the problem of `trajectories.py`, in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import transformers


def descend(request: dict[str, Any]) -> dict[str, Any]:
    """Write the parameters after all steps, for each of `optimizers`: a name in torch.optim with its options.

    torch's Muon rounds to bfloat16 wherever it runs: here it does not.
    """
    directory = Path(request["directory"])
    problem = dict(np.load(directory / "problem.npz"))
    names = [key.removeprefix("start/") for key in problem if key.startswith("start/")]
    found = {}
    for label, (kind, options) in request["optimizers"].items():
        params = {name: torch.tensor(problem[f"start/{name}"], dtype=torch.float64) for name in names}
        optimizer = getattr(torch.optim, kind)(params.values(), **options)
        groups = optimizer.param_groups
        peaks = [group["lr"] for group in groups]
        decays = [_decays(group) for group in groups]
        for step, share in enumerate(problem["shares"]):
            for group, peak, first in zip(groups, peaks, decays, strict=True):
                group["lr"] = peak * float(share)
                if "momentum" in problem:
                    _set_decays(group, first, float(problem["momentum"][step]), float(problem["beta2"][step]))
            for name, param in params.items():
                distance = param.numpy() - problem[f"minimum/{name}"]
                param.grad = torch.tensor(problem[f"curvature/{name}"] * distance + problem[f"noise/{name}"][step])
            with patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):
                optimizer.step()
        found |= {f"{label}/{name}": param.numpy() for name, param in params.items()}
    np.savez(directory / "descended.npz", **found)
    return {}


def _decays(group: dict[str, Any]) -> dict[str, Any]:
    return {key: group[key] for key in ("betas", "momentum", "alpha") if key in group}


def _set_decays(group: dict[str, Any], first: dict[str, Any], momentum: float, squares: float) -> None:
    """Scale the decays of the averages of gradients and of squares."""
    if "betas" in first:
        group["betas"] = (momentum * first["betas"][0], squares * first["betas"][1])
    for key, share in (("momentum", momentum), ("alpha", squares)):
        if key in first:
            group[key] = share * first[key]


def schedule(request: dict[str, Any]) -> dict[str, Any]:
    """Return the rates of `steps` steps with a peak of 1, for each of `schedules`: a name with its options.

    A name is a class in torch.optim.lr_scheduler or, in lower case, a type of transformers.get_scheduler.
    """
    found = {}
    for label, (kind, options) in request["schedules"].items():
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        if kind.islower():
            scheduler = transformers.get_scheduler(kind, optimizer, **options)
        else:
            scheduler = getattr(torch.optim.lr_scheduler, kind)(optimizer, **options)
        rates = []
        for _ in range(request["steps"]):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        found[label] = rates
    return {"rates": found}
