"""Tokens as text while they arrive: what has been said once is never taken back."""

from __future__ import annotations

from collections.abc import Sequence

from trainkit.infer.generate import TextCodec

#: Tokens of the prompt that are decoded along, since some tokenizers write the first word of a text differently.
CONTEXT = 8


class Transcript:
    """The text of one sequence.

    Characters whose bytes are not all there wait until they are; so does what may be the beginning of a stop string.
    The stop string that is complete first ends the text, and is no part of it.
    """

    def __init__(self, codec: TextCodec, prompt: Sequence[int], *, stop: Sequence[str] = ()) -> None:
        self._codec, self._stop = codec, tuple(stop)
        self._longest = max(map(len, self._stop), default=0)
        self._context = list(prompt)[-CONTEXT:]
        self._before = codec.decode(self._context)
        self.ids: list[int] = []
        """Its tokens; where a stop string was found, up to the one that completed it."""
        self._searched = 0
        """How many of them make a text without a stop string, whatever comes after them."""
        self.text = ""
        """What has been said."""
        self.stopped = False
        """Whether a stop string was found."""

    def add(self, ids: Sequence[int], *, last: bool = False) -> str:
        """What can be said now that was not before; with `last` nothing waits any longer."""
        if self.stopped:
            return ""
        self.ids += ids
        whole = self._decode(self.ids)
        # bytes that are no character yet
        text = whole if last else whole.rstrip("\ufffd")
        if (end := self._end(text)) is not None:
            self.stopped = True
            fewer = (n for n in range(self._searched + 1, len(self.ids)) if self._stops(self.ids[:n]))
            del self.ids[next(fewer, len(self.ids)) :]
            text = text[:end]
        elif not last:
            if text == whole:
                self._searched = len(self.ids)
            text = text[: len(text) - max((_overlap(text, stop) for stop in self._stop), default=0)]
        if not text.startswith(self.text):
            # some tokenizers write what came before differently while the bytes of a character are coming in
            return ""
        new, self.text = text[len(self.text) :], text
        return new

    def _decode(self, ids: Sequence[int]) -> str:
        return self._codec.decode([*self._context, *ids])[len(self._before) :]

    def _stops(self, ids: Sequence[int]) -> bool:
        return self._end(self._decode(ids).rstrip("\ufffd")) is not None

    def _end(self, text: str) -> int | None:
        """Where a stop string ends the text: the one that is complete first, however many tokens come at a time."""
        # what has been said holds none
        begin = max(0, len(self.text) - self._longest)
        found = [(place + len(stop), place) for stop in self._stop if (place := text.find(stop, begin)) >= 0]
        return min(found)[1] if found else None


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` are the first of `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
