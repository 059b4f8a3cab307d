"""The line of each key in a TOML text.

`tomli` gives values without positions. This scanner reads the same text again for positions without values. It is
called only with text that tomli has accepted, so it raises no errors.
"""

from __future__ import annotations

from dataclasses import dataclass

import tomli

#: `("data", "train", 0, "path")`
Key = tuple[str | int, ...]


@dataclass(frozen=True, order=True)
class Origin:
    """Where a value was written: a file and its line, or `--set` and `default`, which have no line."""

    file: str
    line: int = 0
    mode: str = ""
    """The mode of the recipe that the value comes from."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"mode {self.mode} ({place})" if self.mode else place


def dotted_key(key: Key) -> str:
    """Return a key as text, such as `data.train.0.path`."""
    return ".".join(map(str, key))


def locate(text: str) -> dict[Key, int]:
    """Return the line (from 1) of every table, key and array element of a valid TOML text."""
    return _Scanner(text).document()


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Key, int] = {}
        #: Number of elements so far in each array of tables.
        self.counts: dict[Key, int] = {}
        self._counted_to, self._newlines = 0, 0

    def document(self) -> dict[Key, int]:
        table: Key = ()
        while self._skip_space():
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)
        return self.lines

    def _header(self) -> Key:
        is_array = self.text.startswith("[[", self.at)
        line = self._line()
        self.at += 2 if is_array else 1
        parts = self._key()
        self.at += 2 if is_array else 1
        path: Key = ()
        for part in parts[:-1]:
            path = self._last_element((*path, part))
            self.lines.setdefault(path, line)
        path = (*path, parts[-1])
        if is_array:
            self.lines.setdefault(path, line)
            self.counts[path] = self.counts.get(path, 0) + 1
            path = self._last_element(path)
        # a table that was only implied by its children so far is now declared
        self.lines[path] = line
        return path

    def _last_element(self, path: Key) -> Key:
        return (*path, self.counts[path] - 1) if path in self.counts else path

    def _pair(self, table: Key) -> None:
        line = self._line()
        path = table
        for part in self._key():
            path = (*path, part)
            self.lines.setdefault(path, line)
        self.at += 1  # "="
        self._value(path)

    def _key(self) -> list[str]:
        """Read and return a dotted key, up to the `=` or `]` after it."""
        parts: list[str] = []
        while True:
            self._skip_blank()
            start = self.at
            if self.text[start] in "\"'":
                self._string()
                parts.append(tomli.loads(f"key = {self.text[start : self.at]}")["key"])
            else:
                while self.text[self.at] not in " \t.=]":
                    self.at += 1
                parts.append(self.text[start : self.at])
            self._skip_blank()
            if self.text[self.at] != ".":
                return parts
            self.at += 1

    def _value(self, path: Key) -> None:
        self._skip_blank()
        opening = self.text[self.at]
        if opening in "\"'":
            self._string()
        elif opening == "[":
            self.at += 1
            index = 0
            while self._next("]"):
                self.lines[(*path, index)] = self._line()
                self._value((*path, index))
                index += 1
        elif opening == "{":
            self.at += 1
            while self._next("}"):
                self._pair(path)
        else:
            while self.at < len(self.text) and self.text[self.at] not in ",]}#\r\n":
                self.at += 1

    def _next(self, closing: str) -> bool:
        """Move to the next element of an array or inline table, or past its end; return whether there is one."""
        while True:
            self._skip_space()
            char = self.text[self.at]
            if char in (",", closing):
                self.at += 1
            if char == closing:
                return False
            if char != ",":
                return True

    def _string(self) -> None:
        quote = self.text[self.at]
        end = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        self.at += len(end)
        while not self.text.startswith(end, self.at):
            self.at += 2 if self.text[self.at] == "\\" and quote == '"' else 1
        self.at += len(end)
        # up to two quotes may directly precede the closing three
        while len(end) == 3 and self.text.startswith(quote, self.at):
            self.at += 1

    def _skip_blank(self) -> None:
        while self.text[self.at] in " \t":
            self.at += 1

    def _skip_space(self) -> bool:
        """Skip white space, line ends and comments; return whether anything is left."""
        while self.at < len(self.text):
            if self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.text[self.at] in " \t\r\n":
                self.at += 1
            else:
                return True
        return False

    def _line(self) -> int:
        """Return the current line, counted from that of the last call, since positions only increase."""
        self._newlines += self.text.count("\n", self._counted_to, self.at)
        self._counted_to = self.at
        return self._newlines + 1
