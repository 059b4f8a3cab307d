"""Lines as average users of six other trainers write them into a recipe, which were not answered at first sight.

Each is (section, line, pattern of the right answer), as in `real_configurations.py`. They stood in 60 recipes of one to
four wrong lines each, in the section where such a user would guess.
"""

ALL = {
    "axolotl": (
        ("optimizer", 'optimizer = "adamw_bnb_8bit"', r'moments = "int8"'),
        ("adapter", 'type = "qlora"', r'base = "nf4"'),
        ("data", "train_on_inputs = false", r"leave it out: .* only answers are learned"),
        ("tokenizer", 'special_tokens = { pad_token = "<|end_of_text|>" }', r"leave it out"),
        ("data.train", 'path = "mhenrichsen/alpaca_2k_test"\ntype = "alpaca"', r"huggingface.*id.*document"),
    ),
    "transformers": (
        ("data.train", 'dataset_name = "wikitext"', r'type = "huggingface" and id'),
        ("train", "max_steps = -1", r"leave steps out"),
        ("adapter", 'bias = "none"', r"an adapter trains no biases"),
        ("parallel", 'fsdp = "full_shard auto_wrap"', r"fsdp = 4"),
    ),
    "Levanter": (
        ("track", 'type = "wandb"', r"wandb = true"),
        ("checkpoint", 'save_interval = "30m"', r"every_minutes here; write .*every_minutes = 30"),
        ("track", 'tags = ["openwebtext", "gpt2"]', r"run\.name.*track\.experiment"),
    ),
    "torchtune": (("adapter", 'type = "dora"', r'variant = "dora"'),),
    "LLaMA-Factory": (
        ("train", "epochs = -1", r"leave epochs out"),
        ("sample", "do_sample = true", r"^leave it out: tokens are drawn"),
        ("", 'stage = "dpo"', r'called task\.type here; did you mean "preference"'),
    ),
    "nanoGPT": (
        ("schedule", 'schedule = "cosine"', r"\btype\b"),
        ("schedule", "lr_decay_iters = 1000", r"^leave it out: .* until train\.steps"),
        ("sample", 'start = "\\n"', r"called prompts"),
        ("run", 'init_from = "resume"', r"trainkit resume RUN"),
    ),
}
