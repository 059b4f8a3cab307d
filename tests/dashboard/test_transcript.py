"""Text that comes token by token."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from trainkit.infer.generate import Transcript


class Bytes:
    """A token a byte."""

    end_of_text = 256

    def encode(self, text: str, /) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], /) -> str:
        return bytes(ids).decode(errors="replace")


class Pieces:
    """As in SentencePiece: words begin with a mark, the first word's is dropped, and what else there is are bytes."""

    end_of_text = 0

    def __init__(self) -> None:
        words = ["</s>", "▁the", "▁cat", "s", *(f"<0x{byte:02X}>" for byte in range(256))]
        self._tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="</s>"))
        self._tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )

    def encode(self, text: str, /) -> list[int]:
        return [4 + byte for byte in text.encode()]

    def decode(self, ids: Sequence[int], /) -> str:
        return self._tokenizer.decode(list(ids))


def fed(transcript: Transcript, ids: Sequence[int], sizes: Sequence[int]) -> list[str]:
    said, rest = [], list(ids)
    for size in sizes:
        said.append(transcript.add(rest[:size]))
        rest = rest[size:]
    return [*said, transcript.add(rest, last=True)]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=12), st.lists(st.integers(0, 3), max_size=20))
def test_what_is_said_piece_by_piece_is_the_text_and_no_piece_has_half_a_character(text: str, sizes: list[int]) -> None:
    text = text.replace("\ufffd", "")
    for codec in (Bytes(), Pieces()):
        transcript = Transcript(codec, codec.encode("so: "))
        said = fed(transcript, codec.encode(text), sizes)
        assert "".join(said) == text == transcript.text
        assert not any("\ufffd" in piece for piece in said)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=12), st.lists(st.integers(0, 3), max_size=20))
def test_of_bytes_that_are_no_text_all_is_said_in_the_end(data: bytes, sizes: list[int]) -> None:
    transcript = Transcript(Bytes(), [])
    assert "".join(fed(transcript, list(data), sizes)) == data.decode(errors="replace") == transcript.text


@settings(max_examples=300, deadline=None)
@given(
    st.text("abc", max_size=15),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 3), max_size=20),
)
def test_a_text_ends_before_the_stop_string_that_is_complete_first_of_which_nothing_is_ever_said(
    text: str, stop: list[str], sizes: list[int]
) -> None:
    transcript = Transcript(Bytes(), [], stop=stop)
    said = "".join(fed(transcript, Bytes().encode(text), sizes))
    ends = [end for end in range(len(text) + 1) if text[:end].endswith(tuple(stop))]
    assert transcript.stopped == bool(ends)
    shortest = text[: ends[0]] if ends else text
    assert (
        said
        == transcript.text
        == shortest[: len(shortest) - max((len(s) for s in stop if shortest.endswith(s)), default=0)]
    )


def test_a_first_word_keeps_the_space_between_it_and_the_prompt() -> None:
    transcript = Transcript(Pieces(), [1])
    assert transcript.add([2, 3]) == " cats"
    assert Transcript(Pieces(), []).add([2, 3]) == "cats"


def test_what_may_be_the_beginning_of_a_stop_string_waits_and_is_said_when_it_is_none() -> None:
    transcript = Transcript(Bytes(), [], stop=["END"])
    assert [transcript.add([byte]) for byte in b"xENEND"] == ["x", "", "", "EN", "", ""]
    assert transcript.stopped and transcript.text == "xEN"
    assert transcript.add(b"more", last=True) == ""
    unfinished = Transcript(Bytes(), [], stop=["END"])
    assert [unfinished.add(b"xEN"), unfinished.add([], last=True)] == ["x", "EN"]


@settings(max_examples=300, deadline=None)
@given(
    st.text("aé ", max_size=15),
    st.lists(st.text("aé ", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 5), max_size=20),
)
def test_text_and_tokens_are_those_that_came_one_by_one_however_many_come_at_a_time(
    text: str, stop: list[str], sizes: list[int]
) -> None:
    for codec in (Bytes(), Pieces()):
        ids = codec.encode(text)
        alone, together = (Transcript(codec, codec.encode("so: "), stop=stop) for _ in range(2))
        fed(alone, ids, [1] * len(ids))
        fed(together, ids, sizes)
        assert (together.text, together.ids, together.stopped) == (alone.text, alone.ids, alone.stopped)
        # and no token more than the one that completed the stop string
        if alone.stopped:
            fewer = Transcript(codec, codec.encode("so: "), stop=stop)
            fewer.add(alone.ids[:-1])
            assert not fewer.stopped
            fewer.add(alone.ids[-1:])
            assert fewer.stopped


def test_with_a_stop_string_a_text_is_decoded_once_for_each_piece_that_comes() -> None:
    class Counting(Bytes):
        decoded = 0

        def decode(self, ids: Sequence[int], /) -> str:
            self.decoded += 1
            return super().decode(ids)

    codec = Counting()
    transcript = Transcript(codec, [], stop=["END"])
    before, pieces = codec.decoded, 40
    for _ in range(pieces):
        transcript.add(b"ten bytes ")
    assert codec.decoded - before == pieces
