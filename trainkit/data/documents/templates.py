"""Making documents of rows: plain texts, templates, and prompts with responses. Other types have files of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from trainkit.data.documents.pieces import Piece, Refused, RowContext, learned_in_part, text_pieces
from trainkit.data.problems import NO_TEXT, Problem, kind_of, missing_key
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.document import Prompt, Template
from trainkit.recipe.sections.document_spec import Document
from trainkit.recipe.sections.source import CustomRows, HuggingFace
from trainkit.recipe.spec import implementation_of, plugin_digest

if TYPE_CHECKING:
    from trainkit.data.documents.chat_template import ChatTemplate

_PARTS = re.compile(r"(\{\{|\}\})|\{([^{}]+)\}|([{}])")
#: What begins the name of a key in braces that does not write it: what follows is written where the row has a value for
#: it, or where it has none, up to where that ends.
_IF, _UNLESS, _END = "?", "!", "/"
#: How documents that are learned in part become tokens. Change it when the same rows would give other tokens, or
#: learn other ones, so that no cache made before is taken for it.
_LEARNED_IN_PART = "tokenised as a whole"
#: How limits of characters count a preference pair. An earlier version counted the prompt twice.
_PROMPT_COUNTS_ONCE = "the prompt counts once"
#: How the texts of a labelled pair are joined. An earlier version put no tokens between them.
_TEXTS_ARE_DIVIDED = "the tokenizer's own tokens between"
#: How hard negatives are written. An earlier version wrote them without the words around the positive.
_NEGATIVES_ARE_ALIKE = "as the positive"
#: Usual names of the key that holds text.
_USUAL = ("text", "content", "body")


@dataclass(frozen=True)
class RowReading:
    """How the files of a source are read, in addition to their format."""

    keys: tuple[str, ...] = ()
    """Keys of a row's texts if there is no `document`; of an array in a table, its column."""
    document: Document | None = None
    shortest: int | None = None
    """Documents of fewer characters are left out."""
    longest: int | None = None
    dtype: str = ""
    """The type of the numbers in a flat array."""
    source: CustomRows | None = None
    """The source, if it makes its rows itself."""
    hub: HuggingFace | None = None
    """The dataset, at the revision that is read."""
    chat: ChatTemplate | None = None
    """The template that writes conversations; known once the tokenizer is."""
    end_of_text: int | None = None
    """The id with which documents end in a flat array; known once the tokenizer is."""

    @cached_property
    def signature(self) -> list[Any]:
        """Everything apart from the bytes that the documents depend on, as JSON values."""
        document_spec = self.document
        if document_spec is not None and document_spec.chat_template is not None:
            # what is in the file of a chat template counts, and not where it is
            document_spec = document_spec.model_copy(update=dict.fromkeys(document_spec.path_keys))
        document = document_spec and document_spec.model_dump(mode="json", exclude=_later_keys(document_spec))
        chat = self.chat and [self.chat.text, self.chat.special_tokens]
        parts = [list(self.keys), document, self.shortest, self.longest, self.dtype, chat, self.end_of_text]
        if document_spec is not None and document_spec.learned_in_part:
            parts.append(_LEARNED_IN_PART)
        if document_spec is not None and document_spec.sequences > 1 and (self.shortest or self.longest):
            parts.append(_PROMPT_COUNTS_ONCE)
        if document_spec is not None and document_spec.is_pair:
            parts.append(_TEXTS_ARE_DIVIDED)
        if document_spec is not None and document_spec.sequences > 2:
            parts.append(_NEGATIVES_ARE_ALIKE)
        if document_spec is not None and document_spec.read_as:
            parts.append(document_spec.read_as)
        code = document_spec and plugin_digest(document_spec)
        return [*parts, ["plugin", code]] if code else parts

    @property
    def has_special_tokens(self) -> bool:
        """Whether names of special tokens in its texts mean these tokens."""
        return self.document is not None and self.document.chat_template is not None


def _later_keys(document: Document) -> set[str]:
    """Return the keys that documents did not have at first, and that have their default."""
    fields = type(document).model_fields
    return {key for key in document.later_keys if getattr(document, key) == fields[key].default}


def check(document: Document | None) -> None:
    """Raise TrainkitError if a template has a mistake."""
    templates = document.templates if document else {}
    # of a preference pair one answer may be the same in every document
    together = document is not None and document.sequences > 1
    has_keys = [bool(_checked_keys(name, template)) for name, template in templates.items()]
    for (name, template), has_key in zip(templates.items(), has_keys, strict=True):
        if not (any(has_keys) if together else has_key or name == "prompt"):
            raise _template_error(name, template, "it has no key in braces, so that every document would be the same")


def needed_keys(reading: RowReading) -> tuple[str, ...] | None:
    """Return the keys of a row that its document is made of, including optional ones; None if it may be any key."""
    document = reading.document
    if document is None:
        return tuple(dict.fromkeys(reading.keys))
    if document.templates:
        written = (key for template in document.templates.values() for key in _keys(template))
        return tuple(dict.fromkeys([*written, *(document.keys or ())]))
    return None if document.keys is None else tuple(dict.fromkeys(document.keys))


def make_document(
    reading: RowReading, row: Mapping[str, Any], index: int, base: str = "", *, columns: bool = False
) -> list[Piece] | Refused:
    """Return the document of a row, or why it cannot be used. Relative paths in the row count from `base`.

    With `columns` the row is of a format whose objects have all keys of a column, null where an object has none.
    What is refused has no place yet.
    """
    try:
        document = reading.document
        if document is None:
            pieces = _texts(reading.keys, row, index)
        else:
            pieces = implementation_of(document).make(document, row, index, RowContext(base, columns, reading.chat))
    except UnicodeEncodeError:
        return _surrogates(reading, row)
    if isinstance(pieces, tuple):
        return Refused("", *pieces)
    if pieces and pieces[0].ids is not None:
        return pieces
    return refused_length(reading, _characters(pieces)) or pieces


def _characters(pieces: Sequence[Piece]) -> int:
    """Return the characters of a document; the prompt of a preference pair counts once."""
    return sum(
        sum(end - begin for begin, end in piece.learned)
        if piece.second and piece.complete and piece.learned is not None
        else len(piece.text)
        for piece in pieces
    )


def refused_length(reading: RowReading, characters: int) -> Refused | None:
    """Return why a document of so many characters is left out; None if it is not."""
    if reading.shortest is not None and characters < reading.shortest:
        limit = f"fewer than min_characters = {reading.shortest}"
    elif reading.longest is not None and characters > reading.longest:
        limit = f"more than max_characters = {reading.longest}"
    else:
        return None
    return Refused("", f"has {characters} characters, {limit}", filtered=True)


def missing_column(reading: RowReading, names: Sequence[str]) -> Refused | None:
    """Return that a table lacks a column that all its documents need; None if it has them."""
    optional = _optional_keys(reading.document)
    for key in needed_keys(reading) or ():
        if key not in names and key not in optional:
            setting = "document" if reading.document else "text_key"
            return Refused("", *missing_key(key, names, setting, usual=() if reading.document else _USUAL))
    return None


def make(document: Template | Prompt, row: Mapping[str, Any], index: int, context: RowContext) -> list[Piece] | Problem:
    """Return the pieces of a row's text, or of its prompt with the response."""
    if isinstance(document, Prompt):
        return _prompt(document, row, index)
    text = fill("document.template", document.template, row)
    return text if isinstance(text, tuple) else list(text_pieces(index, [text]))


def _texts(keys: tuple[str, ...], row: Mapping[str, Any], index: int) -> list[Piece] | Problem:
    texts: list[str] = []
    for key in keys:
        if key not in row:
            return missing_key(key, row, "text_key", usual=_USUAL)
        if not isinstance(row[key], str):
            return f"'{key}' is {kind_of(row[key])}, not a string", "text_key names the key that holds text"
        texts.append(row[key])
    return list(text_pieces(index, ["\n\n".join(texts)]))


def _prompt(document: Prompt, row: Mapping[str, Any], index: int) -> list[Piece] | Problem:
    prompt = fill("document.prompt", document.prompt, row)
    response = fill("document.response", document.response, row)
    if isinstance(prompt, tuple):
        return prompt
    if isinstance(response, tuple):
        return response
    if not response.strip():
        return "has an empty response", "there is nothing to learn from it"
    text = prompt + response
    return [learned_in_part(index, text, [(len(prompt), len(text))])]


def fill(setting: str, template: str, row: Mapping[str, Any]) -> str | Problem:
    """Return a template with the values of a row, or what is wrong; `setting` is where the template comes from."""
    text, written = [], True
    for part, is_key in parse(template):
        if is_key and part[0] in (_IF, _UNLESS, _END):
            written = part[0] == _END or _has_value(row, part[1:]) is (part[0] == _IF)
        elif not written:
            continue
        elif not is_key:
            text.append(part)
        elif part not in row:
            return missing_key(part, row, setting)
        elif isinstance(value := row[part], str):
            text.append(value)
        elif isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            text.append(str(value))
        else:
            return f"'{part}' is {kind_of(value)}, neither a string nor a number", ""
    return "".join(text)


def _has_value(row: Mapping[str, Any], key: str) -> bool:
    """Return whether a row has more than null or blanks for a key."""
    value = row.get(key)
    return value is not None and not (isinstance(value, str) and not value.strip())


@lru_cache
def parse(template: str) -> tuple[tuple[str, bool], ...]:
    """Return a template as (text, False) and (key, True) parts; the "?key", "!key" and "/key" of sections are keys too.

    Raises ValueError where a brace is not closed or empty, or a section not closed or within another.
    """
    parts: list[tuple[str, bool]] = []
    section = ""
    end = 0
    for match in _PARTS.finditer(template):
        parts.append((template[end : match.start()], False))
        end = match.end()
        doubled, key, stray = match.groups()
        if stray:
            raise ValueError(f"the '{stray}' at character {match.start() + 1} belongs to no key in braces")
        parts.append((doubled[0], False) if doubled else (key, True))
        if key and key[0] in (_IF, _UNLESS, _END):
            if (key[0] == _END) != bool(section) or (section and key[1:] != section):
                wanted = f"{{{_END}{section}}} is missing before it" if section else "it ends nothing"
                raise ValueError(f"the '{{{key}}}' at character {match.start() + 1} is out of place: {wanted}")
            section = "" if key[0] == _END else key[1:]
    if section:
        raise ValueError(f"the section of '{section}' is not ended by {{{_END}{section}}}")
    parts.append((template[end:], False))
    return tuple((text, is_key) for text, is_key in parts if text)


def _keys(template: str) -> tuple[str, ...]:
    """Return all keys that a template names."""
    return tuple(part.lstrip(_IF + _UNLESS + _END) for part, is_key in parse(template) if is_key)


def _optional_keys(document: Document | None) -> set[str]:
    """Return the keys that rows need not have: those that templates name only in sections."""
    optional: set[str] = set()
    always: set[str] = set()
    for template in document.templates.values() if document else ():
        inside = False
        for part, is_key in parse(template):
            if is_key and part[0] in (_IF, _UNLESS, _END):
                inside = part[0] != _END
                optional.add(part[1:])
            elif is_key:
                (optional if inside else always).add(part)
    return optional - always


def _checked_keys(name: str, template: str) -> tuple[str, ...]:
    try:
        return _keys(template)
    except ValueError as error:
        raise _template_error(name, template, str(error)) from None


def _template_error(name: str, template: str, problem: str) -> TrainkitError:
    return TrainkitError(
        f'document.{name} = "{template}": {problem}',
        where="data.train",
        hint='write a row\'s keys in braces, and braces twice: "{question} {{…}}"',
    )


def _surrogates(reading: RowReading, row: Mapping[str, Any]) -> Refused:
    """Return that a text of the row cannot be written as UTF-8, and which."""
    for key in needed_keys(reading) or row:
        try:
            str(row.get(key, "")).encode()
        except UnicodeEncodeError:
            return Refused("", f"'{key}' {NO_TEXT}")
    return Refused("", NO_TEXT)
