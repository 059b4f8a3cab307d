"""What transformers makes of an encoder-decoder: the targets that it writes, their likelihoods, and the loss that it
learns from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.trainer_pt_utils import LabelSmoother


def opened(request: dict[str, Any]) -> Any:
    model, info = AutoModelForSeq2SeqLM.from_pretrained(request["directory"], output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


def padded(rows: list[list[int]], padding: int) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [padding] * (longest - len(row)) for row in rows])


def write(request: dict[str, Any]) -> dict[str, Any]:
    """The targets of `sources`, ids or texts, without the first token: a list for each of the `settings` of
    `generate`; with texts also the first list as texts."""
    model, sources = opened(request), request["sources"]
    tokenizer = AutoTokenizer.from_pretrained(request["directory"]) if isinstance(sources[0], str) else None
    ids = sources if tokenizer is None else tokenizer(sources)["input_ids"]
    mask = padded([[1] * len(row) for row in ids], 0)
    model.generation_config.forced_eos_token_id = None
    found = [
        model.generate(input_ids=padded(ids, 0), attention_mask=mask, do_sample=False, **how)[:, 1:].tolist()
        for how in request["settings"]
    ]
    texts = None if tokenizer is None else tokenizer.batch_decode(found[0], skip_special_tokens=True)
    return {"ids": found, "texts": texts, "sources": ids}


def score_targets(request: dict[str, Any]) -> dict[str, Any]:
    """The log-likelihood of the second text of each of `pairs` as the target of the first, without a token that ends
    it, and whether all of its tokens are the likeliest. An empty source is the token that ends texts."""
    model, tokenizer = opened(request), AutoTokenizer.from_pretrained(request["directory"])
    found: list[tuple[float, bool]] = []
    for source, target in request["pairs"]:
        ids = tokenizer(source)["input_ids"] if source else [tokenizer.eos_token_id]
        labels = torch.tensor([tokenizer(target, add_special_tokens=False)["input_ids"]])
        logits = model(input_ids=torch.tensor([ids]), labels=labels).logits[0].double()
        chosen = logits.log_softmax(-1).gather(-1, labels[0][:, None])
        found.append((chosen.sum().item(), bool((logits.argmax(-1) == labels[0]).all())))
    return {"found": found}


def learn(request: dict[str, Any], gradients: Any) -> dict[str, Any]:
    """The loss of `targets` after `sources`, and the gradient of the smoothed one; `smoothing` may be 0."""
    model, sources, targets = opened(request), request["sources"], request["targets"]
    mask, labels = padded([[1] * len(row) for row in sources], 0), padded(targets, -100)
    found = model(input_ids=padded(sources, 0), attention_mask=mask, labels=labels)
    smoothed = LabelSmoother(epsilon=request["smoothing"])(found, labels)
    smoothed.backward()
    where = Path(request["directory"]) / "learned.npz"
    np.savez(where, loss=found.loss.detach().numpy(), **gradients(model))
    return {}
