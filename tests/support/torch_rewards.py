"""What trl's trainers make of pairs with scores, and of judged answers, as a part of `torch_worker`."""

from __future__ import annotations

import collections
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import parity_rule
import torch
from safetensors.numpy import load_file, save_file
from torch_worker import HEADS, WEIGHTS, gradients, loaded
from transformers import AutoConfig


class Fused:
    """A model that gives what trl's fused head gives, with plain logits."""

    def __init__(self, model: Any) -> None:
        self.model, self.training = model, True

    def __call__(self, *, labels: Any, fused_lm_head: bool, use_cache: bool, **inputs: Any) -> Any:
        logits = self.model(**inputs, use_cache=use_cache).logits[:, :-1]
        likely, targets = logits.log_softmax(-1), labels[:, 1:]
        picked = likely.gather(-1, targets.clamp(min=0)[..., None])[..., 0] * (targets >= 0)
        zeros = torch.zeros_like(picked)
        return SimpleNamespace(
            log_probs=picked, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool(), log_sum_sq_probs=zeros
        )


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


def kto(request: dict[str, Any]) -> dict[str, Any]:
    """The loss of trl's KTOTrainer on answers with the model in a directory, and its gradient.

    Of `tokens`, (answers, 2, tokens), the first sequence of each is its own and the second has another's answer;
    `filled` are no padding, and those from `prompts` on are answers. `labels` and `reference` are of each answer.
    """
    from trl.trainer.kto_trainer import KTOTrainer

    settings, directory = request["settings"], Path(request["directory"])
    model = loaded(directory)
    ids, filled = torch.tensor(request["tokens"]), torch.tensor(request["filled"])
    place = torch.arange(ids.shape[-1])
    there = place < filled[..., None]
    answers = there & (place >= torch.tensor(request["prompts"])[:, None, None])
    reference = torch.tensor(request["reference"])
    inputs = {"label": torch.tensor(request["labels"]), "ref_logps": reference[:, 0], "ref_KL_logps": reference[:, 1]}
    for side, before in enumerate(("", "KL_")):
        inputs |= {
            f"{before}input_ids": ids[:, side],
            f"{before}attention_mask": there[:, side].long(),
            f"{before}completion_mask": answers[:, side].long(),
        }
    trainer = SimpleNamespace(
        model=model,
        accelerator=SimpleNamespace(device=torch.device("cpu"), gather_for_metrics=lambda value: value),
        aux_loss_enabled=False,
        calculate_KL=True,
        precompute_ref_logps=True,
        loss_type="kto",
        **settings,
        _metrics=collections.defaultdict(lambda: collections.defaultdict(list)),
        _total_train_tokens=0,
        _tp_size=1,
    )
    trainer._compute_kl_logps = lambda model, batch: KTOTrainer._compute_kl_logps(trainer, model, batch)
    loss = KTOTrainer._compute_loss(trainer, Fused(model), inputs, return_outputs=False)
    loss.backward()
    measured = {name: np.float32(values[0]) for name, values in trainer._metrics["eval"].items()}
    np.savez(directory / "judged.npz", loss=loss.detach().numpy(), **measured, **gradients(model))
    return {}
