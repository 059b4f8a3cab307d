"""[data.encoding]: how documents become examples of `sequence_length` positions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Tag

from trainkit.recipe.spec import Count, Spec, by_type


class EncodingSpec(Spec):
    """What all encodings have in common."""

    bos: bool | Literal["auto"] = "auto"
    """Whether the tokenizer's beginning-of-text token goes before every document. `"auto"`: where the
    tokenizer puts it before a text by itself, and the model is `pretrained` or an encoder."""
    eos: bool = True
    """Whether its end-of-text token follows every document."""


class Concatenate(EncodingSpec):
    """All documents one after the other, cut into examples: every token is a target once an epoch."""

    type: Literal["concatenate"] = "concatenate"
    separate: bool = False
    """Whether attention stops at the borders of documents; positions restart there."""


class Windows(EncodingSpec):
    """Windows over each document by itself. What an earlier window has predicted is context only (weight 0, what others
    write as label -100)."""

    type: Literal["windows"]
    stride: Count | None = None
    """Tokens from one window's begin to the next one's; `sequence_length` where not given: no overlap."""
    min_length: Count = 1
    """Windows of fewer new targets are dropped, and counted."""


class Pack(EncodingSpec):
    """Whole documents, as many as fit an example (best fit); each attends to itself only, and positions restart."""

    type: Literal["pack"]
    too_long: Literal["truncate", "split", "drop"] = "truncate"
    """What happens to a document of more than `sequence_length` positions; what is cut off or dropped is counted."""
    min_length: Count = 1
    """Documents of fewer targets are dropped, and counted."""


class Pad(EncodingSpec):
    """One document an example, padded."""

    type: Literal["pad"]
    buckets: tuple[Count, ...] = ()
    """Lengths to which examples are padded, each to the shortest that holds it; a batch has one length. The longest is
    `sequence_length`, which need not be named."""
    too_long: Literal["truncate", "split", "drop"] = "truncate"
    """What happens to a document of more than `sequence_length` positions; what is cut off or dropped is counted."""
    min_length: Count = 1
    """Documents of fewer targets are dropped, and counted."""


def is_padded(encoding: EncodingSpec) -> bool:
    """Whether examples may have positions without a token; of concatenated documents the very last one may, which does
    not count."""
    return not isinstance(encoding, Concatenate)


Encoding = Annotated[
    Annotated[Concatenate, Tag("concatenate")]
    | Annotated[Windows, Tag("windows")]
    | Annotated[Pack, Tag("pack")]
    | Annotated[Pad, Tag("pad")],
    by_type("concatenate"),
]
