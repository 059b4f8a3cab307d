"""Supervised fine-tuning and DPO by trainkit and by trl's trainers: their speed on the same data, and its ratio.

uv run python scripts/bench/tuning.py --torch PYTHON                 # both; PYTHON has torch, transformers and trl
uv run python scripts/bench/tuning.py --torch PYTHON sft --rounds 5

A Llama of 11M parameters with random weights, float32, AdamW; both begin with the same directory in Hugging Face's
format. `sft`: prompts with answers whose lengths are log-normal, packed into rows of 512 tokens by both; tokens a
second without padding. trl's rows do not say where a document ends, which trainkit's attention keeps to: that costs
trainkit, not trl. `dpo`: pairs a second, with the reference's log-likelihoods computed before the first step by both.
Each sample is a process of its own that trains a few steps; the first steps are not counted, and the median of the
others is. The first of a round changes. A ratio is trainkit / trl: above 1 trainkit is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

VOCAB, LAYERS, HIDDEN, HEADS, LENGTH = 8192, 4, 256, 4, 512
BATCH = {"sft": 8, "dpo": 8}
STEPS, UNCOUNTED, ROWS = 14, 4, 1500

RECIPE = """
schema = 1
[run]
name = "tuned"
[model]
pretrained = "model"
[task]
type = "{task}"
{options}
[data]
sequence_length = {length}
encoding = {encoding}
[[data.train]]
path = "{rows}.jsonl"
document = {document}
[train]
steps = {steps}
batch_size = {batch}
micro_batch_size = {batch}
[optimizer]
learning_rate = 1e-5
[precision]
compute = "float32"
[checkpoint]
every_minutes = 1000
[track]
aim = false
"""
PARTS = {
    "sft": {
        "task": "causal-lm",
        "options": "",
        "encoding": '{ type = "pack" }',
        "document": '{ type = "prompt", prompt = "{prompt}", response = "{completion}" }',
    },
    "dpo": {
        "task": "preference",
        "options": 'loss = "dpo"',
        "encoding": '{ type = "pad", buckets = [128, 256, 384] }',
        "document": '{ type = "preference", prompt = "{prompt}", chosen = "{chosen}", rejected = "{rejected}" }',
    },
}


def write_rows(place: Path) -> None:
    """Write rows of prompts and answers, cut from the standard library's source in log-normal lengths."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    words = " ".join(path.read_text("utf-8", "replace") for path in sources).split()
    draw = random.Random(0)

    def text(median: float) -> str:
        count = max(2, min(160, round(draw.lognormvariate(0, 0.8) * median)))
        begin = draw.randrange(len(words) - count)
        return " ".join(words[begin : begin + count])

    tuned = [{"prompt": text(15) + "\n", "completion": text(35)} for _ in range(ROWS)]
    pairs = [{"prompt": text(15) + "\n", "chosen": text(25), "rejected": text(25)} for _ in range(ROWS // 4)]
    for name, rows in (("sft", tuned), ("dpo", pairs)):
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        steps = {"length": LENGTH, "rows": name, "steps": STEPS, "batch": BATCH[name]}
        (place / f"{name}.toml").write_text(RECIPE.format(**PARTS[name], **steps))


def of_trainkit(what: str, place: Path) -> dict[str, float]:
    """Train by `trainkit run`, and return what its log says of the counted steps."""
    name = f"tuned-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "trainkit", "run", f"{what}.toml", "--plain", "--name", name]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    events = map(json.loads, (place / "runs" / name / "events.jsonl").read_text().splitlines())
    steps = [e["metrics"] for e in events if e["type"] == "step" and e["step"] > UNCOUNTED]
    seconds = [step["time/step"] for step in steps if "time/step" in step]
    tokens = [s["throughput/tokens_per_second"] * s["time/step"] for s in steps if "time/step" in s]
    return {"seconds": statistics.median(seconds), "tokens": statistics.mean(tokens)}


def prepare_torch(place: Path) -> None:
    """Write the model and its tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    codec = Tokenizer(models.BPE())
    codec.pre_tokenizer, codec.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=["<|end|>", "<|pad|>"], initial_alphabet=alphabet, show_progress=False
    )
    codec.train([str(place / "sft.jsonl")], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=codec, eos_token="<|end|>", pad_token="<|pad|>")
    tokenizer.save_pretrained(place / "model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=4 * HIDDEN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=HEADS, max_position_embeddings=LENGTH,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(place / "model")


def of_trl(what: str, place: Path) -> dict[str, float]:
    """Train by trl's trainer, with its defaults but for what makes the two the same work."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    class Clock(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_step_end(self, *_: object, **__: object) -> None:
            self.ends.append(time.perf_counter())

    rows = Dataset.from_list([json.loads(line) for line in (place / f"{what}.jsonl").read_text().splitlines()])
    same: dict[str, Any] = {
        "output_dir": str(place / "trl"), "max_steps": STEPS, "per_device_train_batch_size": BATCH[what],
        "max_length": LENGTH, "learning_rate": 1e-5, "gradient_checkpointing": False, "bf16": False, "use_cpu": True,
        "report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True,
    }  # fmt: skip
    clock = Clock()
    parts = {
        "model": AutoModelForCausalLM.from_pretrained(place / "model"),
        "processing_class": AutoTokenizer.from_pretrained(place / "model"),
        "train_dataset": rows,
        "callbacks": [clock],
    }
    if what == "sft":
        trainer = SFTTrainer(args=SFTConfig(**same, packing=True), **parts)
        packed = trainer.train_dataset["input_ids"]
        tokens = BATCH[what] * statistics.mean(map(len, packed))
    else:
        trainer = DPOTrainer(args=DPOConfig(**same, precompute_ref_log_probs=True), **parts)
        tokens = 0.0
    trainer.train()
    taken = [after - before for before, after in zip(clock.ends, clock.ends[1:], strict=False)]
    return {"seconds": statistics.median(taken[UNCOUNTED - 1 :]), "tokens": tokens}


def in_torch(python: str, *words: str) -> str:
    """Run this file by the Python that has trl; return the last line that it prints."""
    done = subprocess.run([python, __file__, *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{python} {' '.join(words)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout.strip().rpartition("\n")[2]


def compare(what: str, place: Path, python: str, rounds: int) -> None:
    """Measure both in turns, and print the ratio of their speeds and, of packed rows, how full they are."""
    from paired import report

    def sample(which: str) -> dict[str, float]:
        if which == "trainkit":
            return of_trainkit(what, place)
        return dict(json.loads(in_torch(python, "--sample", what, str(place))))

    sample("trainkit")  # tokens and the compiled step are in their caches afterwards
    found: list[dict[str, dict[str, float]]] = []
    for number in range(rounds):
        order = ("trainkit", "trl") if number % 2 else ("trl", "trainkit")
        found.append({which: sample(which) for which in order})

    def speeds(which: str) -> list[float]:
        work = "tokens" if what == "sft" else None
        return [(s[which][work] if work else BATCH[what]) / s[which]["seconds"] for s in found]

    ours, theirs = speeds("trainkit"), speeds("trl")
    unit = "tokens/s" if what == "sft" else "pairs/s"
    absolute = f"{statistics.median(ours):.1f} {unit} and {statistics.median(theirs):.1f} {unit}"
    report(f"{what}: trainkit / trl", [a / b for a, b in zip(ours, theirs, strict=True)], absolute)
    if what == "sft":
        for which in ("trainkit", "trl"):
            share = statistics.mean(s[which]["tokens"] for s in found) / (BATCH[what] * LENGTH)
            print(f"sft: {share:.1%} of the positions of {which}'s packed rows are tokens", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--torch", metavar="PYTHON", help="a Python that has torch, transformers and trl")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sample", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--prepare", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.prepare:
        prepare_torch(Path(arguments.prepare))
    elif arguments.sample:
        print(json.dumps(of_trl(arguments.sample[0], Path(arguments.sample[1]))))
    elif not arguments.torch:
        parser.error("--torch PYTHON is needed")
    else:
        from paired import begin

        begin()
        os.environ["HF_HUB_OFFLINE"] = "1"
        with tempfile.TemporaryDirectory(prefix="trainkit-bench-") as directory:
            place = Path(directory)
            write_rows(place)
            in_torch(arguments.torch, "--prepare", directory)
            for what in arguments.what or PARTS:
                compare(what, place, arguments.torch, arguments.rounds)


if __name__ == "__main__":
    main()
