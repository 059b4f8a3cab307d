"""A command reads and validates its recipe once, and imports its plugins once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trainer

from trainkit.cli import resume as resuming
from trainkit.cli import run as running
from trainkit.recipe import Recipe
from trainkit.recipe.toml import plugins
from trainkit.run import setup

PLUGIN = """
from typing import Literal
from trainkit.recipe.sections.schedule_spec import ScheduleSpec

class Own(ScheduleSpec):
    type: Literal["own"]

    def rate_after_warmup(self, step, *, peak, steps, decay_start, xp):
        return peak
"""
EXTENDING = 'extends = ["tiny.toml"]\n[plugins]\nfiles = ["own.py"]\n[schedule]\ntype = "own"\n'


@pytest.fixture
def counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often each recipe file is read, a recipe is validated, and a plugin is imported."""
    found: Counter[str] = Counter()

    def counted(read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(path: Path, *arguments: Any, **named: Any) -> Any:
            found[path.name] += path.suffix == ".toml" and not set("".join(map(str, arguments))) & set("wxa+")
            return read(path, *arguments, **named)

        return reading

    validate, load_plugins = Recipe.model_validate.__func__, plugins.load_plugins  # type: ignore[attr-defined]

    def validating(cls: type[Recipe], *arguments: Any, **named: Any) -> Any:
        found["validated"] += 1
        return validate(cls, *arguments, **named)

    def importing(*arguments: Any, **named: Any) -> Any:
        found["plugins imported"] += 1
        return load_plugins(*arguments, **named)

    trainer.workplace(tmp_path)
    (tmp_path / "own.py").write_text(PLUGIN)
    (tmp_path / "extending.toml").write_text(EXTENDING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(setup, "train", lambda *_, **__: SimpleNamespace(done=True, reason=""))
    monkeypatch.setattr(Recipe, "model_validate", classmethod(validating))
    monkeypatch.setattr(plugins, "load_plugins", importing)
    for name in ("read_bytes", "read_text", "open"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    yield found


@pytest.mark.parametrize("smoke", [False, True], ids=["run", "smoke"])
def test_run_reads_validates_and_imports_once(counts: Counter[str], smoke: bool) -> None:
    assert running.run(Path("extending.toml"), plain=True, smoke=smoke) == 0
    assert +counts == {"extending.toml": 1, "tiny.toml": 1, "validated": 1, "plugins imported": 1}


def test_resume_reads_the_recipe_of_the_run_once(counts: Counter[str]) -> None:
    running.run(Path("extending.toml"), plain=True)
    counts.clear()
    assert resuming.resume("tiny", plain=True) == 0
    assert +counts == {"recipe.toml": 1, "validated": 1, "plugins imported": 1}
