"""Examples begin and end where the recipe's encoding says: against implementations that go token by token."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

import data_room as room
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit.data.batches import packing
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.batches.packing import PackedSpans, find_spans
from trainkit.data.cache import build as caches
from trainkit.recipe.sections.data import Pack, Pad, Windows

many = settings(max_examples=150, deadline=None)
sizes = st.lists(st.integers(1, 40), min_size=1, max_size=30)
lengths = st.integers(1, 25)
too_long = st.sampled_from(["truncate", "split", "drop"])


def framed(spec: Windows | Pack | Pad, length: int, documents: list[int]) -> PackedSpans:
    """The spans of documents of so many tokens."""
    return find_spans(spec, length, np.cumsum(documents).astype(np.uint32), sum(documents))


def spans_of(made: PackedSpans) -> list[list[tuple[int, int, int]]]:
    """(start, positions, context) of the spans of each example."""
    spans = list(zip(made.starts.tolist(), made.lengths.tolist(), made.contexts.tolist(), strict=True))
    return [spans[first:end] for first, end in zip(made.offsets[:-1].tolist(), made.offsets[1:].tolist(), strict=True)]


def counted(made: PackedSpans) -> Counter[int]:
    """How often each token of the shard is a target that counts."""
    found: Counter[int] = Counter()
    for start, positions, context in (span for spans in spans_of(made) for span in spans):
        found.update(range(start + 1 + context, start + 1 + positions))
    return found


def documents_at(documents: list[int]) -> list[tuple[int, int]]:
    """(first token, one past the last) of each document."""
    ends = np.cumsum(documents).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


@many
@given(documents=sizes, length=lengths, stride=st.none() | st.integers(1, 30), least=st.integers(1, 8))
def test_windows_predict_every_target_once_after_what_precedes_it(documents, length, stride, least):
    made = framed(Windows(type="windows", stride=stride, min_length=least), length, documents)
    step = min(stride or length, length)
    expected: Counter[int] = Counter()
    windows, lost = [], 0
    for first, end in documents_at(documents):
        begin, predicted = first, first
        while predicted < end - 1:
            last = min(begin + length, end - 1)
            new = last - predicted
            if new >= least:
                windows.append([(begin, last - begin, predicted - begin)])
                expected.update(range(predicted + 1, last + 1))
            else:
                lost += new
            begin, predicted = begin + step, last
    assert spans_of(made) == windows
    assert counted(made) == expected
    assert set(expected.values()) <= {1}
    targets = sum(n - 1 for n in documents)
    assert (made.counts.lost, made.counts.targets) == (lost, targets)
    assert expected.total() + lost == targets
    holding = sum(any(first <= w[0][0] < end for w in windows) for first, end in documents_at(documents))
    assert (made.counts.documents, made.counts.dropped) == (len(documents), len(documents) - holding)


@many
@given(documents=sizes, length=lengths, policy=too_long, least=st.integers(1, 8), packed=st.booleans())
def test_packed_and_padded_documents_are_there_once_and_whole(documents, length, policy, least, packed):
    spec: Pack | Pad = (
        Pack(type="pack", too_long=policy, min_length=least)
        if packed
        else Pad(type="pad", too_long=policy, min_length=least)
    )
    made = framed(spec, length, documents)
    expected: list[tuple[int, int]] = []
    dropped = truncated = 0
    for first, end in documents_at(documents):
        targets = end - first - 1
        if targets < least or (policy == "drop" and targets > length):
            dropped += 1
        elif policy == "split":
            expected += [(s, min(length, end - 1 - s)) for s in range(first, end - 1, length)]
        else:
            truncated += targets > length
            expected.append((first, min(length, targets)))
    spans = [span for example in spans_of(made) for span in example]
    assert sorted((start, positions) for start, positions, _ in spans) == expected
    assert {context for _, _, context in spans} <= {0}
    assert made.longest.tolist() == [sum(positions for _, positions, _ in e) for e in spans_of(made)]
    assert (made.longest <= length).all()
    assert made.counts.dropped == dropped
    assert made.counts.truncated == truncated
    assert made.counts.targets == sum(n - 1 for n in documents) == counted(made).total() + made.counts.lost
    if not packed:
        assert all(len(example) == 1 for example in spans_of(made))


@many
@given(documents=sizes, length=lengths)
def test_no_two_packed_examples_would_fit_in_one(documents, length):
    made = framed(Pack(type="pack"), length, documents)
    assert all(one + other > length for one, other in combinations(made.longest.tolist(), 2))


def test_best_fit_takes_hardly_more_examples_than_there_must_be_and_fewer_than_one_after_the_other():
    drawn = random.Random(0)
    documents = [drawn.randint(2, 400) for _ in range(3000)]
    made = framed(Pack(type="pack"), 512, documents)
    next_fit, room_left = 0, 0
    for size in (n - 1 for n in documents):
        if size > room_left:
            next_fit, room_left = next_fit + 1, 512
        room_left -= size
    assert len(made) < next_fit
    assert len(made) <= 1.01 * sum(n - 1 for n in documents) / 512 + 1


def test_more_documents_than_are_packed_together_are_still_there_once(monkeypatch):
    monkeypatch.setattr(packing, "_PACKED_TOGETHER", 7)
    documents = [2 + i % 9 for i in range(50)]
    assert set(counted(framed(Pack(type="pack"), 12, documents)).values()) == {1}
    assert counted(framed(Pack(type="pack"), 12, documents)).total() == sum(n - 1 for n in documents)


@pytest.mark.parametrize("spec", [Windows(type="windows"), Pack(type="pack"), Pad(type="pad", too_long="split")])
def test_what_continues_in_the_next_shard_is_framed_like_a_document(spec):
    ends = np.array([3, 9], np.uint32)
    assert spans_of(find_spans(spec, 5, ends, 17)) == spans_of(find_spans(spec, 5, np.append(ends, np.uint32(17)), 17))
    assert spans_of(find_spans(spec, 5, np.zeros(0, np.uint32), 8)) == spans_of(
        find_spans(spec, 5, np.array([8], np.uint32), 8)
    )


def test_damaged_spans_and_those_of_an_earlier_version_are_made_again(tmp_path):
    path = room.write_jsonl(tmp_path / "a.jsonl", [room.text(i) for i in range(9)])
    recipe = room.recipe(tmp_path, path, encoding={"type": "pack"})
    cache = caches.build(recipe)
    expected = TrainSet(cache, recipe).batch(0)
    (stored,) = (tmp_path / "cache/frames").iterdir()
    np.testing.assert_array_equal(TrainSet(cache, recipe).batch(0)["tokens"], expected["tokens"])
    whole = stored.read_bytes()
    changed = bytes([*whole[:80], whole[80] ^ 1, *whole[81:]])
    for damaged in (changed, whole[:-8], whole[:-5], b""):  # an earlier version wrote no checksum
        stored.write_bytes(damaged)
        np.testing.assert_array_equal(TrainSet(cache, recipe).batch(0)["tokens"], expected["tokens"])
        assert stored.read_bytes() == whole
