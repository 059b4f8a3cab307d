"""The reference: transformers' models on torch, asked through a pipe by `tests/reference.py`.

It is run by a Python of its own, which has torch and transformers but nothing of trainkit. A line of JSON comes in, one
goes out; arrays lie in a file beside the model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM


def make(request: dict[str, Any]) -> dict[str, Any]:
    """A model of random weights from this configuration, with what it makes of random tokens.

    Weights are larger than models begin with, and those of norms not 1, so that what is left out is seen.
    """
    torch.manual_seed(request["seed"])
    directory = Path(request["directory"])
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**request["config"])).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.normal_(0, 0.15 if "embed" in name or "wte" in name else 0.08)
    model.save_pretrained(directory)
    return {"directory": str(directory), **look(model, request, directory)}


def read(request: dict[str, Any]) -> dict[str, Any]:
    """The same of the model that lies in the directory."""
    directory = Path(request["directory"])
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    return look(model, request, Path(request["out"]))


def look(model: Any, request: dict[str, Any], out: Path) -> dict[str, Any]:
    tokens = np.random.default_rng(request["seed"]).integers(3, model.config.vocab_size, request["size"])
    ids = torch.tensor(tokens)
    rows, length = ids.shape
    found: dict[str, np.ndarray] = {"tokens": tokens}
    with torch.no_grad():
        found["logits"] = model(input_ids=ids).logits.numpy()
        if first := request.get("first_position", 0):
            positions = torch.arange(first, first + length).expand(rows, length)
            found["late_logits"] = model(input_ids=ids, position_ids=positions).logits.numpy()
        if request.get("padding"):  # at the right: what stands there is seen by nobody before it
            mask = torch.ones_like(ids)
            mask[0, length // 2 :] = 0
            found["padded_logits"] = model(input_ids=ids, attention_mask=mask).logits.numpy()
        if count := request.get("greedy", 0):
            mask = torch.ones_like(ids)
            answer = model.generate(
                input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=count, min_new_tokens=count,
                pad_token_id=0, eos_token_id=None,
            )  # fmt: skip
            found["greedy"] = answer[:, length:].numpy()
    if request.get("gradients"):
        logits = model(input_ids=ids).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))
        loss.backward()
        found["loss"] = loss.detach().numpy()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                found[f"gradient/{name}"] = parameter.grad.numpy()
    np.savez(out / "reference.npz", **found)
    return {"parameters": sum(p.numel() for p in model.parameters())}


def main() -> None:
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = (make if request["do"] == "make" else read)(request)
        except Exception as error:  # told to the test, which fails with it
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
