"""Every number of a recipe has a range, and what is beyond it or beyond the machine is refused with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_recipe import TEXT, changed, line_of, write

from trainkit.errors import TrainkitError
from trainkit.plan.length import count_steps
from trainkit.plan.size import BEYOND_RUN, check_size
from trainkit.recipe.families.sizes import divisors, nearest_divisors
from trainkit.recipe.spec import MOST
from trainkit.recipe.toml import schema
from trainkit.recipe.toml.load import load, load_resolved
from trainkit.recipe.toml.values import dumps, flat


def numbers(node: schema.Node, name: str) -> Iterator[tuple[str, schema.Node]]:
    """Yield every number of a spec, with its name, wherever in unions, lists and tables it stands."""
    if node.get("type") in ("integer", "number") and not schema.choices(node):
        yield name, node
    for part in ("anyOf", "oneOf", "prefixItems"):
        for inner in node.get(part, []):
            yield from numbers(inner, name)
    for part in ("items", "additionalProperties"):
        if isinstance(node.get(part), dict):
            yield from numbers(node[part], f"{name}[]")
    for key, inner in node.get("properties", {}).items():
        yield from numbers(inner, f"{name}.{key}")


def test_every_number_of_the_language_has_a_least_and_a_greatest_value() -> None:
    whole = schema.schema()
    specs = {"Recipe": {"properties": whole["properties"]}, **whole["$defs"]}
    found = [pair for name, spec in specs.items() for pair in numbers(spec, name)]
    assert len(found) > 500
    for name, node in found:
        assert {"minimum", "exclusiveMinimum"} & node.keys(), f"{name} has no least value: see the types in spec.py"
        assert {"maximum", "exclusiveMaximum"} & node.keys(), f"{name} has no greatest value: see the types in spec.py"


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("optimizer", "weight_decay", "1e13"),
        ("optimizer", "learning_rate", "1e5"),
        ("optimizer", "eps", "1e6"),
        ("task", "z_loss", "1e12"),
        ("model", "initializer_range", "1e10"),
        ("train", "epochs", "1e9"),
    ],
)
def test_what_no_training_survives_is_refused_by_check(tmp_path: Path, section: str, key: str, value: str) -> None:
    with pytest.raises(TrainkitError, match=rf"{section}\.{key} = \S+: expected a number") as raised:
        load(write(tmp_path), [f"{section}.{key}={value}"])
    assert " to " in str(raised.value) or "of at most" in str(raised.value)


BEYOND = ("1e300", "-1e300", "9223372036854775808", "-9223372036854775808", f"0x{'f' * 5000}", "1e-300", "-1")


@pytest.mark.parametrize("key", ["layers", "hidden", "batch_size", "steps", "seed", "learning_rate", "sequence_length"])
def test_a_number_beyond_its_range_is_refused_with_its_line_and_the_range(tmp_path: Path, key: str) -> None:
    line = next(line for line in TEXT.splitlines() if line.startswith(f"{key} = "))
    for value in BEYOND:
        text = changed((line, f"{key} = {value}"))
        with pytest.raises(TrainkitError) as raised:
            load(write(tmp_path, text))
        said = str(raised.value)
        assert f"sample.toml:{line_of(text, f'{key} = ')}: " in said and f".{key} = " in said, said
        assert " from " in said and "mistakes" not in said and len(said) < 500, said


def test_a_number_that_python_does_not_read_is_a_mistake_of_its_line(tmp_path: Path) -> None:
    text = changed(("steps = 20", f"steps = {'9' * 5000}"))
    with pytest.raises(TrainkitError) as raised:
        load(write(tmp_path, text))
    assert f"sample.toml:{line_of(text, 'steps = 9')}" in str(raised.value) and "4,300 digits" in str(raised.value)
    with pytest.raises(TrainkitError, match=r"train\.steps = .*expected a whole number") as raised:
        load(write(tmp_path, TEXT), [f"train.steps={'9' * 5000}"])
    assert len(str(raised.value)) < 500


def test_what_no_machine_holds_is_refused_with_the_estimate(tmp_path: Path) -> None:
    for key, value, what in (
        ("hidden", "hidden = 1000000", "model"),
        ("batch_size", "batch_size = 1000000000", "train.batch_size"),
        ("sequence_length", "sequence_length = 1000000000", "data.sequence_length"),
    ):
        line = next(line for line in TEXT.splitlines() if line.startswith(f"{key} = "))
        more = [] if key == "hidden" else [("hidden = 32", "hidden = 4000"), ("heads = 4", "heads = 8")]
        recipe = load(write(tmp_path, changed((line, value), *more))).recipe
        with pytest.raises(TrainkitError, match=r"need about .* [GT]B; this machine has 100\.0 MB of memory") as raised:
            check_size(recipe, vocab_size=300, memory=lambda: 10**8)
        assert raised.value.where == what
        with pytest.raises(TrainkitError):
            check_size(recipe, vocab_size=300, memory=lambda: 10**10, beyond=BEYOND_RUN)
        check_size(recipe, vocab_size=300, memory=lambda: None)
    check_size(load(write(tmp_path)).recipe, vocab_size=300, memory=lambda: pytest.fail("a small recipe asks for it"))


def test_a_run_that_was_trained_with_numbers_beyond_the_ranges_still_loads(tmp_path: Path) -> None:
    loaded = load(write(tmp_path))
    text = dumps(loaded.recipe, loaded.origins, loaded.path)
    beyond = {
        "train.steps": 10**12,
        "train.max_grad_norm": 1e30,
        "optimizer.learning_rate": 1e7,
        "optimizer.eps": 1e-40,
        "schedule.warmup": 10**10,
        "checkpoint.every_minutes": 1e9,
    }
    for key, value in beyond.items():
        text, count = re.subn(rf"^{key.split('.')[1]} = \S+", f"{key.split('.')[1]} = {value!r}", text, flags=re.M)
        assert count == 1, key
    path = write(tmp_path, text, "recipe.toml")
    found = flat(load_resolved(path).recipe)
    assert {key: found[tuple(key.split("."))] for key in beyond} == beyond
    with pytest.raises(TrainkitError, match=r"train.batch_size = 1000000000000: expected a whole number from 1 to"):
        load_resolved(path, ["train.batch_size=1_000_000_000_000"])
    for wrong in ("steps = 0", "steps = -1", 'steps = "many"'):
        with pytest.raises(TrainkitError, match=r"recipe.toml:\d+: train.steps = "):
            load_resolved(write(tmp_path, text.replace("steps = 1000000000000", wrong), "recipe.toml"))


def test_a_run_has_a_bounded_number_of_steps(tmp_path: Path) -> None:
    recipe = load(write(tmp_path, changed(("steps = 20", f"tokens = {10**15}")))).recipe
    assert count_steps(recipe, None, 1e6) == MOST
    with pytest.raises(TrainkitError, match="a run has 1,000,000,000 at most"):
        count_steps(recipe, None, 1e5)


def test_a_grid_has_a_bounded_number_of_runs(tmp_path: Path) -> None:
    swept = '[sweep.parameters]\n"run.seed" = { low = 0, high = 4000000000 }\n'
    with pytest.raises(TrainkitError, match="a grid of 4,000,000,001 runs is more than 100,000"):
        load(write(tmp_path, TEXT + swept))


def test_divisors_are_found_without_trying_every_number() -> None:
    for number in range(1, 200):
        assert divisors(number) == [n for n in range(1, number + 1) if number % n == 0]
    assert nearest_divisors(1_000_000_007, 4) == "1, 1000000007"
