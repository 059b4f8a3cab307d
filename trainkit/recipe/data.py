"""[data]: where documents come from and in which order they are seen."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag, model_validator

from trainkit.recipe.spec import Count, Positive, Spec, by_type


class SourceSpec(Spec):
    """What all sources have in common."""

    name: str | None = None
    """Its name in metrics and listings; needed to tell several validation sets apart."""
    weight: Positive | None = None
    """Share of the training examples relative to the other sources; all or none have one.
    Where none has, every example is seen once an epoch."""


class Files(SourceSpec):
    """Local files by path, `*`, `**` and `{a,b}` or `{000..127}`."""

    type: Literal["files"] = "files"
    path: str | Annotated[tuple[str, ...], Field(min_length=1)]
    """One pattern or several; relative ones count from the working directory."""
    format: Literal["auto", "text", "jsonl", "parquet"] = "auto"
    """`auto` goes by the suffix: `.txt`, `.md` and `.py` are one document a file; `.jsonl`, also `.gz` and `.zst`,
    one a line; `.parquet` one a row."""
    text_key: str = "text"
    """The JSON key or Parquet column that holds the text."""


class PythonStdlib(SourceSpec):
    """Every `.py` of the running interpreter's standard library, without site-packages and tests: one document
    a file."""

    type: Literal["python-stdlib"]


Source = Annotated[Annotated[Files, Tag("files")] | Annotated[PythonStdlib, Tag("python-stdlib")], by_type("files")]
"""Sources are told apart by `type`; one that has only a `path` is files."""


class Window(Spec):
    """Shuffle within windows of so many examples."""

    window: Count
    """Examples in a window; training on one may start while later ones are still tokenised."""


class Data(Spec):
    sequence_length: Count
    """Tokens in an example."""
    train: Annotated[tuple[Source, ...], Field(min_length=1)]
    """What is trained on: one `[[data.train]]` a source."""
    validation: tuple[Source, ...] = ()
    """What is evaluated on beside the held-out part: one `[[data.validation]]` a set."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the training data kept out of training, as the validation set `held-out`. A document is kept out whole
    or not at all, but of a long text file (32,768 characters; more for a share below 0.03 or above 0.97) about this
    share is, in parts of 1,000 to 32,768 characters, cut at line ends; so one file is enough. What is kept out depends
    on each document's own name and place only: adding documents, or text at the end of a long one, moves nothing
    between the two."""
    shuffle: Literal["full", False] | Window = "full"
    """`"full"`: a permutation of all examples, new each epoch; `{ window = N }`: within windows of N; `false`: as
    stored."""
    cache: str = "cache"
    """Directory of the token cache; shared by all recipes."""
    on_error: Literal["stop", "skip"] = "stop"
    """A document that cannot be read stops the caching, or is skipped, counted and reported."""

    @model_validator(mode="after")
    def _names_and_weights(self) -> Data:
        if len({source.weight is None for source in self.train}) == 2:
            raise ValueError("either every [[data.train]] has a weight or none has")
        names = self.validation_names
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two validation sets are called '{name}': give each [[data.validation]] its own name")
        return self

    @property
    def validation_names(self) -> list[str]:
        """Names of the validation sets, in order; the held-out part of the training data is `held-out`."""
        names = [source.name or f"validation-{i}" for i, source in enumerate(self.validation)]
        if len(self.validation) == 1 and self.validation[0].name is None:
            names = ["validation"]
        return names + (["held-out"] if self.held_out else [])
