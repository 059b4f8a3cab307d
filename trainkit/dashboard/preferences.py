"""A person's preferences for the dashboard, kept in one small file."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

NAME = "dashboard.json"
#: Bytes of the file that are read: a longer file is not a preferences file.
LONGEST = 1 << 18


@dataclass
class Preferences:
    """Choices that outlive a viewer. The file may be damaged, so users of a value check it."""

    theme: str = ""
    page: str = ""
    #: The panel of the overview that is shown where there is room for one.
    panel: str = ""
    #: The options of charts, by their metric.
    looks: dict[str, Any] = field(default_factory=dict)
    #: The last prompt that was sampled from.
    prompt: str = ""
    #: The preferences of each page, by its name.
    pages: dict[str, dict[str, Any]] = field(default_factory=dict)


def where() -> Path:
    """Return the path of the file: in $XDG_STATE_HOME, which must be absolute (XDG Base Directory Specification), or in
    ~/.local/state."""
    given = os.environ.get("XDG_STATE_HOME", "")
    return Path(given if os.path.isabs(given) else "~/.local/state").expanduser() / "trainkit" / NAME


def read(path: Path) -> Preferences:
    """Return the preferences in the file; what is damaged or missing has its default."""
    preferences = Preferences()
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(LONGEST))
    except (OSError, ValueError, RecursionError):
        return preferences
    if not isinstance(found, dict):
        return preferences
    for name, default in asdict(preferences).items():
        if isinstance(value := found.get(name), type(default)):
            setattr(preferences, name, value)
    preferences.pages = {name: page for name, page in preferences.pages.items() if isinstance(page, dict)}
    return preferences


def write(preferences: Preferences, path: Path) -> None:
    """Replace the file atomically. Where that fails, nothing is remembered and no error is raised."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{NAME}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(asdict(preferences), file, indent=1)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise
