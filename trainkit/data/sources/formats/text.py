"""Files that are one document each."""

from __future__ import annotations

import codecs
import io
import tokenize
from collections.abc import Iterator

from trainkit.data.documents.pieces import Piece, Refuse, Refused, text_pieces
from trainkit.data.documents.templates import refused_length
from trainkit.data.sources.files import DAMAGED, chunks, open_binary, open_raw
from trainkit.data.sources.formats.rows import refuse_damaged
from trainkit.data.sources.source_file import SourceFile


def text(file: SourceFile, refuse: Refuse) -> Iterator[Piece]:
    """One document, byte for byte (a byte order mark aside). It is checked first, so that it is taken whole or not;
    hence it is read twice."""
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


def python(file: SourceFile, refuse: Refuse) -> Iterator[Piece]:
    """One document, decoded as its coding cookie says (PEP 263)."""
    with open_raw(file.path) as stream:
        source = stream.read()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        decoded = source.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        return refuse(Refused("", f"cannot be decoded: {error}"))
    yield from text_pieces(0, [decoded])
