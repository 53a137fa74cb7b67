import torch
from hypothesis import given
from hypothesis import strategies as st

from pairloc.localization.sampling import draw


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 4), st.integers(1, 8))
def test_a_sample_is_of_the_kinds_asked_for_and_without_repetition(seed: int, size: int, fg: int, bg: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    kind = torch.randint(0, 3, (4, size), generator=generator)
    sample = draw(kind == 1, kind == 0, (fg, bg), generator)
    for row in range(4):
        chosen = sample.proposals[row][sample.drawn[row]].tolist()
        shows = sample.foreground[row][sample.drawn[row]].tolist()
        assert len(set(chosen)) == len(chosen)
        assert all(kind[row, c] == (1 if s else 0) for c, s in zip(chosen, shows, strict=True))
        have_fg, have_bg = int((kind[row] == 1).sum()), int((kind[row] == 0).sum())
        drawn_fg = min(fg, have_fg)
        assert sum(shows) == drawn_fg
        assert len(chosen) - sum(shows) == min(have_bg, bg + fg - drawn_fg)


def test_every_proposal_is_drawn_as_often() -> None:
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(2000, 5, dtype=torch.bool)
    sample = draw(mask, ~mask, (2, 1), generator)
    counts = torch.bincount(sample.proposals[sample.drawn], minlength=5)
    assert counts.sum() == 4000
    assert (counts - 800).abs().max() < 120
