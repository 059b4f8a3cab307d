"""What holds of the whole package and of the whole suite: names, and quick tests."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
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


#: Participles without -ed, except those that are also the verb itself, such as `read`, `cut` or `set`.
IRREGULAR = """
beaten been begun bent bitten bound bought bred broken brought built caught chosen dealt done drawn driven dug eaten
fallen fed felt forbidden forgotten fought found frozen given gone grown heard held hidden kept known laid led left
lent lit lost made meant met owed paid proven ridden risen said seen sent shown slept sold sought spent spoken spun
stolen stood struck stuck swept taken taught thought thrown told torn understood woken won worn wound written
"""


def is_bare_participle(name: str) -> bool:
    """Return whether a name is one word, and a participle: it does not say what the function does or returns."""
    regular = name.endswith(("ed", "ing")) and not name.endswith("eed")
    return "_" not in name and (regular or name in IRREGULAR.split())


def public_functions() -> Iterator[tuple[str, str]]:
    """Yield the file and name of every public function and method; properties are values."""
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        owners = [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
        for node in (node for owner in owners for node in owner.body):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
                continue
            if not any("property" in ast.unparse(decorator) for decorator in node.decorator_list):
                yield str(path.relative_to(ROOT)), node.name


def test_no_public_function_is_named_by_a_bare_participle() -> None:
    assert all(map(is_bare_participle, ("padded", "reading", "told"))) and not is_bare_participle("feed")
    found = list(public_functions())
    assert len(found) > 1000
    assert [at for at in found if is_bare_participle(at[1])] == []


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
    assert packages - quick == {"gpu"}
