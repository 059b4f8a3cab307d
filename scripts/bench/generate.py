"""Cached decoding by trainkit and by transformers' generate: tokens a second, and their ratio.

uv run python scripts/bench/generate.py --torch PYTHON          # GPT-2 of 124M parameters, batches of 1 and 16
uv run python scripts/bench/generate.py --torch PYTHON --new 32 --rounds 3

`PYTHON` has torch and transformers. Both are processes that stay warm and give one sample each in turn, the first of a
round changing; both decode greedily, in float32, from the same number of prompt tokens to the same number of new ones,
with random weights. A sample is one call, the prompt's reading included. On a shared machine only ratios mean anything.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from paired import environment_of

VOCAB, LAYERS, HIDDEN, HEADS, CONTEXT = 50_257, 12, 768, 12, 1024
CONTENDERS = ("trainkit", "transformers")
Sample = Callable[[], object]


def of_trainkit(batch: int, prompt: int, new: int) -> Sample:
    import jax

    from trainkit import models
    from trainkit.infer.generator import Generator, Request
    from trainkit.infer.sampling import Sampling
    from trainkit.recipe.families.gpt2 import Gpt2

    class NoText:
        end_of_text = -1

        def encode(self, text: str, /) -> list[int]:
            return []

        def decode(self, ids: object, /) -> str:
            return ""

    spec = Gpt2(layers=LAYERS, hidden=HIDDEN, heads=HEADS, context_length=CONTEXT)
    build = jax.jit(
        lambda key: models.build(spec, vocab_size=VOCAB, sequence_length=CONTEXT, implementation="xla", key=key)
    )
    generator = Generator(build(jax.random.key(0)), NoText(), ends=())
    requests = [Request([(row * prompt + i) % VOCAB for i in range(prompt)]) for row in range(batch)]

    def sample() -> None:
        answers = generator.answers(requests, max_tokens=new, sampling=Sampling(temperature=0))
        assert {len(answer.ids) for answer in answers} == {new}

    return sample


def of_transformers(batch: int, prompt: int, new: int) -> Sample:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    config = GPT2Config(vocab_size=VOCAB, n_layer=LAYERS, n_embd=HIDDEN, n_head=HEADS, n_positions=CONTEXT)
    model = GPT2LMHeadModel(config).eval()
    ids = torch.arange(batch * prompt).reshape(batch, prompt) % VOCAB

    def sample() -> None:
        with torch.inference_mode():
            found = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                pad_token_id=0,
            )
        assert found.shape == (batch, prompt + new)

    return sample


def work(contender: str, batch: int, prompt: int, new: int) -> None:
    """A contender's process: one sample, in seconds, for each line that comes."""
    sample = (of_trainkit if contender == "trainkit" else of_transformers)(batch, prompt, new)
    sample()
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        sample()
        print(json.dumps(time.perf_counter() - started), flush=True)


class Contender:
    def __init__(self, name: str, python: str, *numbers: int) -> None:
        self.name, self.seconds = name, list[float]()
        command = [python, __file__, "--work", name, *map(str, numbers)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, env=environment_of(python), **pipes)
        self.answer()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            try:
                return json.loads(line)
            except ValueError:  # what a library had to say
                continue
        sys.exit(f"{self.name} ended with {self._process.wait()}")

    def take(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.seconds.append(self.answer())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(batch: int, arguments: argparse.Namespace) -> None:
    numbers = (batch, arguments.prompt, arguments.new)
    pythons = {"trainkit": sys.executable, "transformers": arguments.torch}
    contenders = [Contender(name, pythons[name], *numbers) for name in CONTENDERS]
    for number in range(arguments.rounds):
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            contender.take()
    rates = {c.name: [batch * arguments.new / seconds for seconds in c.seconds] for c in contenders}
    for name, found in rates.items():
        middle = statistics.median(found)
        print(f"batch {batch:2}  {name:12}  {middle:8.1f} tokens/s  ({min(found):.1f} to {max(found):.1f})")
    ratios = [ours / theirs for ours, theirs in zip(*rates.values(), strict=True)]
    print(f"batch {batch:2}  ratio         {statistics.median(ratios):8.2f}  ({min(ratios):.2f} to {max(ratios):.2f})")
    for contender in contenders:
        contender.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", nargs=4, metavar=("CONTENDER", "BATCH", "PROMPT", "NEW"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work[0], *map(int, arguments.work[1:]))
        return
    for batch in arguments.batches:
        compare(batch, arguments)


if __name__ == "__main__":
    main()
