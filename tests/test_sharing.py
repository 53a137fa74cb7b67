from hypothesis import given
from hypothesis import strategies as st

from pairloc.sharing import Share


@given(st.lists(st.floats(0, 100), max_size=40), st.integers(1, 8))
def test_work_is_shared_out_evenly(costs: list[float], world: int) -> None:
    """Largest first to the least loaded: no process has more than 4/3 of the least possible, which is bounded below."""
    owner = Share(world=world).owners(costs)
    assert len(owner) == len(costs)
    load = [sum(c for c, o in zip(costs, owner, strict=True) if o == rank) for rank in range(world)]
    ordered = sorted(costs, reverse=True)
    least = max([sum(costs) / world, *ordered[:1]])
    if len(ordered) > world:
        least = max(least, ordered[world - 1] + ordered[world])
    assert max(load) <= 4 / 3 * least + 1e-6
