"""Numbers of a file come into memory as they are, however they are turned, cut and converted on the way."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_families import SPECS, arrays, model, shapes

from trainkit.hub import load, source
from trainkit.hub.copying import BLOCK, Scratch, copy, fresh
from trainkit.hub.save import save
from trainkit.parallel import mesh

_KINDS = [np.dtype(kind) for kind in ("<f4", "<f2", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, "<f8")]
_SIDES = st.integers(1, 40) | st.integers(BLOCK - 2, 2 * BLOCK + 2)


@settings(deadline=None)
@given(st.data())
def test_a_copy_is_what_numpy_would_make_of_it(data):
    kind, wanted = data.draw(st.sampled_from(_KINDS)), data.draw(st.sampled_from(_KINDS))
    shape = data.draw(st.tuples(_SIDES, _SIDES) | st.tuples(_SIDES))
    whole = np.random.default_rng(0).standard_normal([side + 3 for side in shape]).astype(kind)
    given_part = whole[tuple(slice(data.draw(st.integers(0, 3)), None) for _ in shape)]
    given_part = given_part.T if data.draw(st.booleans()) else given_part
    to = np.zeros(given_part.shape, wanted)
    copy(given_part, to)
    np.testing.assert_array_equal(to, given_part.astype(wanted))


def test_parts_of_scratch_memory_do_not_overlap_and_there_is_room_for_all():
    sizes, kind = [7, 64, 1, 100], np.dtype(np.float32)
    scratch = Scratch(sum(sizes) * kind.itemsize, parts=len(sizes))
    for _ in range(2):
        parts = [scratch((size,), kind) for size in sizes]
        for number, part in enumerate(parts):
            part[:] = number
        assert [set(part.tolist()) for part in parts] == [{0.0}, {1.0}, {2.0}, {3.0}]
        scratch.clear()


def test_jax_takes_over_memory_of_its_own_and_copies_what_is_in_scratch_memory():
    kind = np.dtype(np.float32)
    for memory, kept in ((fresh, True), (Scratch(400, parts=1), False)):
        numbers = memory((100,), kind)
        numbers[:] = 1
        assert (jax.device_put(numbers).unsafe_buffer_pointer() == numbers.ctypes.data) is kept


@pytest.mark.parametrize("owned", [True, False])
def test_what_is_owned_can_be_donated_and_both_are_the_same_numbers(tmp_path, owned):
    made = model(SPECS["llama"])
    save(tmp_path, made, SPECS["llama"], dtype="float32", sequence_length=32)
    read = load.load_params(tmp_path, shapes(SPECS["llama"]), owned=owned)
    for name, numbers in arrays(made).items():
        np.testing.assert_array_equal(arrays(read)[name], numbers)
    before = read.token_embedding.unsafe_buffer_pointer()
    after = jax.jit(lambda leaf: leaf + 1, donate_argnums=0)(read.token_embedding)
    assert (after.unsafe_buffer_pointer() == before) is owned


def test_a_part_that_many_devices_have_is_read_once_and_pieces_make_the_whole(tmp_path, monkeypatch):
    made = model(SPECS["mixtral"])
    save(tmp_path, made, SPECS["mixtral"], dtype="bfloat16", sequence_length=32)
    copied = list[int]()

    def counted(given_part: np.ndarray, to: np.ndarray) -> None:
        copied.append(to.nbytes)
        copy(given_part, to)

    monkeypatch.setattr(source, "copy", counted)
    monkeypatch.setattr(source, "PIECE", 700)
    on, wanted = mesh.make_mesh(data=4, fsdp=2), shapes(SPECS["mixtral"])
    read = load.load_params(tmp_path, wanted, mesh.shardings(on, wanted), jnp.float32)
    halves = {name: numbers.astype(ml_dtypes.bfloat16).astype(np.float32) for name, numbers in arrays(made).items()}
    for name, numbers in halves.items():
        np.testing.assert_array_equal(arrays(read)[name], numbers, err_msg=name)
    assert sum(copied) == sum(numbers.nbytes for numbers in halves.values())
    assert max(copied) <= 700
