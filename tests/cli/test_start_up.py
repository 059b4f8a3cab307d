"""What each command loads. Counted in modules, since seconds depend on the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sample_recipe import write

HEAVY = {"numpy", "jax", "jaxlib", "equinox", "optax", "tensorstore", "tokenizers", "pyarrow"}
HEAVY |= {"textual", "aim", "datasets"}

REPORT = """
import sys, json
print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})), file=sys.stderr)
"""


def loaded(code: str, directory: Path) -> set[str]:
    """The top-level modules in a process that ran `code`."""
    child = subprocess.run(
        [sys.executable, "-c", code + REPORT], cwd=directory, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
    return set(json.loads(child.stderr.splitlines()[-1]))


def command(*arguments: str) -> str:
    return (
        f"import sys\nsys.argv = {['trainkit', *arguments]!r}\nfrom trainkit.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 0, end.code"
    )


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["run", "--help"]], ids=["--help", "--version", "run --help"]
)
def test_help_loads_nothing_heavy(tmp_path, arguments):
    modules = loaded(command(*arguments), tmp_path)
    assert "typer" in modules
    assert not modules & HEAVY and "tomli" not in modules


@pytest.mark.parametrize("arguments", [["check"], ["explain", "train"]], ids=["check", "explain"])
def test_check_and_explain_load_nothing_that_trains(tmp_path, arguments):
    name, *rest = arguments
    modules = loaded(command(name, str(write(tmp_path)), *rest), tmp_path)
    assert {"pydantic", "tomli"} <= modules
    assert not modules & HEAVY


def test_a_recipe_that_is_right_needs_no_diagnosis(tmp_path):
    code = command("check", str(write(tmp_path))) + "\nassert 'trainkit.recipe.toml.diagnosis' not in sys.modules"
    loaded(code, tmp_path)


def test_the_event_log_needs_only_the_standard_library(tmp_path):
    bare = loaded("", tmp_path)
    assert loaded("import trainkit.events.log", tmp_path) - bare <= sys.stdlib_module_names | {"trainkit"}
