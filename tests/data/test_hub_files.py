"""JSON objects in files are read, or it is told why they are not."""

from __future__ import annotations

import pytest

from trainkit.data.hub_files import read_object
from trainkit.errors import TrainkitError


def test_an_object_is_read_and_a_missing_one_is_empty_where_it_may_be_missing(tmp_path):
    (tmp_path / "a.json").write_text('{"a": [1, null]}')
    assert read_object(tmp_path / "a.json") == {"a": [1, None]}
    assert read_object(tmp_path / "b.json", missing_ok=True) == {}
    with pytest.raises(TrainkitError, match=r"there is no b\.json") as caught:
        read_object(tmp_path / "b.json", hint="write it")
    assert (caught.value.where, caught.value.hint) == (str(tmp_path), "write it")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "is not JSON"),
        (b"\xff{}", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"3", "is a number, not an obj"),
    ],
)
def test_a_file_that_holds_no_object_is_reported(tmp_path, content, problem):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(TrainkitError, match=problem) as caught:
        read_object(tmp_path / "a.json", missing_ok=True)
    assert caught.value.where == str(tmp_path / "a.json")


def test_a_directory_is_no_file(tmp_path):
    with pytest.raises(TrainkitError, match="cannot be read"):
        read_object(tmp_path, missing_ok=True)
