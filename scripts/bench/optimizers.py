"""What a step of Muon and of SOAP costs, trainkit's and a reference's, in turns on one machine, on GPT-2 of 124M.

uv run python scripts/bench/optimizers.py --torch PYTHON             # PYTHON has torch with torch.optim.Muon
uv run python scripts/bench/optimizers.py --torch PYTHON muon --rounds 5
uv run python scripts/bench/optimizers.py --torch PYTHON soap --layers 1 --rounds 1

Only the update is measured, with the same random gradients at each step, in float32 on the CPU. Everything but the
hidden matrices is updated by AdamW: fused in torch.

- muon: `torch` is torch.optim.Muon, which always computes its Newton-Schulz iterations in bfloat16: that is fast on a
  processor with instructions for it. So does `trainkit-bfloat16` (`compute = "bfloat16"`). `torch-float32` is the same
  rule, its rounding to bfloat16 taken away; torch has no option for it. `optax` is optax.contrib.muon, in float32.
- soap: `package` is the one that users of torch install, `SOAP` of pytorch-optimizer; it is left out where PYTHON does
  not have it. `torch` is the published algorithm, written out below as lean as it can be, without sorting the basis.
  trainkit and it begin with the identity as basis, in place of the eigenvectors that the first step of all computes
  once. A sample is as many steps as there are from one update of the basis to the next.

Each contender is a process of its own, warm before the first sample. The first of a round changes. A ratio is
trainkit / reference: above 1 trainkit is slower. Those of the same type of numbers are asked to be at most 1.15.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from step_work import Shape, sizes

if TYPE_CHECKING:
    import torch

#: Who is compared with whom.
PAIRS = {
    "muon": (
        ("trainkit", "torch-float32"),
        ("trainkit", "optax"),
        ("trainkit-bfloat16", "torch"),
        ("trainkit", "torch"),
    ),
    "soap": (("trainkit", "package"), ("trainkit", "torch")),
}
#: Pairs of which nothing is asked: of numbers of two types, and of what is leaner than any implementation in use.
UNLIKE = {("muon", "trainkit", "torch"), ("soap", "trainkit", "torch")}
#: Steps of a sample. SOAP updates its basis in one of `EVERY` steps.
EVERY = 10
STEPS = {"muon": 3, "soap": EVERY}
RATE, MOMENTUM, ITERATIONS, BETAS, EPS = 0.01, 0.95, 5, (0.95, 0.95), 1e-8
DECAY = {"muon": 0.1, "soap": 0.01}
ADAM_BETAS = (0.9, 0.999)
ALLOWED = 1.15


def drawn(layers: int, seed: int) -> dict[str, np.ndarray]:
    """Return random arrays of the shapes of GPT-2 124M's parameters, by trainkit's names."""
    shape = Shape(
        vocab=50_304, layers=layers, hidden=768, heads=12, kv_heads=12, intermediate=3072, length=1024, sequences=1
    )
    random = np.random.default_rng(seed)
    return {name: 0.02 * random.standard_normal(size, np.float32) for name, (size, _) in sizes(shape).items()}


def is_hidden(name: str, array: np.ndarray) -> bool:
    """Whether these are the matrices of a kind, one of each layer: (layers, inputs, outputs)."""
    return name.startswith("blocks.") and array.ndim == 3


def of_trainkit(rule: str, layers: int, compute: Literal["float32", "bfloat16"] = "float32") -> Callable[[], None]:
    """Return a function that takes one step."""
    from trainkit import optim
    from trainkit.recipe.optimizers.adam import AdamW
    from trainkit.recipe.optimizers.matrix import Muon, Soap

    adamw: Any = AdamW(learning_rate=RATE, betas=ADAM_BETAS, eps=EPS)
    common: dict[str, Any] = {"type": rule, "learning_rate": RATE, "weight_decay": DECAY[rule], "adamw": adamw}
    spec: Muon | Soap
    if rule == "muon":
        spec = Muon(**common, momentum=MOMENTUM, iterations=ITERATIONS, compute=compute)
    else:
        spec = Soap(**common, betas=BETAS, eps=EPS, every=EVERY)
    params = drawn(layers, 0)
    return in_jax(optim.build(spec, {name: name for name in params}, params), params, layers, -RATE)


def of_optax(rule: str, layers: int) -> Callable[[], None]:
    """Return a function that takes one step."""
    from optax import contrib

    params = drawn(layers, 0)
    axes = {n: contrib.MuonDimensionNumbers(1, 2) if is_hidden(n, a) else None for n, a in params.items()}
    muon = contrib.muon(
        RATE, ns_steps=ITERATIONS, beta=MOMENTUM, weight_decay=DECAY[rule], adam_b1=ADAM_BETAS[0],
        adam_b2=ADAM_BETAS[1], muon_weight_dimension_numbers=axes,
    )  # fmt: skip
    return in_jax(muon, params, layers, 1.0)


def in_jax(rule: Any, params: dict[str, np.ndarray], layers: int, factor: float) -> Callable[[], None]:
    """Return a function that takes one step, compiled as a whole, and waits for it; `factor` multiplies updates."""
    import jax
    import jax.numpy as jnp
    import optax

    from trainkit.optim.soap import SoapState

    rule = optax.with_extra_args_support(rule)

    def started(state: Any) -> Any:
        if not isinstance(state, SoapState):
            return state
        bases = jax.tree.map(lambda b: jnp.broadcast_to(jnp.eye(b.shape[-1]), b.shape), state.bases)
        return state._replace(step=jnp.int32(1), bases=bases)

    def first(params: Any) -> Any:
        return params, jax.tree.map(started, rule.init(params), is_leaf=lambda node: isinstance(node, SoapState))

    def after(state: Any, grads: Any) -> Any:
        params, inner = state
        updates, inner = rule.update(grads, inner, params, key=jax.random.key(0), value=1.0, learning_rate=RATE)
        return jax.tree.map(lambda p, u: p + factor * u, params, updates), inner

    state, grads = jax.jit(first)(params), jax.device_put(drawn(layers, 1))
    step = jax.jit(after, donate_argnums=0).lower(state, grads).compile()

    def take() -> None:
        nonlocal state
        state = jax.block_until_ready(step(state, grads))

    return take


def of_torch(rule: str, layers: int, *, package: bool = False) -> Callable[[], None]:
    """Return a function that takes one step of parameters that are not stacked, as a model in torch has them."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    hidden: list[torch.Tensor] = []
    others: list[torch.Tensor] = []
    for (name, values), gradients in zip(drawn(layers, 0).items(), drawn(layers, 1).values(), strict=True):
        stacked = name.startswith("blocks.")
        for value, gradient in zip(values, gradients, strict=True) if stacked else [(values, gradients)]:
            parameter = torch.tensor(value, requires_grad=True)
            parameter.grad = torch.tensor(gradient)
            (hidden if is_hidden(name, values) else others).append(parameter)
    adamw = torch.optim.AdamW(others, lr=RATE, betas=ADAM_BETAS, eps=EPS, weight_decay=0.0, fused=True)
    step: Callable[[], object]
    if rule == "muon":
        muon = torch.optim.Muon(hidden, lr=RATE, weight_decay=DECAY[rule], momentum=MOMENTUM, ns_steps=ITERATIONS)
        step = muon.step
    else:
        step = soap(hidden) if not package else package_soap(hidden)

    def take() -> None:
        step()
        adamw.step()

    return take


def of_torch_in_float32(rule: str, layers: int) -> Callable[[], None]:
    """Return a function that takes one step, in which nothing is rounded to bfloat16."""
    import torch

    torch.Tensor.bfloat16 = torch.Tensor.float  # type: ignore[method-assign,assignment]
    return of_torch(rule, layers)


def soap(matrices: list[torch.Tensor]) -> Callable[[], None]:
    """Return a function that takes one step of SOAP (Vyas et al. 2024, arXiv:2409.11321, algorithms 3 and 4)."""
    import torch

    (b1, b2), numbers = BETAS, itertools.count(1)
    moments = [(torch.zeros_like(w), torch.zeros_like(w)) for w in matrices]
    averages = [[torch.zeros(side, side) for side in w.shape] for w in matrices]
    bases = [[torch.eye(side) for side in w.shape] for w in matrices]

    @torch.no_grad()
    def take() -> None:
        number = next(numbers)
        scale = (1 - b2**number) ** 0.5 / (1 - b1**number)
        for w, (m, v), (left, right), basis in zip(matrices, moments, averages, bases, strict=True):
            g = w.grad
            assert g is not None
            q_left, q_right = basis
            rotated = q_left.T @ g @ q_right
            m.lerp_(g, 1 - b1)
            v.mul_(b2).addcmul_(rotated, rotated, value=1 - b2)
            direction = (q_left.T @ m @ q_right).div_(v.sqrt().add_(EPS))
            w.mul_(1 - RATE * DECAY["soap"]).add_(q_left @ direction @ q_right.T, alpha=-RATE * scale)
            left.addmm_(g, g.T, beta=b2, alpha=1 - b2)
            right.addmm_(g.T, g, beta=b2, alpha=1 - b2)
            if number % EVERY == 0:
                basis[:] = [torch.linalg.qr(average @ q)[0] for average, q in ((left, q_left), (right, q_right))]

    return take


def package_soap(matrices: list[torch.Tensor]) -> Callable[[], object]:
    """Return a function that takes one step of pytorch-optimizer's SOAP."""
    from pytorch_optimizer import SOAP

    common: dict[str, Any] = {"betas": BETAS, "weight_decay": DECAY["soap"], "eps": EPS}
    return SOAP(matrices, lr=RATE, precondition_frequency=EVERY, **common).step


CONTENDERS = {
    "trainkit": of_trainkit,
    "trainkit-bfloat16": partial(of_trainkit, compute="bfloat16"),
    "torch": of_torch,
    "torch-float32": of_torch_in_float32,
    "package": partial(of_torch, package=True),
    "optax": of_optax,
}


def serve(name: str, rule: str, layers: int) -> None:
    """Be a contender: take one sample that is not counted, then one for each line that is read; print its seconds."""
    take = CONTENDERS[name](rule, layers)
    for _ in itertools.chain([""], sys.stdin):
        began = time.perf_counter()
        for _ in range(STEPS[rule]):
            take()
        print((time.perf_counter() - began) / STEPS[rule], flush=True)


class Contender:
    """The process of one of them."""

    def __init__(self, name: str, rule: str, layers: int, python: str) -> None:
        command = [python, __file__, "--serve", name, rule, "--layers", str(layers)]
        # as the command `trainkit` sets them; torch has another BLAS
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._name = name
        self._read()

    def sample(self) -> float:
        """Return the seconds of a step."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        self._process.communicate()

    def _read(self) -> float:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self._name} ended with {self._process.wait()}")
        return float(line)


def compare(rule: str, layers: int, rounds: int, python: str) -> Iterator[str]:
    """Measure all in turns; print each ratio and yield it as a row of a table in Markdown."""
    from paired import report

    has_package = not subprocess.run([python, "-c", "import pytorch_optimizer"], capture_output=True).returncode
    pairs = [pair for pair in PAIRS[rule] if has_package or "package" not in pair]
    names = tuple(dict.fromkeys(name for pair in pairs for name in pair))
    pythons = {name: python if name.startswith(("torch", "package")) else sys.executable for name in names}
    contenders = {name: Contender(name, rule, layers, pythons[name]) for name in names}
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            found[name].append(contenders[name].sample())
    for contender in contenders.values():
        contender.close()
    for pair in pairs:
        ratios = [a / b for a, b in zip(*(found[name] for name in pair), strict=True)]
        ours, theirs = (statistics.median(found[name]) for name in pair)
        title = " / ".join(pair)
        report(f"{rule}: {title}", ratios, f"{ours * 1e3:.0f} ms and {theirs * 1e3:.0f} ms a step")
        spread = f"{statistics.median(ratios):.3f} [{min(ratios):.3f} to {max(ratios):.3f}]"
        asked = "" if (rule, *pair) in UNLIKE else f"≤ {ALLOWED}"
        yield f"| `{rule}`, {title} | {spread} | {ours:.2f} s / {theirs:.2f} s | {asked} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=[*PAIRS, []], default=[])
    parser.add_argument("--torch", metavar="PYTHON", help="a Python that has torch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--serve", choices=CONTENDERS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.what[0], given.layers)
    elif not given.torch:
        parser.error("--torch PYTHON is needed")
    else:
        from paired import begin

        begin()
        rules = given.what or list(PAIRS)
        rows = [row for rule in rules for row in compare(rule, given.layers, given.rounds, given.torch)]
        print(f"\n{given.layers} layers, {given.rounds} rounds\n")
        print("| a step | ratio | time | asked for |\n|---|---|---|---|")
        print("\n".join(rows))


if __name__ == "__main__":
    main()
