"""What several devices send each other in a step: layer by layer, where a schedule can hide it, and in few bits."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
from jax.stages import Compiled

from trainkit.data.batches.layout import longest_layout
from trainkit.parallel.mesh import make_mesh, on_own_rows
from trainkit.plan import Devices, make_plan
from trainkit.recipe import Recipe
from trainkit.train.build import build
from trainkit.train.program import compile_program

LAYERS, HIDDEN, INNER, VOCAB = 3, 64, 96, 320


def compiled(**parallel: object) -> str:
    """The program of a step with two micro-batches on four CPUs."""
    recipe = Recipe.model_validate(
        {
            "schema": 1,
            "model": {"type": "llama", "layers": LAYERS, "hidden": HIDDEN, "heads": 2, "intermediate": INNER},
            "tokenizer": {"train": {"vocab_size": VOCAB}},
            "data": {"sequence_length": 32, "train": ({"type": "python-stdlib"},)},
            "train": {"steps": 10, "batch_size": 8, "micro_batch_size": 1},
            "optimizer": {"learning_rate": 1e-3},
            "precision": {"compute": "bfloat16"},
            "parallel": parallel,
        }
    )
    plan = make_plan(recipe, devices=Devices(count=4), vocab_size=VOCAB, data=None)
    layouts = {32: longest_layout(recipe.data, batch_size=8, vocab_size=VOCAB)}
    (program,) = compile_program(build(recipe, plan), plan, layouts).by_shapes.values()
    assert isinstance(program, Compiled)
    return program.as_text()


def bodies(program: str) -> set[str]:
    """The computations that are bodies of loops."""
    return set(re.findall(r"\bbody=%([\w.\-]+)", program))


def gathered(program: str) -> dict[str, list[tuple[int, ...]]]:
    """The shapes that are gathered, by the computation of the program that gathers them."""
    found: dict[str, list[tuple[int, ...]]] = {}
    computation = ""
    for line in program.splitlines():
        if opening := re.match(r"(?:ENTRY )?%([\w.\-]+) \(.*\{$", line):
            computation = opening[1]
        elif gather := re.search(r" = (.*) all-gather(?:-start)?\(", line):
            shapes = re.findall(r"\w+\[([\d,]*)\]", gather[1])
            found.setdefault(computation, []).extend(tuple(map(int, shape.split(","))) for shape in shapes if shape)
    return found


def of_a_layer(shapes: list[tuple[int, ...]]) -> bool:
    """Whether matrices of one layer are among these."""
    return bool({(HIDDEN, INNER), (INNER, HIDDEN)} & {tuple(n for n in shape if n > 1) for shape in shapes})


def of_all_layers(shapes: list[tuple[int, ...]]) -> bool:
    return any(shape[0] == LAYERS and len(shape) == 3 for shape in shapes)


def test_parameters_divided_by_fsdp_are_gathered_in_the_loops_over_layers_one_layer_at_a_time() -> None:
    program = compiled(fsdp=4)
    found = gathered(program)
    loops = [name for name, shapes in found.items() if of_a_layer(shapes)]
    assert len(loops) == 2 and bodies(program).issuperset(loops), "forwards and backwards"
    assert not any(map(of_all_layers, found.values()))


def test_what_each_device_gets_in_full_stays_divided_until_it_is_rounded() -> None:
    # XLA would gather it in float32 otherwise; the program compiled for a CPU, which widens it anyway, does not show
    def product(x: jax.Array, weight: jax.Array) -> jax.Array:
        return on_own_rows(jnp.matmul, x, weight.astype(jnp.bfloat16), whole=(1,))

    with jax.set_mesh(make_mesh(data=1, fsdp=4)):
        program = jax.jit(product).lower(jnp.ones((8, HIDDEN), jnp.bfloat16), jnp.ones((HIDDEN, VOCAB))).as_text()
    assert re.search(rf'sharding_constraint %\d+ .*"fsdp".* : tensor<{HIDDEN}x{VOCAB}xbf16>', program)


def test_zero1_gathers_the_parameters_once_a_step_and_not_for_each_micro_batch() -> None:
    program = compiled(zero1=True)
    found = gathered(program)
    assert [name for name, shapes in found.items() if of_all_layers(shapes)] == list(found)[-1:]
    assert not [name for name in bodies(program) & found.keys() if of_a_layer(found[name])]
