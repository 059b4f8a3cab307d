"""What holds of the whole package and of the whole suite: names, and quick tests."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import trainkit

ROOT = Path(trainkit.__file__).parent


def public_classes() -> dict[str, list[str]]:
    """Return the files that define each public class."""
    found = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    return found


def test_no_two_public_classes_have_the_same_name() -> None:
    found = public_classes()
    assert len(found) > 300
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


def test_every_package_says_what_it_contains() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("__init__.py")
        if len(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "") < 10
    ]
    assert silent == []


def test_every_package_has_quick_tests(request: pytest.FixtureRequest) -> None:
    tests, quick = Path(__file__).parent, set()
    collected = {item.path.relative_to(tests).parts[0] for item in request.session.items}
    for item in request.session.items:
        if item.get_closest_marker("quick"):
            quick.add(item.path.relative_to(tests).parts[0])
    packages = {path.parent.name for path in tests.glob("*/test_*.py")}
    if packages - collected and request.config.option.markexpr != "quick":
        pytest.skip("not all tests were asked for")
    assert packages - quick == set()
