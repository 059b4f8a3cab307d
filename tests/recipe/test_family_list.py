"""A model family is one file and one line of a list: nothing else of the package knows it by name."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import trainkit
from trainkit.recipe.families import families
from trainkit.recipe.families.hugging_face import Family
from trainkit.recipe.families.model import Head
from trainkit.recipe.sections.model import Model
from trainkit.recipe.union import members_of

PACKAGE = Path(trainkit.__file__).parent
FILES = PACKAGE / "recipe" / "families"
HOMES = {
    f"trainkit.recipe.families.{file.stem}": module.FAMILY
    for file in FILES.glob("[!_]*.py")
    if hasattr(module := import_module(f"trainkit.recipe.families.{file.stem}"), "FAMILY")
}


def imported(file: Path) -> set[str]:
    """The modules that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return found


def test_every_family_file_is_in_the_list_and_the_list_makes_the_section() -> None:
    assert sorted(family.type for family in HOMES.values()) == sorted(family.type for family in families())
    assert [family.spec for family in families()] == members_of(Model)


def test_a_family_is_in_the_file_that_is_named_as_its_type() -> None:
    for home, family in HOMES.items():
        assert home.rsplit(".", 1)[1] == family.type.replace("-", "_")
        assert family.spec.__module__ == home


def test_no_two_families_have_one_type_or_one_model_type() -> None:
    assert len({family.type for family in families()}) == len(families())
    assert len({family.model_type for family in families()}) == len(families())


def test_only_the_list_and_a_module_that_builds_a_single_family_import_it() -> None:
    knows = {
        (str(file.relative_to(PACKAGE)), home)
        for file in PACKAGE.rglob("*.py")
        if file != FILES / "__init__.py"
        for home in imported(file) & HOMES.keys()
    }
    own = {(f"{implementation(family)}.py", home) for home, family in HOMES.items()}
    assert knows <= own, f"these import a family: {sorted(knows - own)}"


def implementation(family: Family) -> str:
    return family.spec.implementation.removeprefix("trainkit.").replace(".", "/")


def test_every_parameter_of_a_family_has_a_tensor_name() -> None:
    sizes = {
        "layers": 2,
        "hidden": 8,
        "heads": 2,
        "intermediate": 12,
        "moe_intermediate": 12,
        "experts": 3,
        "experts_per_token": 2,
        "decoder_start": 0,
    }
    for family in families():
        given = {key: value for key, value in sizes.items() if key in family.spec.model_fields}
        spec = family.spec.model_validate(given)
        leaves = spec.leaf_shapes(vocab_size=5, sequence_length=4)
        assert leaves.keys() <= {name.ours for name in family.names}, family.type
        assert spec.class_heads.keys() == family.heads.keys(), family.type
        for kind in spec.class_heads:
            leaves = spec.with_head(Head(kind, 2)).leaf_shapes(vocab_size=5, sequence_length=4)
            assert leaves.keys() <= family.names_of(kind).keys(), family.type
            assert {name for name in family.names_of(kind) if name.startswith("classifier.")} <= leaves.keys() | {
                "classifier.output.bias"
            }
