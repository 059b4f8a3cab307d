"""Who holds what: ZeRO-1 beside fsdp, and layouts that do not divide."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from jax.sharding import PartitionSpec

from trainkit import optim
from trainkit.checkpoint.provenance import size_of
from trainkit.errors import TrainkitError
from trainkit.parallel import devices, mesh
from trainkit.parallel.precision import random_bits
from trainkit.plan import Devices, make_plan
from trainkit.recipe import Recipe
from trainkit.recipe.optimizers.adam import AdamW
from trainkit.recipe.sections.schedule import Cosine
from trainkit.recipe.sections.task import CausalLM
from trainkit.tasks import build as build_task
from trainkit.train.state import State
from trainkit.train.step import make_step


def zero1_step(device_mesh, spec: AdamW | None, shardings):
    step = make_step(
        task=build_task(CausalLM()),
        optimizer=small.optimizer(spec),
        learning_rate=optim.learning_rate(Cosine(), peak=1e-2, steps=20),
        compute=jnp.dtype(jnp.float32),
        max_grad_norm=1.0,
        gradient_shardings=mesh.shardings(device_mesh, shapes_of(small.state()).params, over_data=True),
    )
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, mesh.replicated_sharding(device_mesh)))


def shapes_of(state: object) -> object:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)


def test_a_checkpoint_takes_the_whole_state_however_it_is_shared() -> None:
    shardings = mesh.state_shardings(mesh.make_mesh(data=2, fsdp=2), shapes_of(small.state()), zero1=True)
    shared = jax.device_put(small.state(), shardings)
    assert size_of(shared) == size_of(small.state()) > 2 * bytes_on_one_device(shared.optimizer)


def bytes_on_one_device(tree: object) -> int:
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(("data", "fsdp", "accumulation"), [(4, 1, 1), (2, 4, 2)])
def test_zero1_equals_single(data: int, fsdp: int, accumulation: int) -> None:
    device_mesh = mesh.make_mesh(data=data, fsdp=fsdp)
    shardings = mesh.state_shardings(device_mesh, shapes_of(small.state()), zero1=True)
    single, shared = small.state(), jax.device_put(small.state(), shardings)
    one, many = small.jitted(), zero1_step(device_mesh, None, shardings)
    for seed in range(3):
        batch = small.batch(seed, sequences=16, accumulation=accumulation)
        single, expected = one(single, batch)
        shared, metrics = many(shared, jax.device_put(batch, mesh.batch_sharding(device_mesh)))
        for name, value in expected.items():
            np.testing.assert_allclose(metrics[name], value, rtol=1e-4, err_msg=name)
    small.trees_close(single.optimizer[0].mu, shared.optimizer[0].mu, atol=1e-5)
    small.trees_close(single.params, shared.params, atol=2e-3)
    embedding = shared.params.token_embedding
    assert embedding.addressable_shards[0].data.size == embedding.size // fsdp
    moment = shared.optimizer[0].mu.token_embedding
    assert moment.addressable_shards[0].data.size == moment.size // (fsdp * data)


@pytest.mark.parametrize("moments", ["float32", "int8"])
def test_four_replicas_hold_a_quarter_of_the_optimisers_state_each(moments: str) -> None:
    spec = AdamW(learning_rate=1e-2, moments=moments)
    shapes = shapes_of(small.state(spec=spec))
    device_mesh = mesh.make_mesh(data=4, fsdp=1)
    whole = jax.device_put(small.state(spec=spec), mesh.state_shardings(device_mesh, shapes))
    shared = jax.device_put(small.state(spec=spec), mesh.state_shardings(device_mesh, shapes, zero1=True))
    assert bytes_on_one_device(shared.params) == bytes_on_one_device(whole.params)

    def large(state: State) -> list[jax.Array]:
        # norms, biases and the scales of blocks are too small to be shared
        return [leaf for leaf in jax.tree.leaves(state.optimizer) if leaf.size >= mesh.SMALLEST_SHARDED]

    assert len(large(whole)) >= 2 * 5
    assert 4 * bytes_on_one_device(large(shared)) == bytes_on_one_device(large(whole))


@pytest.mark.parametrize(("data", "fsdp", "zero1"), [(1, 4, False), (2, 2, True)])
def test_moments_in_few_bits_are_the_same_however_they_are_shared(data: int, fsdp: int, zero1: bool) -> None:
    spec = AdamW(learning_rate=1e-2, moments="int8")
    device_mesh = mesh.make_mesh(data=data, fsdp=fsdp)
    shapes = shapes_of(small.state(spec=spec))
    shardings = mesh.state_shardings(device_mesh, shapes, zero1=zero1)
    step = jax.jit(small.step(spec))
    single, expected = step(small.state(spec=spec), small.batch(0))
    many = zero1_step(device_mesh, spec, shardings)
    shared, metrics = many(
        jax.device_put(small.state(spec=spec), shardings),
        jax.device_put(small.batch(0), mesh.batch_sharding(device_mesh)),
    )
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-4, err_msg=name)
    codes, apart = single.optimizer[0].mu.blocks.attention.qkv.weight.codes, shared.optimizer[0].mu
    # the same bits round the same sums; where they differ in their last places, a code may be the next one
    assert (np.asarray(codes) == np.asarray(apart.blocks.attention.qkv.weight.codes)).mean() > 0.99
    lie = shardings.optimizer[0].mu.blocks.attention.qkv.weight
    assert apart.blocks.attention.qkv.weight.codes.sharding.is_equivalent_to(lie.codes, 3)
    assert not lie.codes.is_fully_replicated


def test_random_bits_hang_on_the_place_and_not_on_the_device() -> None:
    device_mesh = mesh.make_mesh(data=2, fsdp=4)
    sharding = jax.sharding.NamedSharding(device_mesh, PartitionSpec("data", None, "fsdp"))
    drawn = jax.jit(lambda key: random_bits(key, (8, 3, 64)), out_shardings=sharding)(jax.random.key(3))
    np.testing.assert_array_equal(drawn, random_bits(jax.random.key(3), (8, 3, 64)))


def test_two_axes_share_the_largest_dimension_that_is_left() -> None:
    assert mesh.partition((4, 128, 384), 1, 8) == PartitionSpec(None, None, "data")
    assert mesh.partition((4, 128, 384), 2, 2) == PartitionSpec(None, None, ("fsdp", "data"))
    assert mesh.partition((4, 128, 120), 8, 3) == PartitionSpec(None, "fsdp", "data")
    assert mesh.partition((97, 32), 8, 3) == PartitionSpec(None, "fsdp")
    assert mesh.partition((97, 31), 8, 4) == mesh.partition((32,), 8, 4) == PartitionSpec()


def test_an_fsdp_that_divides_no_large_dimension_is_an_error_that_names_what_does() -> None:
    params = {"weight": jax.ShapeDtypeStruct((100, 300), jnp.float32), "bias": jax.ShapeDtypeStruct((7,), jnp.float32)}
    mesh.check_layout(params, fsdp=4)
    mesh.check_layout(params, fsdp=1)
    with pytest.raises(TrainkitError, match="fsdp = 8 divides no dimension of weight, which is 100 x 300") as error:
        mesh.check_layout(params, fsdp=8)
    assert error.value.where == "parallel.fsdp" and error.value.hint.endswith("= 5, 6, 10")
    for count in (5, 6, 10):
        mesh.check_layout(params, fsdp=count)


def test_what_the_layout_leaves_whole_may_be_no_more_than_a_devices_share() -> None:
    def params(odd: int) -> dict[str, jax.ShapeDtypeStruct]:
        return {name: jax.ShapeDtypeStruct(s, jnp.float32) for name, s in {"a": (64, 64), "b": (odd, 33)}.items()}

    mesh.check_layout(params(35), fsdp=4)  # 1155 of 5251
    with pytest.raises(TrainkitError, match="b, which is 91 x 33"):
        mesh.check_layout(params(91), fsdp=4)
    assert math.prod((35, 33)) > mesh.SMALLEST_SHARDED


def test_a_recipe_that_asks_for_what_is_not_there_gets_no_other_device() -> None:
    assert devices.local().platform == devices.local("cpu").platform == "cpu"
    for platform in ("gpu", "tpu"):
        with pytest.raises(TrainkitError, match=f"no {platform.upper()} to train on") as error:
            devices.local(platform)
        assert error.value.where == "parallel.platform" and "trainkit doctor" in error.value.hint


def test_the_plan_divides_the_optimisers_state_as_the_devices_do() -> None:
    def optimizer(devices: int, *, moments: str = "float32", **parallel: object) -> int:
        recipe = Recipe.model_validate(
            {
                "schema": 1,
                "model": {"layers": 2, "hidden": 32, "heads": 4},
                "tokenizer": {"train": {"vocab_size": 300}},
                "data": {"sequence_length": 64, "train": ({"type": "python-stdlib"},)},
                "train": {"steps": 10, "batch_size": 8},
                "optimizer": {"learning_rate": 1e-3, "moments": moments},
                "parallel": parallel,
            }
        )
        plan = make_plan(recipe, devices=Devices(count=devices), vocab_size=300, data=None)
        return plan.bytes["optimizer"]

    whole = optimizer(1)
    assert optimizer(4) == whole and optimizer(4, zero1=True) == math.ceil(whole / 4)
    assert optimizer(4, zero1=True, fsdp=2) == math.ceil(whole / 4) and optimizer(4, fsdp=2) == math.ceil(whole / 2)
    # norms and biases keep moments in float32
    assert whole / 2 < optimizer(1, moments="bfloat16") < 0.6 * whole and optimizer(1, moments="int8") < 0.4 * whole
