"""trainkit's own step, built from a recipe as a run builds it: plan, model, optimiser, compile. A contender of
`step.py`; given `memory` or `checkpoint` before the work, it measures that of the same step instead.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from step_jax import device_peak
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
    answer_help,
    batch,
    serve,
    weights,
)

from trainkit import models
from trainkit.checkpoint.provenance import Provenance
from trainkit.data.batches.layout import Layout
from trainkit.events.log import EventLog
from trainkit.events.schema import Event
from trainkit.parallel import devices, mesh
from trainkit.parallel.xla import use_compile_cache
from trainkit.plan import DataSize, make_plan
from trainkit.recipe import Recipe
from trainkit.recipe.families.sizes import tokens_in_block
from trainkit.recipe.toml.load import load
from trainkit.train import program as compiling
from trainkit.train.checkpointing import Checkpointing
from trainkit.train.prefetch import to_device
from trainkit.train.program import Program
from trainkit.train.state import State


class Data:
    """The batches of the work, as a run's training data gives them."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def batch(self, step: int, rows: Array | None = None) -> dict[str, Array]:
        tokens, targets = (ids.astype(self._stored) for ids in batch(self._shape, step))
        return {"tokens": tokens, "targets": targets, "weights": np.ones(tokens.shape, np.float32)}

    def layouts(self) -> dict[int, Layout]:
        size = (self._shape.sequences, self._shape.length)
        ids = (size, self._stored)
        return {self._shape.length: {"tokens": ids, "targets": ids, "weights": (size, np.dtype(np.float32))}}

    @property
    def _stored(self) -> np.dtype:
        return np.dtype(np.uint16 if self._shape.vocab <= 1 << 16 else np.uint32)


class Prepared(NamedTuple):
    """The compiled step, and what it was made from."""

    recipe: Recipe
    step: Program
    data: Data


def compiled(work: Work, directory: Path) -> Prepared:
    """Nothing is allocated on the device."""
    recipe_file = directory / "step.toml"
    recipe_file.write_text(recipe_text(work))
    recipe = load(recipe_file, work.overrides).recipe
    data = Data(work.shape)
    size = DataSize(examples=1 << 20, tokens=(1 << 20) * work.shape.length, documents=1 << 20, bytes=1 << 30)
    local = devices.local(work.platform)
    plan = make_plan(recipe, devices=local, vocab_size=work.shape.vocab, data=size)
    built = compiling.build(recipe, plan)
    return Prepared(recipe, compiling.fit_program(recipe, plan, built, data.layouts()), data)


def first_state(prepared: Prepared, shape: Shape) -> State:
    """The state of a new run, with the weights that all contenders begin with."""
    built = prepared.step.built
    state = jax.jit(built.initial, out_shardings=built.shardings)(jax.random.key(0))
    leaves = dict(weights(shape))
    structure = jax.tree.structure(state.params)
    names = jax.tree.leaves(models.leaf_names(state.params))
    assert sorted(names) == sorted(leaves), f"trainkit has {sorted(names)}"
    params = [
        jax.device_put(leaves.pop(name).reshape(old.shape).astype(old.dtype), old.sharding)
        for name, old in zip(names, jax.tree.leaves(state.params), strict=True)
    ]
    return eqx.tree_at(lambda state: state.params, state, structure.unflatten(params))


def batches(prepared: Prepared, count: int) -> list[dict[str, jax.Array]]:
    """On the device."""
    program = prepared.step
    sharding, accumulation = mesh.batch_sharding(program.built.mesh), program.plan.batch.accumulation
    return [to_device(prepared.data.batch(i), accumulation=accumulation, sharding=sharding) for i in range(count)]


def prepare(work: Work) -> Contender:
    with tempfile.TemporaryDirectory(prefix="trainkit-step-") as directory:
        prepared = compiled(work, Path(directory))
    state, kept = first_state(prepared, work.shape), batches(prepared, work.curve)

    def step(number: int) -> jax.Array:
        nonlocal state
        state, metrics = prepared.step(state, kept[number])
        return metrics["train/loss"]

    plan = prepared.step.plan
    return Contender(
        step=step,
        wait=lambda loss: loss.block_until_ready(),
        loss=float,
        peak_bytes=device_peak,
        facts={
            "jax": jax.__version__,
            "device": plan.devices.kind,
            "attention": prepared.step.built.attention.name,
            "micro_batch": plan.batch.micro,
            "remat": plan.remat,
            "flops_per_token": plan.flops_per_token,
            "parameters": plan.parameters,
        },
    )


def memory(work: Work) -> dict[str, int]:
    """Bytes that XLA gives the compiled step beside its arguments, those of one block of logits, and how many
    parameters there are."""
    with tempfile.TemporaryDirectory(prefix="trainkit-step-") as directory:
        program = compiled(work, Path(directory)).step
    (step,) = program.by_shapes.values()
    rows, shape = program.plan.batch.micro, work.shape
    tokens = tokens_in_block(
        tokens=rows * shape.length, hidden=shape.hidden, vocab_size=shape.vocab, platform=jax.default_backend()
    )
    return {
        "temporary": step.memory_analysis().temp_size_in_bytes,
        "block": 4 * tokens * shape.vocab,
        "parameters": program.plan.parameters,
    }


def checkpoint(work: Work, rounds: int) -> dict[str, object]:
    """What one checkpoint costs: the seconds that the same number of steps takes longer when one is saved after the
    first of them and is on disk after the last; in pairs, who is first taking turns."""
    events: list[Event] = []
    with tempfile.TemporaryDirectory(prefix="trainkit-step-") as name:
        directory = Path(name)
        prepared = compiled(work, directory)
        log = EventLog(directory, attempt=1, echo=events.append)
        state, kept = first_state(prepared, work.shape), batches(prepared, work.curve)
        provenance = Provenance(recipe="", data="", attempt=1)
        saving = Checkpointing(directory, prepared.recipe.checkpoint, provenance=lambda last: provenance, log=log)
        number = 0

        def saved() -> list[Event]:
            return [event for event in events if event["type"] == "checkpoint_saved"]

        def steps(least: int, *, save: bool) -> tuple[float, int]:
            """Seconds, and how many steps there were: more than `least` only where the disk is slower."""
            nonlocal state, number
            expected, before, done = len(saved()) + save, None, 0
            began = time.perf_counter()
            while done < least or len(saved()) < expected:
                state, metrics = prepared.step(state, kept[number % len(kept)])
                number, done = number + 1, done + 1
                if save and done == 1:
                    saving.save(state, number, requested=True)
                saving.report(number)
                if before is not None:
                    before["train/loss"].block_until_ready()
                before = metrics
            jax.block_until_ready(before)
            return time.perf_counter() - began, done

        steps(2, save=False)
        _, writing = steps(2, save=True)  # the first one also compiles the snapshot
        _, writing = steps(2, save=True)
        long, costs, lengths = 2 * writing, [], []
        for i in range(rounds):
            if i % 2:
                plain, saving_too = steps(long, save=False), steps(long, save=True)
            else:
                saving_too, plain = steps(long, save=True), steps(long, save=False)
            costs.append(saving_too[0] - plain[0] * saving_too[1] / plain[1])
            lengths.append(plain[0] / plain[1])
        saving.close()
        last = saved()[-1]
        return {"costs": costs, "step": float(np.median(lengths)), "bytes": last["bytes"], "writing": last["seconds"]}


def recipe_text(work: Work) -> str:
    """The work as a recipe."""
    shape = work.shape
    model = {"type": shape.family, "layers": shape.layers, "hidden": shape.hidden, "heads": shape.heads}
    model["intermediate"] = shape.intermediate
    if shape.family == "llama":
        model |= {"kv_heads": shape.kv_heads, "rope_theta": ROPE_THETA, "rms_norm_eps": NORM_EPS, "tied": True}
    tables = {
        "model": model,
        "tokenizer": {"train": {"vocab_size": 4096}},  # never trained: the batches are there already
        "data": {"sequence_length": shape.length, "train": [{"type": "python-stdlib"}]},
        "train": {"steps": 1_000_000, "batch_size": shape.sequences, "max_grad_norm": MAX_NORM},
        "optimizer": {
            "type": "adamw",
            "learning_rate": LEARNING_RATE,
            "betas": list(BETAS),
            "eps": EPS,
            "weight_decay": WEIGHT_DECAY,
        },
        "schedule": {"type": "constant", "warmup": 0},
        "precision": {"compute": work.compute},
        "parallel": {"data": 1},
        "track": {"aim": False},
    }
    lines = ["schema = 1"]
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


if __name__ == "__main__":
    answer_help()
    use_compile_cache()
    if sys.argv[1] == "memory":
        print(json.dumps(memory(Work.from_json(sys.argv[2]))))
    elif sys.argv[1] == "checkpoint":
        print(json.dumps(checkpoint(Work.from_json(sys.argv[2]), rounds=int(sys.argv[3]))))
    else:
        serve(prepare)
