"""Text files and Python files; each file is one document."""

from __future__ import annotations

import codecs
import io
import tokenize
from collections.abc import Iterator

from trainkit.data.documents.pieces import Piece, Refuse, Refused, Span, text_pieces
from trainkit.data.documents.templates import refused_length
from trainkit.data.sources.files import DAMAGED, chunks, open_binary, open_raw
from trainkit.data.sources.source_file import SourceFile, refuse_damaged


def read_text(file: SourceFile, refuse: Refuse, span: Span | None = None) -> Iterator[Piece]:
    """Yield the one document of a file, byte for byte but for a byte order mark.

    The file is read twice, the first time to check it, so that a document is used whole or not at all.
    """
    offset = characters = 0
    decoder = codecs.getincrementaldecoder("utf-8")()
    starts = b""
    try:
        with open_binary(file.path) as stream:
            for chunk in chunks(stream):
                starts = starts or chunk[:3]
                waiting = len(decoder.getstate()[0])
                characters += len(decoder.decode(chunk))
                offset += len(chunk)
            waiting = len(decoder.getstate()[0])
            decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        return refuse(Refused(f":byte {offset - waiting + error.start}", f"is not UTF-8: {error.reason}"))
    except DAMAGED as error:
        return refuse(refuse_damaged(error))
    if wrong := refused_length(file.reading, characters - starts.startswith(codecs.BOM_UTF8)):
        return refuse(wrong)
    with open_binary(file.path) as stream:
        yield from text_pieces(0, codecs.iterdecode(chunks(stream), "utf-8-sig"))


def read_python(file: SourceFile, refuse: Refuse, span: Span | None = None) -> Iterator[Piece]:
    """Yield the one document of a Python file, decoded as its encoding declaration says (PEP 263)."""
    with open_raw(file.path) as stream:
        source = stream.read()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        decoded = source.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        return refuse(Refused("", f"cannot be decoded: {error}"))
    yield from text_pieces(0, [decoded])
