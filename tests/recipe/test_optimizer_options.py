"""Options of [optimizer] that exclude each other are refused before the first step, with their key and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_recipe import changed, write

from trainkit.errors import TrainkitError
from trainkit.recipe.toml.load import load

RATE = "learning_rate = 1e-3"
GROUP = '[[optimizer.groups]]\nmatch = "*bias"\n'


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (f'type = "adam"\n{RATE}\nmomentum = false\nnesterov = true', "optimizer.nesterov = true needs"),
        (f'type = "adam"\n{RATE}\npreconditioner = false\namsgrad = true', "optimizer.amsgrad = true needs"),
        (f'type = "sgd"\n{RATE}\nnesterov = true', "optimizer.nesterov = true needs a momentum above 0"),
        (f'type = "sgd"\n{RATE}\ndampening = 0.5', "optimizer.dampening needs optimizer.momentum above 0"),
        (f'type = "lars"\n{RATE}\nmomentum = 0.0\nnesterov = true', "needs optimizer.momentum above 0"),
        (f'type = "schedule-free"\n{RATE}\nbetas = [0.0, 0.9]', "optimizer.betas.0 must be above 0"),
        ('type = "prodigy"\ndecay_type = "coupled"', 'optimizer.decay_type = "coupled": "prodigy"'),
        (f'{RATE}\n{GROUP}optimizer = {{ type = "prodigy" }}', "optimizer.groups.0.optimizer: "),
        (
            f'type = "prodigy"\n{GROUP}learning_rate_factor = 0.5',
            "optimizer.groups.0: learning_rate_factor = 0.5 cannot",
        ),
    ],
)
def test_options_that_exclude_each_other_are_refused_at_their_line(tmp_path: Path, options: str, problem: str) -> None:
    with pytest.raises(TrainkitError) as found:
        load(write(tmp_path, changed((RATE, options))))
    file, _, line = found.value.where.rpartition(":")
    assert problem in found.value.problem and file.endswith("sample.toml")
    assert 29 <= int(line) <= 28 + len(options.splitlines()) + 1


def test_a_wrong_type_beside_a_group_whose_rule_has_a_rule_inside_is_explained(tmp_path: Path) -> None:
    rule = '{ type = "muon", learning_rate = 0.1, adamw = { learning_rate = 0.1 } }'
    options = f'type = "sgd"\n{RATE}\n{GROUP}optimizer = {rule}\n[[optimizer.wrappers]]\ntype = "ofset"'
    with pytest.raises(TrainkitError) as found:
        load(write(tmp_path, changed((RATE, options))))
    assert 'optimizer.wrappers.0.type = "ofset"' in found.value.problem and '"offset"' in found.value.hint
