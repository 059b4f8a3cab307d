"""The learning rate that `trainkit resume` tells of is the one that training then follows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit.optim import learning_rate
from trainkit.recipe.sections.schedule import Constant, Cosine, LinearDecay, Wsd
from trainkit.recipe.sections.schedule_spec import NEVER, Schedule
from trainkit.rundir.changes import share

WARMUPS = st.integers(0, 12) | st.floats(0, 0.4)
RATIOS = st.floats(0, 1)
SCHEDULES: st.SearchStrategy[Schedule] = st.one_of(
    st.builds(Cosine, warmup=WARMUPS, min_ratio=RATIOS),
    st.builds(LinearDecay, type=st.just("linear"), warmup=WARMUPS, min_ratio=RATIOS),
    st.builds(Constant, type=st.just("constant"), warmup=WARMUPS),
    st.builds(
        Wsd,
        type=st.just("wsd"),
        warmup=WARMUPS,
        decay=st.integers(1, 9) | st.floats(0.01, 0.5),
        shape=st.sampled_from(["1-sqrt", "linear", "cosine"]),
        min_ratio=RATIOS,
    ),
)


@settings(max_examples=150, deadline=None)
@given(
    schedule=SCHEDULES,
    steps=st.integers(1, 60),
    step=st.integers(0, 70),
    ordered=st.just(NEVER) | st.integers(13, 40),
)
def test_the_rate_that_is_reported_is_the_rate_that_is_trained_with(
    schedule: Schedule, steps: int, step: int, ordered: int
) -> None:
    trained = float(learning_rate(schedule, peak=1.0, steps=steps)(step, ordered))
    assert share(schedule, steps, step, decay_start=ordered) == pytest.approx(trained, abs=2e-6)
