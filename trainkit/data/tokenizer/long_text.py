"""Tokenising a text that comes in pieces into the same tokens as the whole text.

A tokenizer may treat the ends of its input differently (SentencePiece's kind puts ▁ before it), and merges characters
across any place at which a text may be cut. So a stretch before the end of what has come so far, the joint,
is tokenised three times: with all that comes before it, with what comes after it, and alone. Where these give the same
tokens in its middle, no end has an influence there, and the tokens before and after are joined. (For byte-pair encoding
this follows: a sequence of tokens is the one that the whole text has if every two neighbours in it are, and every two
are neighbours in one of the parts; see the `bpe` crate of GitHub's rust-gems.) Where they differ, as within a megabyte
of one repeated character, the text is not cut there, and is held until more has come.
"""

from __future__ import annotations

import numpy as np

from trainkit.data.tokenizer.vocabulary import LoadedTokenizer, PlacedTokens

#: Characters of a joint, and of what follows it before the text may be cut. They are prime: a Unigram tokenizer divides
#: a repeated pattern from its end, so with multiples of a token's length two ends agree, and the real end may differ.
JOINT, AFTER = 24_571, 8_191
#: Characters of a pattern whose repetition cannot be cut: one token may hold several of shorter patterns.
_PATTERN = 64
#: The fewest tokens in the middle of a joint that must be the same.
_SAME = 3


class LongText:
    """Tokenises texts that come in pieces, one text after the other; holds little more than a piece.

    Attributes:
        carried: characters at the end of the added text whose ids have not been returned yet.
    """

    def __init__(self, tokenizer: LoadedTokenizer | None, *, special_tokens: bool = False) -> None:
        """With `special_tokens`, names of special tokens become their ids. Without text no `tokenizer` is needed."""
        self._tokenizer, self._special_tokens = tokenizer, special_tokens
        self._text = ""
        self._returned = 0  # characters at the beginning of it whose ids have been returned
        self._enough = 0  # characters with which the next cut is tried; 0 right after a cut

    @property
    def carried(self) -> int:
        """Return how many characters at the end of the added text have not been returned as ids yet."""
        return len(self._text) - self._returned

    @property
    def is_open(self) -> bool:
        """Whether the next piece continues the present text."""
        return bool(self._text)

    @property
    def can_resume(self) -> bool:
        """Whether `resume` can continue after the pieces that were added."""
        return not self._enough

    def add(self, piece: str, *, continued: bool) -> np.ndarray:
        """Return the next ids, int64 (n,): all that are left if the text ends, none if the text must be held.

        Args:
            continued: whether the next piece continues the text.
        """
        self._text += piece
        size = len(self._text)
        if continued and size < max(self._enough, 2 * (JOINT + AFTER)):
            self._enough = max(self._enough, 1)
            return np.zeros(0, np.int64)
        ids = self._new_ids()
        last, kept, border = len(ids), size, size
        if continued:
            kept = size - JOINT - AFTER
            cut = self._find_border(ids, kept)
            if cut is None:
                self._enough = 2 * size  # a text that cannot be cut is not tokenised again for every piece
                return np.zeros(0, np.int64)
            border, last = cut
        self._text, self._returned, self._enough = self._text[kept:], border - kept, 0
        return ids[:last]

    def _new_ids(self) -> np.ndarray:
        """Return the text's ids that have not been returned, (n,)."""
        ids = np.array(self._encode(self._text), np.int64)
        if not self._returned:
            return ids
        joint = self._place(self._text[: JOINT + AFTER])
        first = int((joint.begins < self._returned).sum())
        if np.array_equal(ids[: first + _SAME], joint.ids[: first + _SAME]):
            return ids[first:]
        # the joint's tokens are others now that more has come: no character may be lost or come twice
        whole = self._place(self._text)
        (at,) = np.nonzero(whole.borders() & (whole.begins == self._returned))
        if len(at):
            return ids[int(at[0]) :]
        return np.array(self._encode(self._text[self._returned :]), np.int64)

    def _find_border(self, ids: np.ndarray, start: int) -> tuple[int, int] | None:
        """Return (character, token) at which the text can be cut in the middle of the joint, which begins at character
        `start`; None where its tokens differ with where it begins or ends."""
        low, high = JOINT // 3, 2 * JOINT // 3
        if _repeats(self._text[start + high :]):
            return None  # how a repeated pattern is divided depends on where it ends, and no end is known yet
        joint, longer = self._place(self._text[start : start + JOINT]), self._place(self._text[start:])
        here, there = ((some.begins >= low) & (some.ends <= high) for some in (joint, longer))
        if here.sum() < _SAME or here.sum() != there.sum():
            return None
        pairs = ((joint.ids, longer.ids), (joint.begins, longer.begins), (joint.ends, longer.ends))
        rest = int((longer.begins >= low).sum())
        if not all(np.array_equal(one[here], other[there]) for one, other in pairs) or not np.array_equal(
            ids[len(ids) - rest :], longer.ids[len(longer.ids) - rest :]
        ):
            return None
        borders = longer.begins[there][1:][(joint.borders()[here] & longer.borders()[there])[1:]]
        if not len(borders):
            return None
        border = int(borders[len(borders) // 2])
        return start + border, len(ids) - int((longer.begins >= border).sum())

    def _encode(self, text: str) -> list[int]:
        assert self._tokenizer is not None
        return self._tokenizer.encode_batch([text], special_tokens=self._special_tokens)[0]

    def _place(self, text: str) -> PlacedTokens:
        assert self._tokenizer is not None
        return self._tokenizer.encode_placed(text, special_tokens=self._special_tokens)

    def pass_over(self, piece: str, *, continued: bool) -> None:
        """Take a piece that was tokenised before; `resume` follows the last of them."""
        self._text = (self._text + piece)[-JOINT - AFTER :] if continued else ""

    def resume(self, carried: int) -> None:
        """Continue after the pieces that were passed over, with what `carried` was then.

        Where it is 0 the rest of a text that is continued is tokenised by itself: an earlier version cut it there.
        """
        assert carried <= len(self._text)
        self._text = self._text if carried else ""
        self._returned, self._enough = len(self._text) - carried, 0


def _repeats(text: str) -> bool:
    """Return whether a text repeats one short pattern."""
    half = text[: len(text) // 2]
    period = text.find(half, 1, 1 + len(half) + _PATTERN)
    return period > 0 and text[period:] == text[:-period]
