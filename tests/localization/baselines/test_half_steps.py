"""Half steps of a baseline: parts are summed, and the order is that of the rounds."""

import pytest

from pairloc.localization.baselines.half_steps import HalfSteps


def test_nothing_recorded_is_no_history() -> None:
    assert HalfSteps().history() == ()


def test_parts_of_a_half_step_are_summed_in_the_order_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("pairloc.localization.baselines.half_steps.time.perf_counter", lambda: next(clock))
    steps = HalfSteps()
    for changed in (4, 6):  # two classes, one after the other
        with steps.relocalization(0):
            pass
        steps.count(0, changed)
        with steps.retraining(1):
            next(clock)
        with steps.relocalization(1):
            pass
        steps.count(1, 1)
    found = [(step.round, step.step, step.changed, step.seconds) for step in steps.history()]
    assert found == [(0, "re-localize", 10, 2), (1, "re-train", 0, 4), (1, "re-localize", 2, 2)]
