"""Aliases of values: what other trainers write for the values of a recipe."""

from __future__ import annotations

from trainkit.recipe.toml.positions import Key

#: Other names of values, by key; `*` is any place in a list.
_SAME_VALUES: dict[str, dict[str, str]] = {
    "precision.compute": {
        "float32": "fp32 f32 float fp float32_t 32 torch.float32 single",
        "bfloat16": "bf16 torch.bfloat16 bf16-mixed bfloat brain",
        "float16": "fp16 f16 half torch.float16 16 fp16-mixed",
        "fp8": "float8 f8 e4m3 hybrid",
    },
    "precision.params": {"float32": "fp32 f32 float torch.float32 32 no", "bfloat16": "bf16 torch.bfloat16"},
    "parallel.platform": {"gpu": "cuda nvidia rocm amd mps cuda:0", "tpu": "xla"},
    "optimizer.type": {
        "adamw": "adamw_torch adamw_torch_fused adamw_hf adamw_apex_fused torch.optim.adamw fused_adamw adam_w",
        "adam": "torch.optim.adam",
        "sgd": "torch.optim.sgd momentum nesterov",
        "lion": "lion_pytorch lion_32bit",
        "schedule-free": "schedule_free_adamw schedulefree",
        "adafactor": "adafactor_hf",
    },
    "schedule.type": {
        "cosine": "cosine_with_min_lr cosine_decay cosine_with_warmup cosineannealinglr cos",
        "constant": "constant_with_warmup none fixed",
        "wsd": "warmup_stable_decay stable trapezoidal",
        "linear": "linear_with_warmup linear_decay",
        "inverse-sqrt": "inverse_sqrt inv_sqrt rsqrt noam",
        "one-cycle": "onecyclelr one_cycle 1cycle cyclic",
        "piecewise-linear": "points piecewise multistep step steps multisteplr steplr milestones",
        "polynomial": "poly polynomial_decay polynomiallr power_decay",
        "exponential": "exp exponential_decay exponentiallr",
    },
    "task.problem": {"multi-class": "single_label_classification", "multi-label": "multi_label_classification"},
    "task.loss": {"dpo": "sigmoid", "robust": "robust_dpo"},
    "task.type": {
        "causal-lm": "clm pt pretrain lm language-modeling causal_lm",
        "masked-lm": "mlm masked_lm",
        "preference": "dpo orpo simpo ipo cpo",
        "reward": "rm reward_model reward-model",
        "sft": "instruct instruction chat",
        "sequence-classification": "classification text-classification",
        "token-classification": "ner pos",
        "seq2seq": "translation summarization",
    },
    "adapter.base": {"nf4": "qlora 4bit 4-bit int4 4 fp4 q4 bnb"},
    "adapter.targets": {"all-linear": "all all_linear all-linear-layers"},
    "adapter.variant": {"lora": "none default", "rslora": "rs-lora rank-stabilized"},
    "data.encoding.type": {
        "pack": "packing packed packed_sequences bfd",
        "pad": "padding padded",
        "concatenate": "concat",
    },
    "data.train.*.type": {
        "files": "file json jsonl csv parquet arrow text txt local",
        "huggingface": "hf hub huggingface_hub datasets load_dataset",
        "tokens": "npy bin memmap tokenized",
    },
    "data.train.*.document.type": {
        "chat": "sharegpt chat_template messages conversation openai chatml",
        "prompt": "alpaca completion instruct instruction",
        "preference": "dpo ranking chosen_rejected",
    },
    "data.shuffle": {"full": "true yes all random"},
    "model.type": {
        "gpt2": "gpt gpt-2 nanogpt gpt2lmheadmodel",
        "llama": "llama2 llama3 llama-2 llama-3 llamaforcausallm llama3_1",
        "mistral": "mistralforcausallm",
        "qwen2": "qwen qwen2.5 qwen2forcausallm",
        "bert": "bertformaskedlm",
    },
    "train.remat": {"blocks": "full true all yes", "none": "false no", "dots": "selective attn"},
}
_DIFFERENT_VALUES: dict[str, dict[str, str]] = {
    "optimizer.type": dict.fromkeys(
        ("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit", "paged_adamw_32bit", "bnb.optim.adamw8bit"),
        'write type = "adamw" and moments = "int8"',
    ),
    "schedule.type": dict.fromkeys(
        ("cosine_with_restarts", "cosine_hard_restarts"),
        'write type = "cosine" and restarts = 1, the number of jumps back to the peak',
    ),
    "data.train.*.type": dict.fromkeys(
        ("alpaca", "completion", "instruct", "alpaca_dataset", "instruct_dataset", "context_qa", "oasst", "reflection"),
        'leave it out for files; for data of the hub write type = "huggingface", and id in place of path; both have '
        'document = { type = "prompt", prompt = "{instruction}{?input} {input}{/input}", response = " {output}" }',
    )
    | dict.fromkeys(
        (
            "chat_template",
            "sharegpt",
            "chat",
            "messages",
            "chat_dataset",
            "openai",
            "chatml",
            "conversation",
            "chatml.intel",
        ),
        'leave it out; write document = { type = "chat" }, with key = "conversations" where that is its list',
    )
    | dict.fromkeys(
        ("dpo", "preference", "ranking", "chatml.ultra", "llama3.ultra", "bradley_terry.chat_template"),
        'leave it out; write document = { type = "preference-chat" } or { type = "preference" }',
    ),
    "train.batch_size": {"auto": 'write a number; micro_batch_size = "auto" finds what fits the memory'},
    "parallel.fsdp": dict.fromkeys(
        (
            *("full_shard", "shard_grad_op", "hybrid_shard", "zero2", "zero3", "auto", "full"),
            *("full_shard auto_wrap", "shard_grad_op auto_wrap", "full_shard auto_wrap offload"),
        ),
        "write a number of devices, such as fsdp = 4",
    ),
    "parallel.data": dict.fromkeys(("ddp", "dp"), "write a number of devices, such as data = 4"),
    "track.wandb.mode": dict.fromkeys(("disabled", "off", "none"), "leave [track.wandb] out"),
    "adapter.type": {
        "qlora": 'write base = "nf4"; type is "lora"',
        "dora": 'write variant = "dora"; type is "lora"',
        "rslora": 'write variant = "rslora"; type is "lora"',
    },
    "adapter": {
        "qlora": 'write [adapter] with base = "nf4"',
        "lora": "write [adapter] with rank = 16",
        "dora": 'write [adapter] with variant = "dora"',
    },
    "track": {
        "wandb": "write [track.wandb] with project",
        "tensorboard": "write [track] with tensorboard = true",
        "aim": "write [track] with aim = true",
    },
}
# the same for a word in the place of the table
_DIFFERENT_VALUES |= {
    section: {
        word: hint.replace("write", f"write [{section}] with", 1)
        for word, hint in _DIFFERENT_VALUES[f"{section}.type"].items()
    }
    for section in ("optimizer", "schedule")
}
VALUES: dict[str, dict[str, str]] = {
    key: {alias: name for name, aliases in names.items() for alias in aliases.split()}
    for key, names in _SAME_VALUES.items()
}
#: The whole hint, by key and value.
VALUE_HINTS = _DIFFERENT_VALUES
#: What transformers and torchtune call the linear layers of a block.
LAYERS = {
    **{"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output", "output_proj": "output"},
    **{"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w2": "down", "w3": "up"},
    **{"c_attn": "qkv", "c_fc": "mlp_in", "c_proj": "output", "Wqkv": "qkv", "out_proj": "output"},
}
#: The keys of a table that a value in its place may be meant for, if it is not the type; the likeliest first.
PLAIN_KEYS = {
    "model": "pretrained",
    "tokenizer": "path train",
    "run": "name seed",
    "data": "train sequence_length",
    "data.train.*": "path",
    "plugins": "files",
    "adapter": "rank pretrained",
    "sample": "prompts every",
    "train": "steps",
    "evaluate": "every",
    "precision": "compute",
    "checkpoint": "every_minutes",
    "parallel": "data platform",
    "guard": "spike",
    "statistics": "every",
    "average": "decay",
    "export": "format every",
    "schedule": "warmup",
    "sweep": "method",
    "sweep.parameters.*": "values",
    "track": "experiment",
    "track.wandb": "project",
}


def pattern_of(key: Key) -> str:
    """Return a key as text, with `*` for an index or a name that the recipe chooses.

    `data.validation` becomes `data.train`, which has the same keys.
    """
    parts = ["*" if isinstance(part, int) else part for part in key]
    if parts[:2] == ["sweep", "parameters"] and len(parts) > 2:
        parts[2] = "*"
    if parts[:2] == ["data", "validation"]:
        parts[1] = "train"
    return ".".join(parts)
