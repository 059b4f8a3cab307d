"""What the README and the documents in docs/ quote exists: files, packages and sections of other documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: Of files in quotes those that stand for a file that the reader writes.
WRITTEN_BY_READERS = re.compile(r"NAME|\bmy_|\bmine\b")


def python_files() -> set[str]:
    places = ("trainkit", "tests", "scripts", "recipes")
    return {f"/{path.relative_to(ROOT)}" for place in places for path in (ROOT / place).rglob("*.py")}


def anchors(document: Path) -> set[str]:
    """Return the names by which links reach the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_names_only_files_and_sections_that_exist(document: Path) -> None:
    text, files = document.read_text(encoding="utf-8"), python_files()
    quoted = set(re.findall(r"`([\w/.-]+\.py)`", text))
    missing = [name for name in quoted if not any(file.endswith(f"/{name}") for file in files)]
    assert [name for name in missing if not WRITTEN_BY_READERS.search(name)] == []
    for path, _, section in (link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", text)):
        if "://" in path:
            continue
        other = document.parent / path if path else document
        assert other.exists(), path
        assert not section or section in anchors(other), f"{path}#{section}"


def test_what_the_architecture_places_in_a_file_is_in_it() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    files, placed = python_files(), re.findall(r"`(\w+)`,? (?:at the end )?(?:of|in) `([\w/]+\.py)`", text)
    assert len(placed) > 15
    for name, file in placed:
        found = [path for path in files if path.endswith(f"/{file}")]
        words = set(re.findall(r"\w+", "".join((ROOT / path[1:]).read_text("utf-8") for path in found)))
        assert name in words, f"{name} is not in {file}"


def test_the_architecture_names_every_package() -> None:
    listed = re.search(
        r"^```\ncli/ .*?^```", (ROOT / "docs/architecture.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert listed is not None
    packages = {path.parent.name for path in (ROOT / "trainkit").glob("*/__init__.py")}
    assert set(re.findall(r"^(\w+)/ ", listed[0], re.MULTILINE)) == packages
