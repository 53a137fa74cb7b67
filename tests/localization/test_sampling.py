import torch
from hypothesis import given
from hypothesis import strategies as st

from pairloc.localization.sampling import PairDrawer, PositiveBags, draw


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 4), st.integers(1, 8))
def test_a_sample_has_the_requested_kinds(seed: int, size: int, fg: int, bg: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    kind = torch.randint(0, 3, (4, size), generator=generator)
    sample = draw(kind == 1, kind == 0, (fg, bg), generator)
    for row in range(4):
        chosen = sample.proposals[row][sample.drawn[row]].tolist()
        shows = sample.foreground[row][sample.drawn[row]].tolist()
        assert all(kind[row, c] == (1 if s else 0) for c, s in zip(chosen, shows, strict=True))
        have_fg, have_bg = int((kind[row] == 1).sum()), int((kind[row] == 0).sum())
        foreground = [c for c, s in zip(chosen, shows, strict=True) if s]
        background = [c for c, s in zip(chosen, shows, strict=True) if not s]
        assert len(foreground) == (fg if have_fg else 0)  # the same weight whatever the bag has
        assert len(set(foreground)) == min(fg, have_fg)  # repeated only where there are too few
        assert len(set(background)) == len(background) == min(have_bg, bg if have_fg else fg + bg)


def test_proposals_are_drawn_uniformly() -> None:
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(2000, 5, dtype=torch.bool)
    sample = draw(mask, ~mask, (2, 1), generator)
    counts = torch.bincount(sample.proposals[sample.drawn], minlength=5)
    assert counts.sum() == 4000
    assert (counts - 800).abs().max() < 120


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 4), st.floats(0.2, 0.8))
def test_pairs_share_a_class_or_the_second_bag_lacks_it(seed: int, bags: int, classes: int, same: float) -> None:
    """A bag is never paired with itself; entries without a possible partner are skipped."""
    has = torch.rand(bags, classes, generator=torch.Generator().manual_seed(seed)) < 0.6
    label, bag = torch.nonzero(has.T, as_tuple=True)
    if not len(bag):
        return
    positives, others = PositiveBags.of(bag, label, classes), torch.arange(bags)
    pairs = PairDrawer(positives, others, has, same, seed).draw(50)
    for first, second, other in zip(pairs.first.tolist(), pairs.second.tolist(), pairs.other.tolist(), strict=True):
        assert (second < 0) != (other < 0)
        if second >= 0:
            assert label[second] == label[first]
            assert bag[second] != bag[first]
        else:
            assert not has[others[other], label[first]]
    alone = [c for c in range(classes) if int(has[:, c].sum()) == 1 and bool(has[:, c].all())]
    assert not set(label[pairs.first].tolist()) & set(alone)


def test_the_requested_fraction_of_pairs_shares_a_class() -> None:
    has = torch.eye(4, dtype=torch.bool).repeat_interleave(25, dim=0)
    label, bag = torch.nonzero(has.T, as_tuple=True)
    pairs = PairDrawer(PositiveBags.of(bag, label, 4), torch.arange(100), has, 0.3, 0).draw(20_000)
    assert abs(float((pairs.second >= 0).double().mean()) - 0.3) < 0.02
    counts = torch.bincount(pairs.first, minlength=100)
    assert int(counts.min()) > 120
    partners = torch.bincount(pairs.second[pairs.second >= 0], minlength=100)
    assert int(partners.min()) > 20
