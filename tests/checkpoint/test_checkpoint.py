"""Checkpoints: what was saved is what is restored, or it is said that it is not."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_child import FACTS, bits, state_at
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from places import SUPPORT
from trainer import edit_manifest

from trainkit.checkpoint import arrays, manifest, snapshot, store
from trainkit.checkpoint.leaves import named_leaves
from trainkit.checkpoint.manifest import DamagedCheckpoint
from trainkit.checkpoint.restore import restore, restore_newest
from trainkit.checkpoint.saver import Saved, Saver
from trainkit.errors import FAILED, TrainkitError
from trainkit.events.disk_space import Room
from trainkit.recipe.sections.outputs import Checkpoint
from trainkit.rundir import checkpoint_files

CHILD = SUPPORT / "checkpoint_child.py"
DTYPES = [
    "float32",
    "bfloat16",
    "float16",
    "int8",
    "int32",
    "uint8",
    "uint32",
    "bool",
    "complex64",
    "float8_e4m3fn",
    "int4",
]


#: A manifest without arrays.
BARE: dict[str, Any] = {
    "format": manifest.FORMAT, "created": 0.0, "attempt": 1, "recipe": "", "data": "", "aim_run": None, "metrics": {},
    "versions": {}, "devices": [], "mesh": {}, "bytes": 0, "leaves": {},
}  # fmt: skip


def save(run: Path, *steps: int, kind: Any = "permanent", keep_last: int = 2) -> list[Saved]:
    saved: list[Saved] = []
    saver = Saver(run, on_saved=saved.append, keep_last=keep_last)
    for step in steps:
        saver.save(state_at(step), step=step, kind=kind, provenance=FACTS)
    saver.close()
    return saved


def at(run: Path, step: int) -> Path:
    return run / "checkpoints" / str(step)


def template() -> Any:
    return jax.eval_shape(lambda: state_at(0))


def read(directory: Path) -> Any:
    return restore(directory, template())


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(dtype=st.sampled_from(DTYPES), shape=st.lists(st.integers(0, 5), max_size=3), seed=st.integers(0, 99))
def test_every_dtype_and_shape_comes_back_bit_for_bit(tmp_path: Path, dtype: str, shape: list[int], seed: int) -> None:
    random_bytes = np.random.default_rng(seed).integers(0, 256, size=[*shape, 8], dtype=np.uint8)
    # all bit patterns, so that NaN payloads, negative zeros and denormals are among them
    kind = jnp.dtype(dtype)
    values = random_bytes[..., : kind.itemsize].copy().view(kind)[..., 0] if dtype not in ("bool", "int4") else None
    if values is None:
        values = (random_bytes[..., 0] % 2 if dtype == "bool" else random_bytes[..., 0] % 16 - 8).astype(kind)
    state = {"leaf": jnp.asarray(values)}
    shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)
    saver = Saver(tmp_path, on_saved=lambda saved: None)
    saver.save(state, step=1, kind="final", provenance=FACTS)
    saver.close()
    assert store.verify(at(tmp_path, 1)) == []
    assert bits(restore(at(tmp_path, 1), state)) == bits({"leaf": values})


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_a_restored_key_draws_the_same_numbers(tmp_path: Path, impl: str) -> None:
    state = {"one": jax.random.key(7, impl=impl), "many": jax.random.split(jax.random.key(8, impl=impl), 3)}
    saver = Saver(tmp_path, on_saved=lambda saved: None)
    saver.save(state, step=1, kind="final", provenance=FACTS)
    saver.close()
    again = restore(at(tmp_path, 1), jax.eval_shape(lambda: state))
    assert bits(jax.random.normal(again["one"], 9)) == bits(jax.random.normal(state["one"], 9))
    assert bits(again) == bits(state)


def test_a_large_shard_is_cut_evenly_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert arrays.chunk_shape((4, 1 << 20, 8), 4) == (2, 1 << 20, 8)
    assert arrays.chunk_shape((50_257, 768), 4) == (50_257, 256)  # 50,257 = 29 x 1,733 has no third
    assert arrays.chunk_shape((104_729_011,), 4) == (104_729_011,)  # a prime stays whole
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(arrays, "IN_FLIGHT_BYTES", 3000)
    save(tmp_path, 1)
    assert len(list((at(tmp_path, 1) / "arrays" / "params.w").iterdir())) > 4
    assert store.verify(at(tmp_path, 1)) == []
    assert bits(restore(at(tmp_path, 1), template())) == bits(state_at(1))


@settings(max_examples=60, deadline=None)
@given(shape=st.lists(st.integers(0, 60), max_size=3).map(tuple), limit=st.integers(500, 4000))
def test_chunks_divide_the_shard(shape: tuple[int, ...], limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "CHUNK_BYTES", limit)
        chunk = arrays.chunk_shape(shape, 4)
    assert len(chunk) == len(shape)
    assert all(c >= 1 and max(1, n) % c == 0 for n, c in zip(shape, chunk, strict=True))


def test_one_device_and_eight_restore_each_other_bit_for_bit(tmp_path: Path) -> None:
    save(tmp_path, 1)
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, CHILD, "reshard", tmp_path], check=True, env=environment)
    assert bits(restore(at(tmp_path, 2), template())) == bits(state_at(2))
    assert manifest.read(at(tmp_path, 2)).mesh == {"x": 4, "y": 2}
    assert len(manifest.read(at(tmp_path, 2)).devices) == 8


def flip_a_bit(directory: Path) -> None:
    file = directory / "arrays" / "params.w" / "c.0.0"
    content = bytearray(file.read_bytes())
    content[77] ^= 4
    file.write_bytes(content)


def truncate(directory: Path) -> None:
    file = directory / "arrays" / "params.b" / "c.0"
    file.write_bytes(file.read_bytes()[:-9])


def delete_a_chunk(directory: Path) -> None:
    (directory / "arrays" / "params.w" / "c.0.0").unlink()


def delete_an_array(directory: Path) -> None:
    shutil.rmtree(directory / "arrays" / "params.w")


def delete_the_manifest(directory: Path) -> None:
    (directory / "manifest.json").unlink()


def tear_the_manifest(directory: Path) -> None:
    path = directory / "manifest.json"
    path.write_text(path.read_text()[:-40])


@pytest.mark.parametrize(
    "harm", [flip_a_bit, truncate, delete_a_chunk, delete_an_array, delete_the_manifest, tear_the_manifest]
)
def test_damage_is_reported_and_the_checkpoint_before_is_used(tmp_path: Path, harm: Any) -> None:
    save(tmp_path, 1, 2)
    harm(at(tmp_path, 2))
    assert store.verify(at(tmp_path, 2)) != [] and store.verify(at(tmp_path, 1)) == []
    reported: list[tuple[str, str]] = []
    found = restore_newest(
        tmp_path, read, on_damaged=lambda directory, error: reported.append((directory.name, error.problem))
    )
    assert found is not None
    state, facts = found
    assert bits(state) == bits(state_at(1)) and facts.step == 1
    assert [name for name, _ in reported] == ["2"]
    assert reported[0][1]
    harm(at(tmp_path, 1))
    with pytest.raises(TrainkitError, match="no checkpoint is whole; all are damaged: 1, 2") as raised:
        restore_newest(tmp_path, read, on_damaged=lambda directory, error: None)
    assert raised.value.exit_code == FAILED


def test_a_run_without_checkpoints_has_nothing_to_restore(tmp_path: Path) -> None:
    assert restore_newest(tmp_path, read, on_damaged=lambda directory, error: None) is None
    assert store.checkpoints(tmp_path) == [] and store.newest(tmp_path) is None
    with pytest.raises(TrainkitError, match="there is no checkpoint of step 4; there are: none"):
        store.find(tmp_path, 4)


def test_an_array_that_the_manifest_does_not_know_is_found_by_verify(tmp_path: Path) -> None:
    save(tmp_path, 1)
    root = at(tmp_path, 1) / "arrays"
    shutil.copytree(root / "step", root / "stray")
    assert store.verify(at(tmp_path, 1)) == ["stray: the manifest does not list it"]


def test_a_state_that_does_not_fit_is_refused_with_every_leaf_in_one_message(tmp_path: Path) -> None:
    save(tmp_path, 1)
    wrong = template()
    wrong["params"]["w"] = jax.ShapeDtypeStruct((64, 25), jnp.float32)
    wrong["params"]["b"] = jax.ShapeDtypeStruct((24,), jnp.float32)
    wrong["key"] = jax.eval_shape(lambda: jax.random.key(0, impl="rbg"))
    wrong["new"] = wrong.pop("step")
    with pytest.raises(TrainkitError) as raised:
        restore(at(tmp_path, 1), wrong)
    assert raised.value.problem.splitlines()[1:] == [
        "  key: the checkpoint has key<threefry2x32>, the state key<rbg>",
        "  new: int32[] is not in the checkpoint",
        "  params.b: the checkpoint has bfloat16[24], the state float32[24]",
        "  params.w: the checkpoint has float32[64, 24], the state float32[64, 25]",
        "  step: int32[] is not in the state",
    ]


def test_a_part_of_the_state_is_restored_without_reading_the_rest(tmp_path: Path) -> None:
    save(tmp_path, 1)
    shutil.rmtree(at(tmp_path, 1) / "arrays" / "keys")
    params = restore(at(tmp_path, 1), template()["params"], under="params")
    assert bits(params) == bits(state_at(1)["params"])


@pytest.fixture
def like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies go to the host's memory, as those of devices do that have their own. A CPU has that kind of memory too."""
    monkeypatch.setattr(snapshot, "IN_HOST_MEMORY", frozenset())


def on_device() -> int:
    """Bytes of all arrays that are in the memory of the devices."""
    (device,) = {jax.devices()[0].default_memory().kind}
    return sum(array.nbytes for array in jax.live_arrays() if array.sharding.memory_kind == device)


@pytest.mark.usefixtures("like_a_gpu")
def test_a_device_with_its_own_memory_holds_no_copy_and_the_host_no_part_that_is_written(tmp_path: Path) -> None:
    saver, state = Saver(tmp_path, on_saved=lambda saved: None), state_at(3)
    before = on_device()
    leaves = {name: snapshot.plain(leaf) for name, leaf in named_leaves(state).items()}
    sent = snapshot.send_to_host(leaves)
    assert sent is not None and {data.sharding.memory_kind for *_, data in sent} == {snapshot.PINNED}
    assert on_device() == before
    for written, _ in enumerate(snapshot.drain(sent), 1):
        assert len(sent) == len(leaves) - written
    saver.save(state, step=3, kind="permanent", provenance=FACTS)
    assert on_device() == before
    saver.close()
    assert bits(restore(at(tmp_path, 3), state)) == bits(state_at(3))


@pytest.mark.usefixtures("like_a_gpu")
def test_with_too_little_memory_on_the_host_the_save_is_done_on_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[Saved] = []
    saver, state = Saver(tmp_path, on_saved=saved.append), state_at(1)
    monkeypatch.setattr(snapshot, "available_memory", lambda: 1000)
    saver.save(state, step=1, kind="rolling", provenance=FACTS)
    assert [s.step for s in saved] == [1]
    saver.close()
    assert bits(restore(at(tmp_path, 1), template())) == bits(state) == bits(state_at(1))


@pytest.mark.parametrize("like", ["a CPU", "a GPU"])
def test_the_snapshot_is_isolated_from_a_step_that_donates_the_state(
    tmp_path: Path, like: str, request: pytest.FixtureRequest
) -> None:
    if like == "a GPU":
        request.getfixturevalue("like_a_gpu")
    advance = jax.jit(lambda s: jax.tree.map(lambda x: x * 2 + 1, s), donate_argnums=0)
    start = {"w": jnp.arange(300_000, dtype=jnp.float32), "n": jnp.int32(3)}
    expected = bits(start)
    saver = Saver(tmp_path, on_saved=lambda saved: None)
    for step in range(1, 4):
        state = jax.tree.map(jnp.copy, start)
        saver.save(state, step=step, kind="permanent", provenance=FACTS)
        for _ in range(10):
            donated = state
            state = advance(state)
        assert donated["w"].is_deleted(), "donation did not happen: something holds the buffer"
    saver.close()
    for step in range(1, 4):
        assert bits(restore(at(tmp_path, step), start)) == expected


def test_a_restored_state_can_be_donated(tmp_path: Path) -> None:
    save(tmp_path, 1)
    first, second = (restore(at(tmp_path, 1), template())["params"] for _ in range(2))
    advance = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)
    moved = advance(advance(first))
    gc.collect()
    assert bits(second) == bits(state_at(1)["params"])
    assert bits(moved) == bits(jax.tree.map(lambda x: x + 2, second))


def test_snapshots_reuse_their_buffers(tmp_path: Path) -> None:
    saver = Saver(tmp_path, on_saved=lambda saved: None)
    places = set()
    for step in range(1, 5):
        saver.save({"w": jnp.full(300_000, step)}, step=step, kind="rolling", provenance=FACTS)
        saver.wait()
        places.add(saver._snapshot["w"].unsafe_buffer_pointer())
    saver.close()
    assert len(places) == 1


def test_without_room_for_a_snapshot_the_save_is_done_on_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate")

    saved: list[Saved] = []
    saver = Saver(tmp_path, on_saved=saved.append)
    with monkeypatch.context() as patch:
        patch.setattr("trainkit.checkpoint.saver.copy_leaves", full)
        state = state_at(1)
        saver.save(state, step=1, kind="rolling", provenance=FACTS)
        assert [s.step for s in saved] == [1]
    saver.save(state_at(2), step=2, kind="permanent", provenance=FACTS)
    saver.close()
    assert bits(state) == bits(state_at(1)), "the next snapshot was written into the state"
    assert bits(restore(at(tmp_path, 2), template())) == bits(state_at(2))


def test_of_rolling_checkpoints_two_stay_and_the_others_all_do(tmp_path: Path) -> None:
    kinds = {1: "permanent", 2: "rolling", 3: "requested", 4: "rolling", 5: "permanent", 6: "rolling", 7: "final"}
    reported: list[Saved] = []
    saver = Saver(tmp_path, on_saved=reported.append)
    for step, kind in kinds.items():
        saver.save(state_at(step), step=step, kind=kind, provenance=FACTS)  # type: ignore[arg-type]
    saver.close()
    assert [info.step for info in store.checkpoints(tmp_path)] == [1, 3, 4, 5, 6, 7]
    assert [(saved.step, saved.kind, saved.path) for saved in reported] == [
        (step, kind, f"checkpoints/{step}") for step, kind in kinds.items()
    ]
    assert not list((tmp_path / "checkpoints").glob(".*"))


@pytest.mark.parametrize("keep_last", [1, 2, 3])
def test_as_many_rolling_checkpoints_stay_as_the_recipe_says(tmp_path: Path, keep_last: int) -> None:
    save(tmp_path, 1, 2, 3, 4, kind="rolling", keep_last=keep_last)
    assert [info.step for info in store.checkpoints(tmp_path)] == [1, 2, 3, 4][-keep_last:]


def test_one_flipped_bit_in_the_newest_rolling_checkpoint_leaves_another_one_to_continue_from(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3, kind="rolling")
    flip_a_bit(at(tmp_path, 3))
    found = restore_newest(tmp_path, read, on_damaged=lambda directory, error: None)
    assert found is not None and found[1].step == 2 and bits(found[0]) == bits(state_at(2))


@pytest.mark.parametrize("harm", [flip_a_bit, truncate, delete_a_chunk])
def test_what_cannot_be_read_back_is_no_checkpoint_and_no_older_one_goes_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Any
) -> None:
    save(tmp_path, 1, kind="rolling", keep_last=1)
    write = manifest.write

    def written_badly(directory: Path, content: manifest.Manifest) -> None:
        write(directory, content)
        harm(directory)

    monkeypatch.setattr(manifest, "write", written_badly)
    with pytest.raises(TrainkitError, match="what was written cannot be read back: params"):
        save(tmp_path, 2, kind="rolling", keep_last=1)
    assert [info.step for info in store.checkpoints(tmp_path)] == [1] and store.verify(at(tmp_path, 1)) == []
    assert not list((tmp_path / "checkpoints").glob(".*"))


def test_where_there_is_no_room_for_one_more_the_oldest_rolling_one_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, 2, kind="rolling")
    monkeypatch.setattr(
        "trainkit.checkpoint.saver.find_room",
        lambda path, soft: Room(0 if at(tmp_path, 1).exists() else 10**9, 10**9),
    )
    save(tmp_path, 3, kind="rolling")
    assert [info.step for info in store.checkpoints(tmp_path)] == [2, 3]


def test_whoever_removes_older_checkpoints_spares_the_best_one(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        at(tmp_path, step).mkdir(parents=True)
        manifest.write(at(tmp_path, step), manifest.Manifest.model_validate({**BARE, "step": step, "kind": "rolling"}))
    checkpoint_files.mark_best(
        tmp_path, checkpoint_files.BestMark(step=1, metric="validation/held-out/loss", value=1.0)
    )
    store.retain(tmp_path, saved=3, keep_last=1)  # as the export of a finished run does, which holds nothing
    assert [info.step for info in store.checkpoints(tmp_path)] == [1, 3]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    saves=st.lists(st.tuples(st.sampled_from(["rolling", "requested", "permanent"]), st.booleans()), max_size=7),
    unmarked=st.sets(st.integers(1, 7)),
)
def test_a_marked_checkpoint_is_never_removed_and_an_unmarked_one_as_if_it_had_never_been_marked(
    tmp_path_factory: pytest.TempPathFactory, saves: list[tuple[str, bool]], unmarked: set[int]
) -> None:
    run = tmp_path_factory.mktemp("run")

    def add(step: int, kind: str) -> None:
        at(run, step).mkdir(parents=True)
        manifest.write(at(run, step), manifest.Manifest.model_validate({**BARE, "step": step, "kind": kind}))
        store.retain(run, saved=step, keep_last=1)

    for step, (kind, marked) in enumerate(saves, 1):
        add(step, kind)
        if marked:
            checkpoint_files.mark(at(run, step), keep=True)
    kept = {step for step, (_, marked) in enumerate(saves, 1) if marked}
    assert kept <= {info.step for info in store.checkpoints(run)}
    for step in unmarked & kept:
        checkpoint_files.mark(at(run, step), keep=False)
    add(len(saves) + 1, "rolling")
    others = {step for step, (kind, _) in enumerate(saves, 1) if kind != "rolling"}
    expected = others | (kept - unmarked) | {len(saves) + 1}
    assert {info.step for info in store.checkpoints(run)} == expected
    assert not list((run / "checkpoints").glob(".*"))


def test_a_mark_that_comes_while_its_checkpoint_is_being_removed_saves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, kind="rolling")
    looked = checkpoint_files.is_marked

    def marked_just_then(checkpoint: Path) -> bool:
        found = looked(checkpoint)
        if checkpoint == at(tmp_path, 1) and not found:
            checkpoint_files.mark(checkpoint, keep=True)
        return found

    monkeypatch.setattr(checkpoint_files, "is_marked", marked_just_then)
    save(tmp_path, 2, kind="rolling", keep_last=1)
    assert [info.step for info in store.checkpoints(tmp_path)] == [1, 2]


def test_a_mark_is_no_damage_and_stays_where_its_step_is_saved_again(tmp_path: Path) -> None:
    save(tmp_path, 1, kind="rolling")
    checkpoint_files.mark(at(tmp_path, 1), keep=True)
    assert store.verify(at(tmp_path, 1)) == []
    assert bits(restore(at(tmp_path, 1), template())) == bits(state_at(1))
    save(tmp_path, 1, 2, kind="rolling", keep_last=1)
    assert [info.step for info in store.checkpoints(tmp_path)] == [1, 2] and checkpoint_files.is_marked(at(tmp_path, 1))


def test_saving_a_step_twice_keeps_it_as_the_more_precious_kind(tmp_path: Path) -> None:
    saver = Saver(tmp_path, on_saved=lambda saved: None)
    for kind, expected in [("rolling", "rolling"), ("final", "final"), ("rolling", "final")]:
        saver.save(state_at(5), step=5, kind=kind, provenance=FACTS)  # type: ignore[arg-type]
        saver.wait()
        assert manifest.read(at(tmp_path, 5)).kind == expected
    saver.save(state_at(6), step=6, kind="rolling", provenance=FACTS)
    saver.close()
    assert [info.step for info in store.checkpoints(tmp_path)] == [5, 6]


def test_a_step_that_an_earlier_attempt_saved_is_replaced_by_what_this_one_has(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    saver = Saver(tmp_path, on_saved=lambda saved: None)
    saver.save(state_at(9), step=2, kind="rolling", provenance=FACTS)
    saver.close()
    assert bits(restore(at(tmp_path, 2), template())) == bits(state_at(9))
    assert not list((tmp_path / "checkpoints").glob(".*"))


@pytest.mark.parametrize("renames", range(4))
def test_setting_aside_that_was_cut_off_is_finished_before_a_checkpoint_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    save(tmp_path, 1, 2, 3)
    rename, left = Path.rename, iter(range(renames))

    def killed(path: Path, target: Path) -> Path:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(Path, "rename", killed)
        store.set_aside(store.directory_of(tmp_path), beyond=1)
    store.clean(tmp_path)
    assert [info.step for info in store.checkpoints(tmp_path)] == [1]
    aside = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("checkpoints/set-aside-*/*"))
    assert aside == ["checkpoints/set-aside-1/2", "checkpoints/set-aside-1/3"]
    assert not list(tmp_path.glob("checkpoints/.*"))


def test_what_came_after_a_step_can_be_set_aside_and_is_not_lost(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3)
    assert store.set_aside(store.directory_of(tmp_path), beyond=1) == [2, 3]
    save(tmp_path, 2)
    assert store.set_aside(store.directory_of(tmp_path), beyond=1) == [2]
    assert store.set_aside(store.directory_of(tmp_path), beyond=1) == []
    assert [info.step for info in store.checkpoints(tmp_path)] == [1]
    aside = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("checkpoints/set-aside-*/*"))
    assert aside == ["checkpoints/set-aside-1/2", "checkpoints/set-aside-1/3", "checkpoints/set-aside-2/2"]
    assert store.verify(tmp_path / aside[0]) == []


def test_a_new_writer_removes_the_unfinished_and_completes_the_finished(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3)
    where = tmp_path / "checkpoints"
    (where / "3").rename(where / ".tmp-3-77")  # killed before the rename: whole
    (where / "2").rename(where / ".tmp-2-77")  # killed before the manifest
    (where / ".tmp-2-77" / "manifest.json").unlink()
    shutil.copytree(where / "1", where / ".trash-1-77")  # killed while deleting
    assert [info.step for info in store.checkpoints(tmp_path)] == [1]
    Saver(tmp_path, on_saved=lambda saved: None).close()
    assert sorted(path.name for path in where.iterdir()) == ["1", "3"]
    assert store.verify(where / "3") == []


def test_a_process_killed_while_saving_leaves_only_whole_checkpoints(tmp_path: Path) -> None:
    generator = random.Random(0)
    for attempt in range(3):
        run = tmp_path / str(attempt)
        child = subprocess.Popen([sys.executable, CHILD, "save-forever", run], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(generator.uniform(0, 0.3))
        child.send_signal(signal.SIGKILL)
        said = child.communicate()[0].split()
        Saver(run, on_saved=lambda saved: None).close()
        infos = store.checkpoints(run)
        assert [int(path.name) for path in store.step_directories(run)] == [info.step for info in infos]
        assert infos[-1].step >= max(map(int, said), default=1), "a checkpoint that was reported is gone"
        for info in (infos[0], infos[-1]):
            assert store.verify(info.directory) == []
            assert bits(restore(info.directory, template())) == bits(state_at(info.step))
        assert not list((run / "checkpoints").glob(".*"))


def test_a_disk_that_takes_no_more_is_an_error_that_leaves_earlier_checkpoints_alone(tmp_path: Path) -> None:
    child = subprocess.run([sys.executable, CHILD, "limited", tmp_path], check=True, capture_output=True, text=True)
    assert child.stdout.startswith(f"{FAILED} {tmp_path}/checkpoints/2: the checkpoint cannot be written: ")
    assert "free there" in child.stdout and "File too large" in child.stdout
    assert [info.step for info in store.checkpoints(tmp_path)] == [1, 3]
    assert store.verify(at(tmp_path, 1)) == []
    assert not list((tmp_path / "checkpoints").glob(".*"))


@pytest.mark.parametrize(
    ("room", "problem"),
    [
        (Room(5000, 10**9), r"it needs 0\.01 MB; 0\.01 MB are free there"),
        (Room(10**9, 2), r"it needs \d+ files, and there is room for 2"),
    ],
)
def test_too_little_space_is_noticed_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: Room, problem: str
) -> None:
    saver = Saver(tmp_path, on_saved=lambda saved: None)
    monkeypatch.setattr("trainkit.checkpoint.saver.find_room", lambda path, soft: room)
    saver.save(state_at(1), step=1, kind="rolling", provenance=FACTS)
    with pytest.raises(TrainkitError, match=problem):
        saver.close()
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_place_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(TrainkitError, match="cannot be written") as raised:
        Saver(tmp_path, on_saved=lambda saved: None)
    assert raised.value.exit_code == FAILED


def test_a_manifest_of_another_format_is_refused_not_taken_for_damage(tmp_path: Path) -> None:
    save(tmp_path, 1)
    edit_manifest(at(tmp_path, 1), lambda text: text.replace('"format": 1', '"format": 2'))
    with pytest.raises(TrainkitError, match="format 2") as raised:
        restore(at(tmp_path, 1), template())
    assert not isinstance(raised.value, DamagedCheckpoint)


def test_due_says_permanent_at_its_steps_and_rolling_after_its_minutes() -> None:
    def kinds(spec: Checkpoint, now: float = 0.0) -> list[str | None]:
        return [store.due(spec, step=step, last_saved_time=0.0, now=now) for step in range(5)]

    assert kinds(Checkpoint(keep_every=2)) == [None, None, "permanent", None, "permanent"]
    assert kinds(Checkpoint(keep_every=(1, 4))) == [None, "permanent", None, None, "permanent"]
    assert kinds(Checkpoint(every_minutes=0.5, keep_every=4), now=30.0) == ["rolling"] * 4 + ["permanent"]
    assert kinds(Checkpoint(every_minutes=0.5), now=29.9) == [None] * 5
    assert kinds(Checkpoint(every_minutes=None), now=1e9) == [None] * 5


def test_leaves_are_named_by_plain_paths() -> None:
    tree = {"params": {"blocks": [jnp.zeros(1), jnp.zeros(2)]}, "step": jnp.zeros(3)}
    assert list(named_leaves(tree)) == ["params.blocks.0", "params.blocks.1", "step"]
    assert list(named_leaves(tree["params"], under="params")) == ["params.blocks.0", "params.blocks.1"]
    assert list(named_leaves(tree["step"], under="step")) == ["step"]
    with pytest.raises(AssertionError, match="not usable"):
        named_leaves({"a/b": jnp.zeros(1)})
    with pytest.raises(AssertionError, match="same name"):
        named_leaves({"a": jnp.zeros(1), "A": jnp.zeros(1)})


def test_listing_and_verifying_need_no_jax(tmp_path: Path) -> None:
    save(tmp_path, 1)
    code = (
        "import sys; from pathlib import Path; from trainkit.checkpoint import store; run = Path(sys.argv[1])\n"
        "infos = store.checkpoints(run); assert 'tensorstore' not in sys.modules\n"
        "assert store.verify(infos[0].directory) == [] and 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)


def test_a_hundred_saves_do_not_grow_the_process(tmp_path: Path) -> None:
    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    saver = Saver(tmp_path, on_saved=lambda saved: None)
    state = {"w": jnp.ones((500, 500)), "b": jnp.ones(500)}
    for step in range(1, 121):
        saver.save(state, step=step, kind="rolling", provenance=FACTS)
        if step == 20:
            saver.wait()
            before = resident()
    saver.close()
    # a leak of the arrays would be 100 MB, one of the contexts alone was seen to be of that order too
    assert resident() - before < 40e6
    assert [info.step for info in store.checkpoints(tmp_path)] == [119, 120]


def test_an_array_of_another_step_and_a_swapped_array_are_damage_though_they_are_whole(tmp_path: Path) -> None:
    def moments(step: int) -> dict[str, jax.Array]:
        return {"mu": jnp.full(9, step, jnp.float32), "nu": jnp.full(9, -step, jnp.float32)}

    saver = Saver(tmp_path, on_saved=lambda saved: None)
    for step in (1, 2, 3):
        saver.save(moments(step), step=step, kind="permanent", provenance=FACTS)
    saver.close()
    second, third = at(tmp_path, 2) / "arrays", at(tmp_path, 3) / "arrays"
    shutil.copytree(at(tmp_path, 1) / "arrays" / "mu", second / "mu", dirs_exist_ok=True)
    (third / "mu").rename(third / "other")
    (third / "nu").rename(third / "mu")
    (third / "other").rename(third / "nu")
    problem = "it is not the array that was saved: its checksum is another one"
    assert store.verify(at(tmp_path, 2)) == [f"mu: {problem}"]
    assert store.verify(at(tmp_path, 3)) == [f"mu: {problem}", f"nu: {problem}"]
    reported: list[str] = []
    found = restore_newest(
        tmp_path, lambda path: restore(path, moments(0)), on_damaged=lambda path, error: reported.append(path.name)
    )
    assert found is not None and found[1].step == 1 and reported == ["3", "2"]


def test_what_a_copying_program_leaves_beside_the_chunks_is_no_damage(tmp_path: Path) -> None:
    save(tmp_path, 1)
    array = next((at(tmp_path, 1) / "arrays").iterdir())
    (array / "._zarr.json").write_text("x")
    assert store.verify(at(tmp_path, 1)) == []
    assert bits(read(at(tmp_path, 1))) == bits(state_at(1))


def test_every_flipped_bit_of_a_manifest_falls_back_to_the_checkpoint_before(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    path = at(tmp_path, 2) / "manifest.json"
    whole, chance = path.read_bytes(), random.Random(0)
    for bit in chance.sample(range(8 * len(whole)), 300):
        torn = bytearray(whole)
        torn[bit // 8] ^= 1 << bit % 8
        path.write_bytes(torn)
        with pytest.raises(DamagedCheckpoint):
            manifest.read(at(tmp_path, 2))
    newest = store.newest(tmp_path)
    assert newest is not None and newest.step == 1 and store.verify(at(tmp_path, 2)) != []


def test_a_manifest_without_checksums_is_one_of_an_earlier_version_and_is_read(tmp_path: Path) -> None:
    save(tmp_path, 1)
    earlier = manifest.read(at(tmp_path, 1)).model_dump_json(indent=1, exclude={"checksums", "tokenizer"})
    (at(tmp_path, 1) / "manifest.json").write_text(earlier)
    assert store.verify(at(tmp_path, 1)) == []
    assert bits(read(at(tmp_path, 1))) == bits(state_at(1))


def test_a_checkpoint_keeps_its_recipe_and_verify_compares_it(tmp_path: Path) -> None:
    saver = Saver(tmp_path, on_saved=lambda saved: None)
    saver.save(state_at(1), step=1, kind="final", provenance=replace(FACTS, recipe_text="schema = 1\n"))
    saver.close()
    kept = at(tmp_path, 1) / "recipe.toml"
    assert kept.read_text() == "schema = 1\n" and store.verify(at(tmp_path, 1)) == []
    kept.write_text("schema = 2\n")
    assert store.verify(at(tmp_path, 1)) == ["recipe.toml: it does not match its checksum"]


def test_a_run_whose_checkpoints_are_all_damaged_is_not_said_to_have_none_yet(tmp_path):
    save(tmp_path, 1, 2)
    for text in ("[]", "null", "", "[" * 100_000):
        for step in (1, 2):
            (at(tmp_path, step) / "manifest.json").write_text(text)
        with pytest.raises(TrainkitError, match="all are damaged: 1, 2") as refused:
            store.checkpoint_of(tmp_path, None)
        assert "trainkit verify" in refused.value.hint
