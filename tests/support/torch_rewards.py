"""What trl's trainers of rewards make of answers, as a part of `torch_worker`."""

from __future__ import annotations

import collections
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import parity_rule
import torch
from safetensors.numpy import load_file, save_file
from torch_worker import HEADS, WEIGHTS, gradients
from transformers import AutoConfig


def reward(request: dict[str, Any]) -> dict[str, Any]:
    """A model of a configuration with one score, and the loss of trl's RewardTrainer on pairs, (pairs, 2, tokens), of
    which `filled` are no padding, with the gradient; `margins` are of each pair, where there are any.

    Only the trainer's method is called, with a stand-in for the trainer that holds its settings.
    """
    from trl.trainer.reward_trainer import RewardTrainer

    directory, kind = Path(request["directory"]), HEADS["sequence"]
    config = AutoConfig.for_model(**request["config"], num_labels=1)
    kind.from_config(config).save_pretrained(directory)
    shapes = {name: list(tensor.shape) for name, tensor in load_file(directory / WEIGHTS).items()}
    weights = {name: parity_rule.weight(request["seed"], name, shape) for name, shape in shapes.items()}
    save_file(weights, directory / WEIGHTS, metadata={"format": "pt"})
    model = kind.from_pretrained(directory, dtype=torch.float32).eval()

    ids, filled = torch.tensor(request["tokens"]), torch.tensor(request["filled"])
    there = torch.arange(ids.shape[-1]) < filled[..., None]
    ids = torch.where(there, ids, config.pad_token_id)
    # the chosen answers first, and then the rejected ones
    inputs = {"input_ids": torch.cat(ids.unbind(1)), "attention_mask": torch.cat(there.unbind(1)).long()}
    if request["margins"]:
        inputs["margin"] = torch.tensor(request["margins"])
    trainer = SimpleNamespace(
        model=model,
        args=SimpleNamespace(center_rewards_coefficient=request["centring"] or None),
        accelerator=SimpleNamespace(gather=lambda value: value, gather_for_metrics=lambda value: value),
        _metrics=collections.defaultdict(lambda: collections.defaultdict(list)),
        _total_train_tokens=0,
        _tp_size=1,
    )
    loss, outputs = RewardTrainer.compute_loss(trainer, model, inputs, return_outputs=True)
    loss.backward()
    measured = {name: np.float32(values[0]) for name, values in trainer._metrics["eval"].items()}
    found = {"loss": loss.detach().numpy(), "scores": outputs.logits.detach().numpy().reshape(2, -1).T, **measured}
    np.savez(directory / "rewarded.npz", **found, **gradients(model))
    return {}
