"""Recipes as users of other trainers write them: the first thing they are told is what to write instead."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import natural_configurations
import pytest
import rarer_configurations
import real_configurations
from sample_recipe import TEXT, changed, line_of, write

from trainkit.errors import TrainkitError
from trainkit.recipe.toml.alias_by_value import RULES
from trainkit.recipe.toml.load import load


class Wrong(NamedTuple):
    """A line of another trainer, in a section of the sample recipe, and what its hint must contain."""

    section: str
    """Empty for the top of the file, in brackets for a list."""
    line: str
    hint: str
    """A text, or, of published lines, a regular expression."""


#: The lines by the trainer that they come from.
ALL = {
    "axolotl": (
        Wrong("", "sequence_len = 2048", "data.sequence_length"),
        Wrong("", "sample_packing = true", 'encoding = { type = "pack" }'),
        Wrong("", "gradient_accumulation_steps = 4", "train.micro_batch_size"),
        Wrong("", 'adapter = "qlora"', '[adapter] with base = "nf4"'),
        Wrong("", "lora_r = 16", "adapter.rank"),
        Wrong("", "lora_target_linear = true", 'targets = "all-linear"'),
        Wrong("data", "val_set_size = 0.05", "held_out"),
        Wrong("model", "flash_attention = true", "leave it out"),
        Wrong("", '[[datasets]]\npath = "a.jsonl"\ntype = "alpaca"', "[[data.train]]"),
        Wrong("", "base_model: NousResearch/Llama-3.2-1B", "write pretrained = "),
        Wrong("evaluate", "evals_per_epoch = 4", "every"),
        Wrong("optimizer", 'type = "adamw_bnb_8bit"', 'moments = "int8"'),
    ),
    "transformers": (
        Wrong("train", "num_train_epochs = 3", "epochs"),
        Wrong("train", "per_device_train_batch_size = 8", "batch_size"),
        Wrong("train", 'eval_strategy = "steps"', "evaluate.every"),
        Wrong("", 'save_strategy = "epoch"', "checkpoint.every_minutes"),
        Wrong("train", "gradient_checkpointing = true", 'remat = "blocks"'),
        Wrong("train", "torch_compile = true", "leave it out"),
        Wrong("train", "fp16 = true", 'compute = "float16"'),
        Wrong("schedule", 'lr_scheduler_type = "cosine"', "type"),
        Wrong("schedule", 'type = "constant_with_warmup"', '"constant"'),
        Wrong("optimizer", 'type = "adamw_torch_fused"', '"adamw"'),
        Wrong("", "load_best_model_at_end = true", "checkpoint.best"),
        Wrong("train", 'report_to = "wandb"', "track"),
    ),
    "levanter": (
        Wrong("", "[trainer]\nnum_train_steps = 100", "train"),
        Wrong("train", "num_train_steps = 100", "steps"),
        Wrong("train", "per_device_parallelism = 4", "micro_batch_size"),
        Wrong("", 'mp = "p=f32,c=bfloat16"', 'compute = "bfloat16"'),
        Wrong("precision", 'compute = "f32"', '"float32"'),
        Wrong("model", "seq_len = 1024", "data.sequence_length"),
        Wrong("model", "hidden_dim = 64", "hidden"),
        Wrong("optimizer", "min_lr_ratio = 0.1", "schedule.min_ratio"),
        Wrong("optimizer", 'lr_schedule = "cosine"', "schedule.type"),
        Wrong("train", "steps_per_eval = 100", "evaluate.every"),
        Wrong("checkpoint", 'every_minutes = "30m"', "every_minutes = 30"),
    ),
    "torchtune": (
        Wrong("model", '_component_ = "torchtune.models.llama3.llama3_8b"', 'type = "llama"'),
        Wrong("train", "max_steps_per_epoch = 100", "steps"),
        Wrong("", 'dtype = "bf16"', "precision.compute"),
        Wrong("precision", 'compute = "bf16"', '"bfloat16"'),
        Wrong("", 'device = "cuda"', 'platform = "gpu"'),
        Wrong("parallel", 'platform = "cuda"', '"gpu"'),
        Wrong("train", "enable_activation_checkpointing = true", 'remat = "blocks"'),
        Wrong("adapter", 'lora_attn_modules = ["q_proj", "v_proj"]', "targets"),
        Wrong("metric_logger", "project = 'x'", "track.wandb.project"),
        Wrong("train", "log_every_n_steps = 1", "leave it out"),
    ),
    "llama-factory": (
        Wrong("", 'model_name_or_path = "meta-llama/Llama-3.2-1B"', "model.pretrained"),
        Wrong("", 'stage = "sft"', "task.type"),
        Wrong("", 'finetuning_type = "lora"', "[adapter]"),
        Wrong("data", "cutoff_len = 2048", "sequence_length"),
        Wrong("adapter", 'targets = "all"', '"all-linear"'),
        Wrong("", 'template = "llama3"', "document"),
        Wrong("data", "val_size = 0.1", "held_out"),
        Wrong("", "quantization_bit = 4", 'base = "nf4"'),
    ),
    "nanogpt": (
        Wrong("model", "n_embd = 384", "hidden"),
        Wrong("", "block_size = 256", "data.sequence_length"),
        Wrong("", "decay_lr = true", "schedule.type"),
        Wrong("optimizer", "beta2 = 0.99", "betas"),
        Wrong("", 'init_from = "gpt2"', '[model] with pretrained = "gpt2"'),
        Wrong("evaluate", "eval_iters = 200", "max_batches"),
        Wrong("", "wandb_log = true", "[track] with wandb = true"),
        Wrong("", "compile = true", "leave it out"),
        Wrong("", 'model = "gpt2"', 'pretrained = "gpt2"'),
    ),
    # where the value, or another key, decides what to write
    "by value": (
        Wrong("optimizer", "beta1 = 0.8\nbeta2 = 0.99", "betas = [0.8, 0.99] in [optimizer]"),
        Wrong("optimizer", "adam_beta2 = 0.98", "betas = [0.9, 0.98] in [optimizer]"),
        Wrong("optimizer", 'type = "muon"\nadam_beta2 = 0.98', "betas = [0.9, 0.98] in [optimizer.adamw]"),
        Wrong("optimizer", 'type = "sgd"\nbeta1 = 0.9', 'type = "sgd" has momentum'),
        Wrong(
            "optimizer",
            "learning_rate = 2e-3\nmin_lr = 1e-4",
            "schedule.min_ratio here, a share of the learning rate: min_ratio = 0.05",
        ),
        Wrong("", "min_lr = 1.0", "it is called schedule.min_ratio"),
        Wrong(
            "train", "micro_batch_size = 2\ngradient_accumulation_steps = 4", "batch_size = 8 and micro_batch_size = 2"
        ),
        Wrong("train", "per_device_train_batch_size = 8", "that of a whole step: 8 with one device"),
        Wrong("train", "gradient_checkpointing = false", "leave it out"),
        Wrong("", "decay_lr = false", 'type = "constant"'),
        Wrong("", "sample_packing = false", "leave it out"),
        Wrong("", "eval_strategy = 'no'", "leave it out"),
        Wrong("", "evaluation_strategy = 'epoch'", "the steps of an epoch"),
        Wrong("train", "eval_steps = 50\neval_strategy = 'steps'", "every = 50"),
        Wrong("", "wandb_project = 'mine'", '[track.wandb] with project = "mine"'),
        Wrong("", 'dataset = "tatsu-lab/alpaca"', 'id = "tatsu-lab/alpaca"'),
        Wrong("", 'train_file = "a.jsonl.gz"', '[[data.train]] with path = "a.jsonl.gz"'),
        Wrong("", 'validation_file = "./a"', '[[data.validation]] with path = "./a"'),
        Wrong("optimizer", "decay = 0.1", "schedule.decay"),
        Wrong("checkpoint", "load_best_model_at_end = true", 'metric = "validation/held-out/loss" and mode = "min"'),
        Wrong("evaluate", 'metric_for_best_model = "eval_f1"', 'held-out/f1" and mode = "max"'),
        Wrong("track", 'report_to = "tensorboard"', "[track] with tensorboard = true"),
        Wrong("track", 'project = "x"\ntype = "wandb"', '[track.wandb] with project = "x"'),
        Wrong("train", "report_to = ['none']", "leave it out"),
        Wrong("checkpoint", "keep = [{ every = 1000 }]", "keep_every = 1000"),
        Wrong("adapter", 'finetuning_type = "lora"', "leave it out"),
        Wrong("adapter", 'target_modules = ["q_proj", "v_proj"]', 'targets = ["query", "value"]'),
        Wrong("", 'device = "cpu"', 'platform = "cpu"'),
        Wrong("track", "wandb_log = True", "wandb_log: write [track] with wandb = true"),
        Wrong("task", 'stage = "sft"', 'write type = "sft"'),
        Wrong("data", 'train_urls = ["gs://a/b.jsonl"]', '[[data.train]] with path = ["gs://a/b.jsonl"]'),
        Wrong("data", "max_samples = 1000", "limit in [[data.train]]"),
        Wrong("parallel", "model_axis_size = 2", "fsdp = 2 divides"),
        Wrong("track", 'tracker = { type = "wandb", project = "x", tags = ["a"] }', '[track.wandb] with project = "x"'),
        Wrong("train", "clip_grad_norm: null", "write max_grad_norm = 0"),
        Wrong("train", "clip_grad_norm: 1.0", "write max_grad_norm = 1.0 in [train]"),
        Wrong("", "base_model: a/b", 'write pretrained = "a/b" in [model]'),
        Wrong("", "lr_scheduler: cosine", 'write type = "cosine" in [schedule]'),
        Wrong("", "optimizer: adamw_bnb_8bit", 'write [optimizer] with type = "adamw" and moments = "int8"'),
        Wrong("", "load_in_4bit: False", "leave it out"),
        Wrong(
            "checkpoint", "always_save_checkpoint = false", '[checkpoint.best] with metric = "validation/held-out/loss"'
        ),
        Wrong("checkpoint", "always_save_checkpoint = true", "leave it out"),
        Wrong("data", 'dataset = "shakespeare_char"', 'path = "…", or'),
        Wrong("data", 'dataset_name = "imdb"', 'id = "imdb"'),
        Wrong(
            "train", "batch_size = 12\ngradient_accumulation_steps = 40", "batch_size = 480 and micro_batch_size = 12"
        ),
        Wrong("evaluate", "evals_per_epoch = 4", "divided by 4"),
        Wrong("", 'bf16 = "auto"', 'compute = "auto"'),
        Wrong("model", 'init_from = "gpt2-xl"', '[model] with pretrained = "gpt2-xl"'),
        Wrong("model", 'init_from = "scratch"', "random weights"),
        Wrong("adapter", "apply_lora_to_mlp = true", "leave it out"),
        Wrong("", 'finetuning_type = "full"', "leave it out: "),
        Wrong("model", '_component_ = "torchtune.models.llama3_2.lora_llama3_2_1b"', 'pretrained = "…"'),
        Wrong("track", '_component_ = "torchtune.training.metric_logging.DiskLogger"', "leave it out: every run"),
    ),
    # what people write whatever they used before
    "everybody": (
        Wrong("train", "STEPS = 20", "steps"),
        Wrong("optimizer", 'weight_decay = "10%"', "weight_decay = 0.1"),
        Wrong("train", 'tokens = "1B"', "tokens = 1000000000"),
        Wrong("data", 'sequence_length = "4k"', "sequence_length = 4096"),
        Wrong("tokenizer", 'train = { vocab_size = 300, max_bytes = "8GB" }', "max_bytes = 8000000000"),
        Wrong("", 'optimizer = "adamw"', '[optimizer] with type = "adamw"'),
        Wrong("", 'tokenizer = "gpt2"', '[tokenizer] with path = "gpt2"'),
        Wrong("data.train", 'type = "json"', '"files"'),
        Wrong("data.train", 'path = "a.jsonl"\ndocument = { type = "sharegpt" }', '"chat"'),
        Wrong("data.train", "weight = [0, 3.0]", "weight = [[0, 3.0]]"),
        Wrong("data.train", 'data_files = "a.txt"', "path"),
        Wrong("train", 'precision = "fp16"', '[precision] with compute = "float16"'),
        Wrong("optimizer", 'schedule = "cosine"', '[schedule] with type = "cosine"'),
        Wrong("train", "steps = 1e20", "steps must be at most 1,000,000,000"),
        Wrong("train", 'steps = "1000 steps"', "steps = 1000"),
        Wrong("optimizer", 'learning_rate = "3e-4,"', "learning_rate = 0.0003"),
        Wrong("optimizer", 'betas = "(0.9, 0.95)"', "betas = [0.9, 0.95]"),
        Wrong("checkpoint", 'keep_every = "100, 200"', "keep_every = [100, 200]"),
        Wrong("optimizer", 'betas = "0__0, 0.9"', "betas = [0, 0.9]"),
        Wrong("checkpoint", 'every_minutes = "1 hour"', "every_minutes = 60"),
        Wrong("train", 'max_grad_norm = "off"', "max_grad_norm = 0"),
        Wrong("model", 'dropout = "null"', "leave dropout out: the default is 0.0"),
        Wrong("parallel", 'data = "Auto"', 'did you mean "auto"?'),
        Wrong("sample", "temp = 0.7", "temperature"),
        Wrong("sample", "top = 5", "top_k or top_p"),
        Wrong("data", 'path = "a.txt"', "it belongs in [[data.train]]"),
        Wrong("data", "shuffle = 1000", "[data.shuffle] with window = 1000"),
        Wrong("evaluate", "interval = 5", "every"),
        Wrong("checkpoint", "best = 'loss'", '[checkpoint.best] with metric = "loss" and mode'),
        Wrong("train", 'lr_scheduler = { name = "cosine" }', "it is called [schedule] here"),
        Wrong("train", "args = { steps = 5 }", "write its keys in [train]"),
        Wrong("", "optim = { lr = 1e-3 }", "it is called [optimizer] here"),
    ),
}


def recipe_with(wrong: Wrong) -> str:
    """Return the sample recipe with a wrong line in the place of the right one, or beside it."""
    name = wrong.line.partition(" = ")[0]
    if not wrong.section:
        replaced = f"[{name}]"
        kept = TEXT.split("\n\n")
        kept = [part for part in kept if not part.startswith(replaced) and "[[datasets" not in part]
        parts = [kept[0], wrong.line, *kept[1:]] if not wrong.line.startswith("[") else [*kept, wrong.line]
        return "\n\n".join(parts)
    if wrong.section.startswith("["):
        return f"{TEXT}\n[{wrong.section}]\n{wrong.line}\n"
    header = f"[{wrong.section}]" if f"\n[{wrong.section}]" in TEXT else f"[[{wrong.section}]]"
    if f"\n{header}" not in TEXT:
        return f"{TEXT}\n[{wrong.section}]\n{wrong.line}\n"
    before, _, after = TEXT.partition(f"{header}\n")
    own, _, rest = after.partition("\n\n")
    keys = {line.partition(" = ")[0] for line in wrong.line.splitlines()}
    length = {"epochs", "tokens", "steps", "num_train_epochs", "num_train_steps", "STEPS"}
    dropped = (
        keys | (length if keys & length else set()) | ({"type"} if "path" in keys or "data_files" in keys else set())
    )
    lines = [line for line in own.splitlines() if line.partition(" = ")[0] not in dropped]
    return "\n".join([before + header, *lines, wrong.line, "", rest])


def hint_to(directory: Path, wrong: Wrong) -> str:
    """Return the hint to a line in the sample recipe; empty if no error names its place."""
    text = recipe_with(wrong)
    with pytest.raises(TrainkitError) as raised:
        load(write(directory, text))
    lines = wrong.line.splitlines()
    # of a table, and of a section that is none of ours, the line of the header may be the one
    number = line_of(text, lines[-1] if wrong.section else lines[0])
    blocks: dict[int, str] = {}
    for block in str(raised.value).split("\n\n"):
        if place := re.search(r"sample\.toml:(\d+)", block.split("\n")[0]):
            blocks.setdefault(int(place[1]), block)
    is_foreign = wrong.section and f"[{wrong.section}]" not in TEXT and "\n" not in wrong.line
    places = (number - 1, number) if is_foreign else (number, number - 1)
    return next((blocks[place] for place in places if place in blocks), "").partition("hint: ")[2]


@pytest.mark.parametrize("trainer", ALL)
def test_what_another_trainer_calls_it_is_answered_with_what_to_write(tmp_path: Path, trainer: str) -> None:
    hints = {wrong: hint_to(tmp_path, wrong) for wrong in ALL[trainer]}
    assert not {wrong: hint for wrong, hint in hints.items() if wrong.hint not in hint}


@pytest.mark.parametrize("table", [real_configurations, rarer_configurations, natural_configurations])
@pytest.mark.parametrize("trainer", real_configurations.ALL)
def test_lines_that_another_trainer_publishes_are_answered_with_what_to_write(
    tmp_path: Path, trainer: str, table: ModuleType
) -> None:
    published = map(Wrong._make, table.ALL[trainer])
    hints = {wrong: hint_to(tmp_path, wrong).split("\n")[0] for wrong in published}
    assert not {
        wrong: hint
        for wrong, hint in hints.items()
        if not re.search(wrong.hint, hint) or hint.startswith("allowed here")
    }


@pytest.mark.parametrize("value", ["1e308", "inf", "nan", "-1", "9" * 3000, '""', "[]", "{ a = 1 }", "true", '"x"'])
def test_no_value_of_another_trainers_key_is_too_odd_for_an_answer(tmp_path: Path, value: str) -> None:
    lines = [f"{name.rpartition('.')[2]} = {value}" for name in RULES]
    begin = re.sub("learning_rate = .*", "learning_rate = inf", TEXT)
    text = begin.replace("[train]\n", "[train]\n" + "\n".join(dict.fromkeys(lines)) + "\n")
    with pytest.raises(TrainkitError, match=r"no such (key|section)\n  hint: "):
        load(write(tmp_path, text))


def test_a_table_whose_keys_all_belong_elsewhere_is_no_mistake_beside_them(tmp_path: Path) -> None:
    with pytest.raises(TrainkitError) as raised:
        load(write(tmp_path, f'{TEXT}\n[trainer]\nmp = "p=f32,c=bfloat16"\n'))
    assert "mp = " in str(raised.value) and "no such section" not in str(raised.value)


def test_what_a_checkpoint_brings_is_not_missing_where_its_key_has_another_name(tmp_path: Path) -> None:
    parts = [part for part in TEXT.split("\n\n") if not part.startswith(("[model]", "[tokenizer]"))]
    with pytest.raises(TrainkitError) as raised:
        load(write(tmp_path, "\n\n".join([parts[0], 'base_model = "gpt2"', *parts[1:]])))
    assert "it is called model.pretrained" in str(raised.value) and "missing" not in str(raised.value)


def test_the_sizes_of_a_model_are_not_missing_where_a_hint_names_a_checkpoint(tmp_path: Path) -> None:
    model = next(part for part in TEXT.split("\n\n") if part.startswith("[model]"))
    with pytest.raises(TrainkitError) as raised:
        load(write(tmp_path, TEXT.replace(model, "[model]\ninit_from = 'gpt2-xl'")))
    assert 'pretrained = "gpt2-xl"' in str(raised.value) and "missing" not in str(raised.value)


def test_what_a_hint_says_to_write_is_not_called_missing(tmp_path: Path) -> None:
    text = changed(('type = "python-stdlib"', 'source = "a/b"')).replace("[[data.train]]", "[dataset]")
    with pytest.raises(TrainkitError) as raised:
        load(write(tmp_path, text))
    assert 'id = "a/b"' in str(raised.value) and "missing" not in str(raised.value)


def test_there_are_enough_of_each_trainer() -> None:
    assert sum(map(len, ALL.values())) >= 60 and min(map(len, ALL.values())) >= 8


def test_what_is_inside_a_section_of_another_trainer_is_answered_too(tmp_path: Path) -> None:
    text = changed(('type = "python-stdlib"', 'path = "a.txt"')).replace("[[data.train]]", "[[datasets]]")
    text = text.replace("[train]", "[trainer]").replace("steps = 20", "num_train_steps = 20\ngrad_clip = -1.0")
    text = text.replace('path = "a.txt"', 'path = "a.txt"\ntype = "json"\ntext_field = "content"')
    with pytest.raises(TrainkitError) as raised:
        load(write(tmp_path, text))
    said = str(raised.value)
    for line, answer in (
        ("[[datasets]]", "[[data.train]]"),
        ('type = "json"', 'did you mean "files"?'),
        ("text_field =", "it is called text_key here"),
        ("[trainer]", "it is called train here"),
        ("num_train_steps =", "it is called steps here"),
        ("grad_clip =", "it is called max_grad_norm here"),
        ("grad_clip =", "train.max_grad_norm = -1.0 (written as trainer.grad_clip): expected a number from 0"),
    ):
        blocks = [b for b in said.split("\n\n") if f"sample.toml:{line_of(text, line)}: " in b]
        assert any(answer in block for block in blocks), (line, said)
    assert len(said.split("\n\n")) == 8, said


def test_thousands_of_mistakes_are_counted_and_some_of_them_shown(tmp_path: Path) -> None:
    text = TEXT + "".join(f"key_{number} = {number}\n" for number in range(5000))
    with pytest.raises(TrainkitError) as raised:
        load(write(tmp_path, text))
    said = str(raised.value)
    assert "5,000 mistakes; 50 of them:" in said and len(said) < 20_000
    assert f"sample.toml:{line_of(text, 'key_0 = ')}: track.key_0 = 0: no such key" in said
