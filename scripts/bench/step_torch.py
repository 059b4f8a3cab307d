"""The step as a plain torch loop over transformers' models does it: `torch.compile`, scaled-dot-product attention
(flash on a GPU), fused AdamW, autocast where the work asks for bfloat16. A contender of `step.py`.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING

from step_work import (
    BETAS,
    EPS,
    LEARNING_RATE,
    MAX_NORM,
    NORM_EPS,
    ROPE_THETA,
    WEIGHT_DECAY,
    Array,
    Contender,
    Shape,
    Work,
    batch,
    serve,
    weights,
)

if TYPE_CHECKING:
    import torch

#: transformers' own attention without its mask, which some versions build under torch.compile though nothing is
#: padded, and which flash attention does not take: then its kernel knows the triangle.
UNMASKED = "sdpa_unmasked"


def prepare(work: Work, *, own_loss: bool = False) -> Contender:
    """With `own_loss` it is the model that makes the loss of its logits, as transformers' Trainer lets it."""
    import torch
    import transformers
    from torch.nn import functional
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    shape, on_gpu = work.shape, work.platform == "gpu"
    if on_gpu and not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} sees no GPU")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.set_float32_matmul_precision("high" if on_gpu else "highest")
    device = torch.device("cuda" if on_gpu else "cpu")
    transformers.AttentionInterface.register(UNMASKED, sdpa_attention_forward)
    model = _model(shape).to(device)
    model.train()
    # what decays is what decays in trainkit by default: no embedding, no norm, no bias
    decayed = [p for name, p in model.named_parameters() if p.ndim == 2 and _in_block(name)]
    others = [p for name, p in model.named_parameters() if not (p.ndim == 2 and _in_block(name))]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}],
        lr=LEARNING_RATE,
        betas=BETAS,
        eps=EPS,
        fused=True,
    )

    @partial(torch.compile, backend=work.backend)
    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if own_loss:
            return model(input_ids=x, labels=y, shift_labels=y, use_cache=False).loss
        logits = model(input_ids=x, use_cache=False).logits
        return functional.cross_entropy(logits.flatten(0, 1).float(), y.flatten())

    half = torch.autocast(device.type, dtype=torch.bfloat16) if work.compute == "bfloat16" else contextlib.nullcontext()
    batches = [[torch.from_numpy(a).long().to(device) for a in batch(shape, i)] for i in range(work.curve)]

    def step(number: int) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        with half:
            loss = loss_of(*batches[number])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        done = torch.cuda.Event() if on_gpu else None
        if done is not None:
            done.record()
        return loss.detach(), done

    def wait(handle: tuple[torch.Tensor, torch.cuda.Event | None]) -> None:
        if handle[1] is not None:
            handle[1].synchronize()

    return Contender(
        step=step,
        wait=wait,
        loss=lambda handle: handle[0].item(),
        peak_bytes=lambda: torch.cuda.max_memory_allocated() if on_gpu else None,
        facts={"torch": torch.__version__, "transformers": transformers.__version__},
    )


def _in_block(name: str) -> bool:
    return ".h." in name or ".layers." in name


def _model(shape: Shape) -> torch.nn.Module:
    import torch
    import transformers

    common = {"attn_implementation": UNMASKED, "use_cache": False, "bos_token_id": 0, "eos_token_id": 0}
    if shape.family == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=shape.vocab,
            n_positions=shape.length,
            n_embd=shape.hidden,
            n_layer=shape.layers,
            n_head=shape.heads,
            n_inner=shape.intermediate,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            layer_norm_epsilon=NORM_EPS,
            **common,
        )
        model = transformers.GPT2LMHeadModel(config)
        place = _place_gpt2
    else:
        config = transformers.LlamaConfig(
            vocab_size=shape.vocab,
            max_position_embeddings=shape.length,
            hidden_size=shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            intermediate_size=shape.intermediate,
            rms_norm_eps=NORM_EPS,
            rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
            tie_word_embeddings=True,
            **common,
        )
        model = transformers.LlamaForCausalLM(config)
        place = _place_llama
    parameters = dict(model.named_parameters())
    left = set(parameters)
    for name, array in weights(shape):
        for theirs, value in place(name, array):
            with torch.no_grad():
                parameters[theirs].copy_(torch.from_numpy(value))
            left.discard(theirs)
    assert not left, f"without a first weight: {sorted(left)}"
    return model


GPT2_NAMES = {
    "blocks.attention_norm": "ln_1",
    "blocks.attention.qkv": "attn.c_attn",
    "blocks.attention.output": "attn.c_proj",
    "blocks.mlp_norm": "ln_2",
    "blocks.mlp_in": "mlp.c_fc",
    "blocks.mlp_out": "mlp.c_proj",
    "final_norm": "transformer.ln_f",
    "token_embedding": "transformer.wte.weight",
    "position_embedding": "transformer.wpe.weight",
}
LLAMA_NAMES = {
    "blocks.attention_norm": "input_layernorm",
    "blocks.attention.query": "self_attn.q_proj",
    "blocks.attention.key": "self_attn.k_proj",
    "blocks.attention.value": "self_attn.v_proj",
    "blocks.attention.output": "self_attn.o_proj",
    "blocks.mlp_norm": "post_attention_layernorm",
    "blocks.mlp.gate": "mlp.gate_proj",
    "blocks.mlp.up": "mlp.up_proj",
    "blocks.mlp.down": "mlp.down_proj",
    "final_norm": "model.norm",
    "token_embedding": "model.embed_tokens.weight",
}


def _place_gpt2(name: str, array: Array) -> list[tuple[str, Array]]:
    """Their matrices are (in, out) too."""
    if name in GPT2_NAMES:
        return [(GPT2_NAMES[name], array)]
    part, leaf = name.rsplit(".", 1)
    if not name.startswith("blocks."):
        return [(f"{GPT2_NAMES[part]}.{leaf}", array)]
    return [(f"transformer.h.{i}.{GPT2_NAMES[part]}.{leaf}", layer) for i, layer in enumerate(array)]


def _place_llama(name: str, array: Array) -> list[tuple[str, Array]]:
    """Their matrices are (out, in)."""
    if name in LLAMA_NAMES:
        return [(LLAMA_NAMES[name], array)]
    part, leaf = name.rsplit(".", 1)
    if not name.startswith("blocks."):
        return [(f"{LLAMA_NAMES[part]}.{leaf}", array)]
    return [(f"model.layers.{i}.{LLAMA_NAMES[part]}.{leaf}", layer.T) for i, layer in enumerate(array)]


if __name__ == "__main__":
    serve(prepare)
