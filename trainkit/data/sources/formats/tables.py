"""Tables as text: CSV with commas, or with tabs in `.tsv` files."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator
from typing import BinaryIO

from trainkit.data.documents.pieces import Refuse, Refused, Span
from trainkit.data.sources.files import DAMAGED, open_binary, suffixes
from trainkit.data.sources.source_file import Rows, SourceFile, SourceRow, refuse_damaged

#: The csv module's own limit is 128 KB, and one for the whole process.
_LONGEST = (1 << 31) - 1


def read_table(file: SourceFile, refuse: Refuse, span: Span | None = None) -> Rows:
    """Yield each row below the header; quoted fields may hold line ends. Blank lines are skipped, and do not count."""
    csv.field_size_limit(_LONGEST)
    document = file.reading.document
    numbers = document.number_keys if document else ()
    header: list[str] = []
    index = -1
    for line, fields in _records(file, refuse):
        if not fields:
            continue
        if not header:
            header = fields
            if doubled := next((name for name in header if header.count(name) > 1), None):
                return refuse(Refused(f":{line}", f"has two columns '{doubled}'", "the first line names the columns"))
            continue
        index += 1
        if len(fields) != len(header):
            shown = ", ".join(header[:8]) + (", …" if len(header) > 8 else "")
            hint = "a field that holds the separator or a line end is written in double quotes"
            refuse(Refused(f":{line}", f"has {len(fields)} columns, but the header {len(header)}: {shown}", hint))
            continue
        values: dict[str, object] = dict(zip(header, fields, strict=True))
        for key in numbers:
            if isinstance(number := values.get(key), str) and number.strip().removeprefix("-").isdecimal():
                values[key] = int(number)
        yield SourceRow(index, f":{line}", values)


def _records(file: SourceFile, refuse: Refuse) -> Iterator[tuple[int, list[str]]]:
    """Yield (first line, fields) of each record that can be read."""
    reader = None
    line = 1
    try:
        with open_binary(file.path) as stream:
            reader = csv.reader(
                _decode_lines(stream), delimiter="\t" if suffixes(file.path)[0] == ".tsv" else ",", strict=True
            )
            while True:
                line = reader.line_num + 1
                try:
                    fields = next(reader)
                    "".join(fields).encode()
                except StopIteration:
                    return
                except UnicodeEncodeError:
                    refuse(Refused(f":{line}", "is not UTF-8"))
                except csv.Error as error:
                    refuse(Refused(f":{line}", f"is not CSV: {error}", "a double quote within quotes is written twice"))
                else:
                    yield line, fields
    except DAMAGED as error:
        refuse(refuse_damaged(error, f":{line}"))


def _decode_lines(stream: BinaryIO) -> Iterator[str]:
    """Yield lines in which bytes that are not UTF-8 are surrogates, to be reported with their row."""
    for number, line in enumerate(stream):
        yield (line.removeprefix(codecs.BOM_UTF8) if number == 0 else line).decode(errors="surrogateescape")
