"""Files outside the package add to the recipe language, and what is wrong with one is said before anything is done."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from imports import HEAVY, command, loaded
from sample_recipe import changed, line_of, write
from trainer import RECIPE, arrays, losses, trainkit, workplace

from trainkit.cli.check import check
from trainkit.cli.explain import explain
from trainkit.cli.schema import schema
from trainkit.errors import TrainkitError
from trainkit.events.tail import read
from trainkit.recipe import Recipe
from trainkit.recipe.sections.schedule_spec import NEVER
from trainkit.recipe.toml.load import Loaded, load, load_resolved
from trainkit.recipe.toml.values import dumps
from trainkit.rundir import recipes

PLUGIN = '''\
"""An optimizer and a schedule of one's own."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field

from trainkit.recipe.optimizers.parameters import Shape
from trainkit.recipe.optimizers.spec import OptimizerSpec
from trainkit.recipe.sections.schedule_spec import ScheduleSpec
from trainkit.recipe.spec import Count


class SignDescent(OptimizerSpec):
    """Steps of one size along the signs of the momentum (signSGD, Bernstein et al. 2018, algorithm 2)."""

    type: Literal["sign"]
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the average of the gradients."""

    def state_bytes(self, shape: Shape) -> int:
        return 4 * math.prod(shape)

    def build(self) -> Any:
        import jax
        import jax.numpy as jnp
        import optax

        def update(grads, momentum, params=None, **_):
            momentum = jax.tree.map(lambda m, g: self.momentum * m + (1 - self.momentum) * g, momentum, grads)
            return jax.tree.map(jnp.sign, momentum), momentum

        return optax.GradientTransformationExtraArgs(lambda params: jax.tree.map(jnp.zeros_like, params), update)


class InverseRoot(ScheduleSpec):
    """Falls with the root of the step (Vaswani et al. 2017, section 5.3)."""

    type: Literal["inverse-root"]
    offset: Count = 10
    """Updates after the warm-up until the rate begins to fall visibly."""

    def rate_after_warmup(self, step: Any, *, peak: float, steps: int, decay_start: Any, xp: Any) -> Any:
        done, _ = self.after_warmup(step, steps, xp)
        return peak / xp.sqrt(1 + done / self.offset)
'''
SECTIONS = (
    '[plugins]\nfiles = ["mine/rules.py"]\n[optimizer]\ntype = "sign"\nlearning_rate = 3e-3\nmomentum = 0.8\n'
    '[schedule]\ntype = "inverse-root"\nwarmup = 2\n'
)
TRAINED = (
    RECIPE.replace('[optimizer]\nlearning_rate = 1e-2\n[schedule]\ntype = "cosine"\n', SECTIONS)
    .replace("steps = 24", "steps = 8")
    .replace("keep_every = 6", "keep_every = 4")
)


def resolved(found: Loaded) -> str:
    return dumps(found.recipe, found.origins, found.path)


def place(directory: Path, plugin: str = PLUGIN, recipe: str = TRAINED) -> Path:
    """A recipe in a directory, and its plugin in another one below it."""
    (directory / "mine").mkdir(parents=True, exist_ok=True)
    (directory / "mine" / "rules.py").write_text(plugin)
    return write(directory, recipe, "tiny.toml")


def refusal(path: Path) -> TrainkitError:
    with pytest.raises(TrainkitError) as raised:
        load(path)
    return raised.value


# the language


def test_a_plugin_s_types_are_members_of_the_sections(tmp_path: Path) -> None:
    recipe = load(place(tmp_path)).recipe
    assert isinstance(recipe, Recipe) and recipe.optimizer.type == "sign" and recipe.schedule.type == "inverse-root"
    rates = recipe.schedule.rate(np.arange(40), peak=1.0, steps=40, decay_start=NEVER, xp=np)
    np.testing.assert_allclose(rates[[0, 1, 2, 12]], [0.5, 1, 1, 2**-0.5])


def test_a_group_may_choose_a_plugin_s_optimizer_where_the_rest_has_another(tmp_path: Path) -> None:
    groups = '[[optimizer.groups]]\nmatch = "blocks.*"\noptimizer = { type = "sign", learning_rate = 1e-3 }\n'
    text = TRAINED.replace('type = "sign"\nlearning_rate = 3e-3\nmomentum = 0.8\n', f"learning_rate = 1e-2\n{groups}")
    recipe = load(place(tmp_path, recipe=text)).recipe
    assert recipe.optimizer.type == "adamw" and recipe.optimizer.owner("blocks.x", (3,)).type == "sign"
    wrong = text.replace('type = "sign", learning', 'type = "sigm", learning')
    assert 'did you mean "sign"?' in str(refusal(place(tmp_path, recipe=wrong)))


def test_a_recipe_without_plugins_does_not_know_them(tmp_path: Path) -> None:
    load(place(tmp_path))
    error = refusal(write(tmp_path, TRAINED.replace('[plugins]\nfiles = ["mine/rules.py"]\n', "")))
    assert 'optimizer.type = "sign": expected "adamw" or "adam" or' in str(error)


def test_mistakes_in_a_plugin_s_keys_are_diagnosed_like_any_other(tmp_path: Path) -> None:
    text = TRAINED.replace("momentum = 0.8", "momentun = 0.8").replace("warmup = 2", "warmup = 2\noffset = 0")
    told = str(refusal(place(tmp_path, recipe=text)))
    assert f"tiny.toml:{line_of(text, 'momentun')}: optimizer.momentun = 0.8: no such key" in told
    assert "did you mean momentum?" in told
    assert f"tiny.toml:{line_of(text, 'offset')}: schedule.offset = 0: expected a whole number from 1 to" in told


def test_explain_and_schema_know_a_plugin_s_keys_and_what_they_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = place(tmp_path)
    write(tmp_path / "text", "", "one.txt")
    told = explain(path, "optimizer", [])
    assert (
        'type = "adamw" or "adam" or' in told
        and 'or "psgd" or "sign"' in told
        and "Decay of the average of the gradients." in told
    )
    assert told.startswith("[optimizer]\n  Steps of one size along the signs of the momentum")
    assert "(SHA-256 of plugins.files)" in explain(path, "plugins.digests", [])
    assert "visibly" in explain(path, "schedule.offset", [])
    assert 'or "psgd" or "sign"' in explain(path, "optimizer.type", [])
    assert 'rules.py adds optimizer "sign", schedule "inverse-root"' in check(path)
    defined = {spec["title"]: spec for spec in json.loads(schema(path))["$defs"].values()}
    assert "SignDescent" in defined and "SignDescent" not in schema()
    assert defined["InverseRoot"]["properties"]["offset"]["description"].startswith("Updates after")
    unfinished = write(tmp_path, TRAINED.replace("momentum = 0.8", "momentum ="), "unfinished.toml")
    with pytest.raises(TrainkitError, match="not TOML"):
        schema(unfinished)
    unfinished.write_text(TRAINED.replace("momentum = 0.8", 'momentum = "?"'))
    assert schema(unfinished) == schema(path)


def test_a_type_between_two_others_is_taken_for_the_one_that_its_keys_go_with(tmp_path: Path) -> None:
    text = TRAINED.replace('type = "sign"', 'type = "sigw"')
    plugin = PLUGIN.replace('Literal["sign"]', 'Literal["sigx"]') + (
        '\n\nclass Other(OptimizerSpec):\n    type: Literal["sigy"]\n    needed: Count\n'
        "    state_bytes = SignDescent.state_bytes\n    build = SignDescent.build\n"
    )
    told = str(refusal(place(tmp_path, plugin, text)))
    assert 'did you mean "sigx"?' in told and "needed" not in told


def test_the_resolved_recipe_finds_its_plugins_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extending = write(tmp_path, 'extends = "below/tiny.toml"\n')
    place(tmp_path / "below")
    written = load(extending)
    assert written.recipe.plugins and written.recipe.plugins.files == (str(tmp_path / "below/mine/rules.py"),)
    copy = write(tmp_path / "elsewhere", resolved(written))
    monkeypatch.chdir("/")
    assert load_resolved(copy).recipe == written.recipe


@pytest.mark.parametrize("plugin", [PLUGIN, "raise KeyboardInterrupt", None], ids=["good", "hostile", "gone"])
def test_reading_the_recipe_of_a_run_imports_none_of_its_plugins(tmp_path: Path, plugin: str | None) -> None:
    copy = write(tmp_path / "run", resolved(load(place(tmp_path))))
    file = tmp_path / "mine" / "rules.py"
    file.unlink() if plugin is None else file.write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n{plugin}"
    )
    entries = recipes.entries(copy)
    assert (entries["optimizer.momentum"].value, entries["optimizer.momentum"].meaning) == ("0.8", "")
    assert entries["optimizer.learning_rate"].meaning == "", "what another optimizer says of its key is not shown"
    assert entries["train.steps"].meaning and not (tmp_path / "ran").exists()


def test_an_edited_plugin_is_imported_again_and_known_to_be_edited(tmp_path: Path) -> None:
    copy = write(tmp_path / "run", resolved(load(place(tmp_path))))
    assert load_resolved(copy).changed_plugins == ()
    place(tmp_path, PLUGIN.replace("offset: Count = 10", "offset: Count = 11"))
    again: Loaded = load_resolved(copy)
    assert again.changed_plugins == (str(tmp_path / "mine/rules.py"),)
    assert type(again.recipe.schedule).model_fields["offset"].default == 11


# what is wrong with a plugin

METRIC = """
from typing import Literal
from trainkit.recipe.sections.metric_spec import MetricSpec

class Near(MetricSpec):
    type: Literal["near"]

    def build(self, classes): ...
"""
TASK = """
from typing import Literal
from trainkit.recipe.sections.task import TaskSpec

class Copy(TaskSpec):
    type: Literal["copy"]
    models = frozenset({"encoder"})

    def build(self, tokenizer): ...
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "import math",
            "import math\nimport absent_module",
            ["rules.py:6: ModuleNotFoundError", "import absent_module"],
        ),
        ("import math", "import math\n1 / 0", ["rules.py:6: ZeroDivisionError: division by zero", "1 / 0"]),
        ("import math", "import math)", ["rules.py:5: SyntaxError", "import math)"]),
        ("import math", "raise SystemExit(3)", ["rules.py:5: SystemExit: 3"]),
        (PLUGIN, "x = 1", ["defines no spec", "OptimizerSpec, ScheduleSpec"]),
        ('    type: Literal["inverse-root"]\n', "", ["defines", "type"]),
        (
            'type: Literal["sign"]',
            'type: Literal["sign", "sigm"]',
            ["SignDescent", "must have one type, and has 'sign', 'sigm'"],
        ),
        (
            'type: Literal["sign"]',
            'type: Literal["muon"]',
            ['"muon" of SignDescent is taken by trainkit', '"lion", "mango", "muon"'],
        ),
        ("def state_bytes", "def bytes", ["SignDescent lacks state_bytes"]),
        ("def rate_after_warmup", "def rate_then", ["InverseRoot lacks rate_after_warmup"]),
        ("def build", "def make", ['the optimizer "sign" lacks an implementation', "define build"]),
        ("momentum: Annotated[float", "momentum: Annotated[Flaot", ["the keys of SignDescent", "Flaot"]),
        (PLUGIN, METRIC, ["Near lacks the class variable predictions", "predictions: ClassVar[frozenset[str]] = "]),
        (PLUGIN, METRIC + '    predictions: frozenset[str] = frozenset({"label"})\n', ["predictions is a key of the"]),
        (PLUGIN, METRIC + '    predictions = {"label"}\n', ["Near.predictions = {'label'} is not a frozenset"]),
        (PLUGIN, TASK, ["Copy lacks the class variable documents", "documents: ClassVar[frozenset[str]] = "]),
    ],
)
def test_a_wrong_plugin_is_an_error_with_its_place_and_the_way_out(
    tmp_path: Path, old: str, new: str, said: list[str]
) -> None:
    assert old in PLUGIN
    plugin = PLUGIN.replace(old, new)
    if old.endswith('["inverse-root"]\n'):  # the only class left has no type
        plugin = plugin[: plugin.index("class SignDescent")] + plugin[plugin.index("class InverseRoot") :]
    error = refusal(place(tmp_path, plugin))
    assert error.where == f"{tmp_path}/tiny.toml:{line_of(TRAINED, 'files =')}" and error.hint
    assert error.problem.startswith("plugins.files.0 = ")
    for part in said:
        assert part in str(error)
    assert "Traceback" not in str(error)


def test_a_plugin_that_does_not_exist_is_reported_with_those_that_do(tmp_path: Path) -> None:
    error = refusal(place(tmp_path, recipe=TRAINED.replace("rules.py", "rule.py")))
    assert "rule.py': the plugin cannot be read: no such file or directory" in error.problem
    assert "rules.py" in error.hint


def test_two_plugins_cannot_take_one_type(tmp_path: Path) -> None:
    path = place(tmp_path, recipe=TRAINED.replace('rules.py"]', 'rules.py", "mine/others.py"]'))
    (tmp_path / "mine" / "others.py").write_text(PLUGIN.replace("SignDescent", "Signs"))
    error = refusal(path)
    assert "plugins.files.1" in error.problem
    assert 'the optimizer type "sign" of Signs is taken by SignDescent in' in error.problem


def test_a_value_of_the_wrong_kind_is_diagnosed(tmp_path: Path) -> None:
    error = refusal(place(tmp_path, recipe=TRAINED.replace('["mine/rules.py"]', '"mine/rules.py"')))
    assert "plugins.files" in str(error) and "write a list" in str(error)


# what is loaded


def test_a_plugin_that_imports_late_keeps_the_light_commands_light(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = place(tmp_path)
    write(tmp_path / "text", "", "one.txt")
    for arguments in (["check", str(path)], ["explain", str(path), "optimizer"]):
        assert not loaded(command(*arguments), tmp_path) & HEAVY
    check(path, [])


def test_nothing_of_plugins_is_loaded_for_a_recipe_that_names_none(tmp_path: Path) -> None:
    code = (
        command("check", str(write(tmp_path, changed()))) + "\nassert 'trainkit.recipe.toml.plugins' not in sys.modules"
    )
    loaded(code, tmp_path)


# training


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = workplace(tmp_path_factory.mktemp("plugins"), TRAINED)
    place(directory)
    done = trainkit(directory, "run", "tiny.toml", "--plain")
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


def test_a_run_trains_with_a_plugin_s_optimizer_and_schedule_and_lists_it(trained: Path) -> None:
    run = trained / "runs" / "tiny"
    steps = losses(run)
    assert len(steps) == 8 and steps[8] < steps[1]
    rates = [event["metrics"]["optimizer/learning_rate"] for event in read(run) if event["type"] == "step"]
    expected = [3e-3 * share for share in (0.5, 1, *(1 / (1 + done / 10) ** 0.5 for done in range(6)))]
    np.testing.assert_allclose(rates, expected, rtol=1e-5)
    (listed,) = [e["message"] for e in read(run) if e["type"] == "log" and "plugin" in e["message"]]
    assert f'{trained}/mine/rules.py adds optimizer "sign", schedule "inverse-root"' in listed


def test_a_resumed_run_ends_bit_for_bit_as_the_uninterrupted_one_and_says_what_was_edited(
    trained: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "again"
    shutil.copytree(trained / "runs" / "tiny", directory)
    whole = arrays(directory, 8)
    done = trainkit(tmp_path, "resume", "again/4", "--plain")
    assert done.returncode == 0 and "rules.py" not in done.stderr, done.stderr
    assert arrays(directory, 8) == whole

    plugin = trained / "mine" / "rules.py"
    plugin.write_text(f"{PLUGIN}\n# a remark\n")
    try:
        edited = trainkit(tmp_path, "resume", "again/4", "--plain")
        again = trainkit(tmp_path, "resume", "again/4", "--plain")
    finally:
        plugin.write_text(PLUGIN)
    assert f"the plugin {plugin} has changed since the run was last started" in edited.stderr
    assert again.returncode == 0 and "has changed" not in again.stderr
    assert arrays(directory, 8) == whole


def test_plan_compiles_the_step_with_a_plugin_here_and_for_supposed_devices(trained: Path) -> None:
    for arguments in ([], ["--devices", "2"]):
        done = trainkit(trained, "plan", "tiny.toml", *arguments)
        assert done.returncode == 0, done.stderr


def test_a_wrong_plugin_ends_a_run_before_it_has_a_directory(tmp_path: Path) -> None:
    path = place(tmp_path, "1 / 0")
    done = trainkit(tmp_path, "run", str(path), "--plain")
    assert done.returncode == 2 and "ZeroDivisionError" in done.stderr and not (tmp_path / "runs").exists()


INHERITING = """
from typing import Literal
from trainkit.recipe.families.gpt2 import Gpt2
from trainkit.recipe.optimizers.adam import AdamW
from trainkit.recipe.spec import Count

class Small(Gpt2):
    type: Literal["small-gpt"]
    layers: Count = 2
    hidden: Count = 32
    heads: Count = 2

class Slow(AdamW):
    type: Literal["slow-adamw"]
    betas: tuple[float, float] = (0.99, 0.999)
"""


def test_a_spec_that_derives_from_one_of_trainkit_s_has_its_code_too(tmp_path: Path) -> None:
    text = changed(
        ('type = "gpt2"\nlayers = 2\nhidden = 32\nheads = 4', 'type = "small-gpt"'),
        ("learning_rate = 1e-3", 'type = "slow-adamw"\nlearning_rate = 1e-3\n[plugins]\nfiles = ["mine/rules.py"]'),
    )
    recipe = load(place(tmp_path, INHERITING, text)).recipe
    assert recipe.model.implementation == "trainkit.models.gpt" and recipe.model.layers == 2
    assert recipe.optimizer.implementation == "trainkit.optim.adamw"
    check(tmp_path / "tiny.toml", [])
