"""The files of a checkpoint: what is written is read again, and what is damaged is told, never read."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from trainkit.errors import TrainkitError
from trainkit.hub.safetensors import DTYPES, FILE, INDEX, TensorEntry, open_directory, write, write_file

_KINDS = [np.dtype(kind) for kind in ("<f8", "<f4", "<f2", ml_dtypes.bfloat16, "<i8", "u1", "?")]


def entry(name: str, numbers: np.ndarray) -> TensorEntry:
    return TensorEntry(name, numbers.shape, numbers.dtype, lambda: numbers)


def three() -> dict[str, np.ndarray]:
    chance = np.random.default_rng(0)
    return {name: chance.standard_normal((4, size)).astype(np.float32) for name, size in (("a", 5), ("b", 6), ("c", 7))}


def file_of(directory: Path, header: object, data: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    (directory / FILE).write_bytes(len(text).to_bytes(8, "little") + text + data)
    return directory / FILE


def problem(directory: Path) -> str:
    with pytest.raises(TrainkitError) as caught:
        open_directory(directory)
    return str(caught.value)


@given(st.data())
def test_what_was_written_is_read_again_whatever_its_dtype_and_shape(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("any")
    shape = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
    kinds = data.draw(st.lists(st.sampled_from(_KINDS), min_size=1, max_size=4))
    chance = np.random.default_rng(0)
    tensors = {str(i): (chance.random(data.draw(shape)) * 9).astype(kind) for i, kind in enumerate(kinds)}
    write_file(directory / FILE, [entry(name, numbers) for name, numbers in tensors.items()])
    found = open_directory(directory)
    assert list(found) == list(tensors)
    for name, numbers in tensors.items():
        assert found.view(name).dtype == numbers.dtype
        np.testing.assert_array_equal(found.view(name), numbers)


def test_shards_hold_no_more_than_they_may_and_all_together_everything(tmp_path):
    tensors = three()
    files = write(tmp_path, [entry(name, numbers) for name, numbers in tensors.items()], shard_bytes=200)
    assert [file.name for file in files[:-1]] == [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert json.loads((tmp_path / INDEX).read_text())["metadata"]["total_size"] == sum(
        t.nbytes for t in tensors.values()
    )
    found = open_directory(tmp_path)
    for name, numbers in tensors.items():
        np.testing.assert_array_equal(found.view(name), numbers)
    for rows in (slice(None), slice(1, 3), slice(0, 0)):
        found.release("a", rows)
        np.testing.assert_array_equal(found.view("a"), tensors["a"])


def test_numbers_are_read_where_they_are_and_cannot_be_changed(tmp_path):
    write_file(tmp_path / FILE, [entry(name, numbers) for name, numbers in three().items()])
    view = open_directory(tmp_path).view("b")
    assert not view.flags.owndata and not view.flags.writeable


def test_a_file_that_is_cut_off_anywhere_is_reported_as_such(tmp_path):
    write_file(tmp_path / FILE, [entry(name, numbers) for name, numbers in three().items()])
    whole = (tmp_path / FILE).read_bytes()
    for length in (0, 5, 8, 60, len(whole) - 1):
        (tmp_path / FILE).write_bytes(whole[:length])
        assert "cut off" in problem(tmp_path)


def test_tensors_that_overlap_or_do_not_fit_their_bytes_are_refused(tmp_path):
    one = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    file_of(tmp_path, {"a": one, "b": {**one, "data_offsets": [4, 12]}}, bytes(12))
    assert "a and b overlap" in problem(tmp_path)
    file_of(tmp_path, {"a": {**one, "shape": [3]}}, bytes(8))
    assert "takes 12 bytes, but has 8" in problem(tmp_path)
    file_of(tmp_path, {"a": {**one, "dtype": "Q4"}}, bytes(8))
    assert "dtype Q4" in problem(tmp_path)
    file_of(tmp_path, {"a": {**one, "data_offsets": [-8, 0]}}, bytes(8))
    assert "no valid dtype, shape or place" in problem(tmp_path)
    file_of(tmp_path, [one], bytes(8))
    assert "not a JSON object" in problem(tmp_path)
    (tmp_path / FILE).write_bytes(b"\xff" * 64)
    assert "not a safetensors file" in problem(tmp_path)


def test_a_missing_shard_is_named_and_an_index_cannot_lead_elsewhere(tmp_path):
    write(tmp_path, [entry(name, numbers) for name, numbers in three().items()], shard_bytes=200)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert "shards are missing: model-00002-of-00002.safetensors" in problem(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    assert "not an index of shards" in problem(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"z": "model-00001-of-00002.safetensors"}}))
    assert "not in the shards where the index says: z" in problem(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickles_are_refused_with_the_reason_and_the_way_out(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x04.")
    said = problem(tmp_path)
    assert name in said and "may run any code" in said and "save_pretrained" in said


def test_a_directory_without_weights_and_one_with_too_many_say_so(tmp_path):
    assert FILE in problem(tmp_path)
    for name in ("x.safetensors", "y.safetensors"):
        write_file(tmp_path / name, [entry("a", np.zeros(2, np.float32))])
    assert "2 files" in problem(tmp_path)
    (tmp_path / "y.safetensors").unlink()
    assert list(open_directory(tmp_path)) == ["a"]


def test_every_dtype_has_the_bits_that_its_name_says():
    for name, dtype in DTYPES.items():
        bits = "".join(c for c in name.split("_")[0] if c.isdigit()) or "8"
        assert dtype.itemsize * 8 == int(bits), name
