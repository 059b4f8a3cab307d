"""[[data.train]] and [[data.validation]]: where documents come from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

from pydantic import Field, model_validator

from trainkit.recipe.sections.document_spec import Document, DocumentSpec, Keys
from trainkit.recipe.spec import Count, Index, NotNegative, Positive, Spec
from trainkit.recipe.union import OneOf

Stages = Annotated[tuple[tuple[Index, NotNegative], ...], Field(min_length=1)]


class FileFormat(NamedTuple):
    """How the files of one format are read: a line of `FILE_FORMATS`."""

    name: str
    reader: str
    """The function in `data/sources/` that yields the rows of a file, or the pieces of its documents, called as
    `read_lines` in `data/sources/formats/lines.py` is."""
    suffixes: tuple[str, ...] = ()
    """Of the files that `format = "auto"` reads so; without any, recipes cannot ask for the format."""
    spans: str = ""
    """The function in `data/sources/` that returns the parts of a file that can be read by themselves, where there are
    such parts, called as `row_spans` in `data/sources/formats/columns.py` is."""
    one_document: bool = False
    """Whether a file is one document, without rows."""
    by_line: bool = False
    """Whether each line is a row: then a large file is divided at line ends."""
    by_column: bool = False
    """Whether objects in rows have all keys of their column, with null for a key that an object does not have."""
    seeks: bool = False
    """Whether reading jumps within a file, which therefore cannot be compressed as a whole."""
    is_file: bool = True
    """Whether it is read from one file."""


#: Every format that sources are read in. Messages list the suffixes in this order.
FILE_FORMATS = (
    FileFormat("text", "formats.text:read_text", (".txt", ".md", ".py"), one_document=True),
    FileFormat("jsonl", "formats.lines:read_lines", (".jsonl", ".ndjson"), by_line=True),
    FileFormat("json", "formats.lines:read_list", (".json",)),
    FileFormat("csv", "formats.tables:read_table", (".csv", ".tsv")),
    FileFormat(
        "parquet", "formats.columns:read_rows", (".parquet",), "formats.columns:row_spans", by_column=True, seeks=True
    ),
    FileFormat(
        "arrow", "formats.columns:read_rows", (".arrow",), "formats.columns:row_spans", by_column=True, seeks=True
    ),
    # what sources with a type of their own are read in
    FileFormat("python", "formats.text:read_python", one_document=True),
    FileFormat("array", "formats.arrays:read_array", spans="formats.arrays:row_spans", seeks=True),
    FileFormat(
        "huggingface",
        "formats.hugging_face:read_rows",
        spans="formats.hugging_face:row_spans",
        by_column=True,
        is_file=False,
    ),
    FileFormat("custom", "listing:read_custom", is_file=False),
)

if TYPE_CHECKING:
    FormatName: TypeAlias = str
else:
    FormatName = Literal[("auto", *(each.name for each in FILE_FORMATS if each.suffixes))]


class SourceSpec(Spec):
    """What every source has."""

    listing: ClassVar[str]
    """The function that returns the files of a source, with the parameters of `data.sources.listing.list_matching`."""
    path_keys: ClassVar[tuple[str, ...]] = ()
    """Its keys that hold a local path or URL, or several: they become absolute in the recipe of a run."""
    hub_keys: ClassVar[tuple[str, ...]] = ()
    """Its keys that hold an id on the hub or a directory: they become absolute where there is such a directory."""

    type: str
    name: str | None = None
    """Name in metrics and listings, of a validation set or of a source with a weight."""
    weight: Positive | Stages | None = None
    """Share of the training examples relative to the other sources, or its stages: `[[0, 3.0], [1000, 0.5]]` means 3
    from step 0 and 0.5 from step 1000. Either all sources have a weight, or none; then each example is seen once per
    epoch."""
    limit: Count | None = None
    """Use only the first documents, up to this many."""

    @model_validator(mode="after")
    def _stages_rise_from_0(self) -> SourceSpec:
        if isinstance(self.weight, tuple):
            steps = [step for step, _ in self.weight]
            if steps[0] != 0 or sorted(set(steps)) != steps:
                raise ValueError(
                    f"the stages of a weight must begin at step 0 and be in increasing order, found {steps}"
                )
        return self


class RowSource(SourceSpec):
    """What every source of rows has."""

    text_key: str | Keys = "text"
    """Key or column that holds the text, or several, whose texts are joined with an empty line between them."""
    document: Document | None = None
    """What a row becomes if it is not plain text, such as `{ type = "template", template = "…" }`."""
    min_characters: Count | None = None
    """Documents with fewer characters are dropped and counted. The prompt of a preference pair counts once, and both
    of its answers count."""
    max_characters: Count | None = None
    """Documents with more characters are dropped and counted."""

    @model_validator(mode="after")
    def _one_way_to_text(self) -> RowSource:
        if self.document is not None and self.text_key != "text":
            raise ValueError("text_key has no effect beside document, which names its own keys: remove one of the two")
        if self.document is not None and not self.document.is_text:
            for key in ("min_characters", "max_characters"):
                if getattr(self, key) is not None:
                    raise ValueError(f"{key} is for texts, and document.type is '{self.document.type}': remove it")
        return self

    @model_validator(mode="after")
    def _lengths_leave_something(self) -> RowSource:
        if self.min_characters and self.max_characters and self.min_characters > self.max_characters:
            raise ValueError(f"min_characters = {self.min_characters} is more than max_characters")
        return self


class CustomRows(RowSource):
    """A source that makes its own rows; the base class for sources of plugins."""

    listing: ClassVar[str] = "trainkit.data.sources.listing:list_custom"

    @abstractmethod
    def identity(self) -> str:
        """Return a text that changes whenever the rows do, such as a version or a digest: the cache is named by it."""

    @abstractmethod
    def rows(self) -> Iterator[Mapping[str, Any]]:
        """Yield the rows, the same in the same order at every call."""


class Files(RowSource):
    """Files by path or URL, `*`, `**` and `{a,b}` or `{000..127}`."""

    listing: ClassVar[str] = "trainkit.data.sources.listing:list_matching"
    path_keys: ClassVar[tuple[str, ...]] = ("path",)

    type: Literal["files"] = "files"
    path: str | Annotated[tuple[str, ...], Field(min_length=1)]
    """One pattern or several; relative ones are relative to the working directory. URLs are those of fsspec (`s3://`,
    `gs://`, `https://` …) and need the package that fsspec names."""
    format: FormatName = "auto"
    """`auto` follows the suffix: `.txt`, `.md` and `.py` hold one document per file; `.jsonl`, `.csv`, `.tsv`,
    `.parquet` and `.arrow` one per row; `.json` one per element of its list. All but `.parquet` and `.arrow` may be
    compressed: `.gz`, `.zst`, `.bz2`, `.xz`."""


class HuggingFace(RowSource):
    """A dataset of the Hugging Face hub, or a directory that holds one."""

    listing: ClassVar[str] = "trainkit.data.sources.listing:list_dataset"
    hub_keys: ClassVar[tuple[str, ...]] = ("id",)

    type: Literal["huggingface"]
    id: str
    """`"owner/name"` on the hub, or a directory of data files or written by `save_to_disk`."""
    config: str | None = None
    """Configuration of the dataset (what `load_dataset` calls `name`); not for a directory that `save_to_disk`
    wrote."""
    split: str = "train"
    """The split, which may be sliced: `"train[:10%]"`."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    streaming: bool = False
    """Whether to read rows over the network while tokenising, instead of downloading all of them first."""


class Tokens(SourceSpec):
    """Arrays of tokens made with the recipe's tokenizer."""

    listing: ClassVar[str] = "trainkit.data.sources.listing:list_tokens"
    path_keys: ClassVar[tuple[str, ...]] = ("path",)

    type: Literal["tokens"]
    path: str | Annotated[tuple[str, ...], Field(min_length=1)]
    """`.npy`, flat `.bin`, or `.parquet` with a list of ids per row (what `trainkit cache-data --export` writes)."""
    dtype: Literal["uint16", "uint32", "int32", "int64"] = "uint16"
    """Number type of `.bin`, little-endian."""
    tokens_key: str = "tokens"
    """Column of `.parquet` that holds the ids. A column `learned`, if present, masks them."""


class PythonStdlib(SourceSpec):
    """Every `.py` file of the running interpreter's standard library, without site-packages and tests: one document
    per file."""

    listing: ClassVar[str] = "trainkit.data.sources.listing:list_standard_library"

    type: Literal["python-stdlib"]


def document_of(source: SourceSpec) -> DocumentSpec | None:
    """Return the document that rows of the source become; None for plain texts, or if it has no rows."""
    return source.document if isinstance(source, RowSource) else None


#: Any source of the recipe language.
Source: TypeAlias = Annotated[SourceSpec, OneOf("files", Files, HuggingFace, Tokens, PythonStdlib)]
