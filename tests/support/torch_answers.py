"""The reference for question answering: transformers' models that find spans. Used by `torch_worker.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import parity_rule
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModelForQuestionAnswering, AutoTokenizer

WEIGHTS = "model.safetensors"


def make_answerer(
    request: dict[str, Any], *, prepared: Callable[..., Any], gradients: Callable[..., Any]
) -> dict[str, Any]:
    """A model of this configuration, and what it makes of windows, each by itself, so that none has padding.

    `starts` and `ends` are the targets; the first window has `padded` tokens less than the others. The second half of
    each is the context.
    """
    seed, directory, padded = request["seed"], Path(request["directory"]), request["padded"]
    kind = AutoModelForQuestionAnswering
    kind.from_config(AutoConfig.for_model(**request["config"])).save_pretrained(directory)
    shapes = {name: list(tensor.shape) for name, tensor in load_file(directory / WEIGHTS).items()}
    weights = {name: parity_rule.weight(seed, name, shape) for name, shape in shapes.items()}
    save_file(weights, directory / WEIGHTS, metadata={"format": "pt"})
    model = prepared(kind, directory, request)
    tokens = parity_rule.tokens(seed, request["size"], model.config.vocab_size)
    losses, logits = [], []
    for row, (start, end) in enumerate(zip(request["starts"], request["ends"], strict=True)):
        ids = torch.tensor(tokens[row : row + 1, : -padded if row == 0 else None])
        given = {"input_ids": ids, "start_positions": torch.tensor([start]), "end_positions": torch.tensor([end])}
        if getattr(model.config, "type_vocab_size", 0) > 1:
            given["token_type_ids"] = (torch.arange(ids.shape[1]) >= tokens.shape[1] // 2).long()[None]
        found = model(**given)
        losses.append(found.loss)
        both = torch.stack([found.start_logits[0], found.end_logits[0]], -1).detach()
        logits.append(torch.nn.functional.pad(both, (0, 0, 0, tokens.shape[1] - len(both))))
    loss = torch.stack(losses).mean()
    loss.backward()
    arrays = {"tokens": tokens, "logits": torch.stack(logits).numpy(), "loss": loss.detach().numpy()}
    np.savez(directory / "reference.npz", **arrays, **gradients(model))
    return {}


def find_answers(request: dict[str, Any]) -> dict[str, Any]:
    """By the tokenizer and the model in a directory, of each question and context: the ids, the logits of starts and
    ends, and the text of the likeliest span of at most `longest` tokens of the context."""
    directory = Path(request["directory"])
    model = AutoModelForQuestionAnswering.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    found = []
    for question, context in request["pairs"]:
        given = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
        places = given.pop("offset_mapping")[0].tolist()
        within = [at for at, text in enumerate(given.sequence_ids(0)) if text == 1]
        with torch.no_grad():
            scored = model(**given)
        starts, ends = scored.start_logits[0].tolist(), scored.end_logits[0].tolist()
        spans = [(starts[i] + ends[j], i, j) for i in within for j in within if i <= j < i + request["longest"]]
        _, first, last = max(spans, key=lambda span: (span[0], -span[1], -span[2]))
        text = context[places[first][0] : places[last][1]]
        ids = given["input_ids"][0].tolist()
        found.append({"ids": ids, "starts": starts, "ends": ends, "text": text})
    return {"found": found}
