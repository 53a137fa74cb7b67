"""The combination: a conditional logit within each bag."""

from pathlib import Path

import pytest
import torch

from pairloc.errors import InputError
from pairloc.localization import combination
from pairloc.localization.combination import Combination, Example, Weighing, contributions, fit_weighing

NAMES = ("a", "b", "c")


def drawn(weights: torch.Tensor, bags: int = 4000, seed: int = 0) -> Example:
    """Bags of six proposals, of which one, drawn by the model with these weights, fits the object."""
    generator = torch.Generator().manual_seed(seed)
    terms = torch.randn(bags, 6, len(weights), generator=generator)
    right = torch.multinomial(torch.softmax(terms @ weights, dim=1), 1, generator=generator)
    return Example(terms, torch.zeros(bags, 6).scatter(1, right, 0.9))


def test_fitting_recovers_the_weights_that_drew_the_bags() -> None:
    weights = torch.tensor([1.0, -0.5, 0.0])
    fitted = fit_weighing([drawn(weights)], NAMES)
    assert fitted is not None
    found = torch.tensor([weight / std for _, std, weight in fitted.terms.values()])
    torch.testing.assert_close(found, weights, atol=0.08, rtol=0)


def test_fitting_recovers_products_that_drew_the_bags(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weight of "a" rises with "b"; a fit without products cannot say so."""
    monkeypatch.setattr(combination, "_DECAY", 1e-5)
    generator = torch.Generator().manual_seed(3)
    terms = torch.randn(6000, 6, 3, generator=generator)
    scores = terms[..., 0] + 0.8 * terms[..., 0] * terms[..., 1]
    right = torch.multinomial(torch.softmax(scores, dim=1), 1, generator=generator)
    example = Example(terms, torch.zeros(6000, 6).scatter(1, right, 0.9))
    fitted, plain = (fit_weighing([example], NAMES, products=products) for products in (True, False))
    assert fitted is not None
    assert plain is not None
    assert not plain.products
    assert fitted.products[1][0] == pytest.approx(0.8, abs=0.12)
    others = [fitted.products[i][j] for i in range(3) for j in range(i + 1) if (i, j) != (1, 0)]
    assert others == pytest.approx([0.0] * 5, abs=0.08)
    score = contributions(fitted, NAMES, terms).sum(dim=2)
    assert float(torch.corrcoef(torch.stack([score.flatten(), scores.flatten()]))[0, 1]) > 0.98


def test_contributions_sum_to_the_quadratic_form_whatever_terms_are_there() -> None:
    generator = torch.Generator().manual_seed(0)
    triangle = tuple(tuple(torch.randn(i + 1, generator=generator).tolist()) for i in range(3))
    weighing = Weighing(terms=dict.fromkeys(NAMES, (0.1, 2.0, 0.5)), products=triangle)
    terms = torch.randn(4, 5, 4, generator=generator)
    names = ("c", "x", "a", "b")  # another order, and a term that has no weight
    parts = contributions(weighing, names, terms)
    z = {name: (terms[..., i] - 0.1) / 2.0 for i, name in enumerate(names)}
    expected = sum(0.5 * z[name] for name in NAMES) + sum(
        triangle[i][j] * z[NAMES[i]] * z[NAMES[j]] for i in range(3) for j in range(i + 1)
    )
    torch.testing.assert_close(parts.sum(dim=2), expected)
    assert bool((parts[..., 1] == 0).all())
    with pytest.raises(ValueError, match="triangle"):
        Weighing(terms=dict.fromkeys(NAMES, (0.0, 1.0, 0.5)), products=((1.0,), (1.0,)))


def test_every_class_counts_the_same_whatever_its_size() -> None:
    one, other = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0])
    small, large = drawn(one, 1000), drawn(other, 8000, seed=1)
    fitted = fit_weighing([small, large], NAMES)
    assert fitted is not None
    first, second, _ = (weight for _, _, weight in fitted.terms.values())
    assert first == pytest.approx(second, abs=0.06)


def test_padding_and_bags_without_a_right_proposal_do_not_matter() -> None:
    example = drawn(torch.tensor([1.0, -0.5, 0.0]), 500)
    padded = Example(
        torch.cat([example.terms, torch.full((500, 2, 3), 7.0)], dim=1),
        torch.cat([example.overlap, torch.full((500, 2), -1.0)], dim=1),
    )
    plain, with_padding = fit_weighing([example], NAMES), fit_weighing([padded], NAMES)
    assert plain is not None
    assert with_padding is not None
    for name in NAMES:
        assert plain.terms[name] == pytest.approx(with_padding.terms[name], rel=1e-3, abs=1e-4)
    assert fit_weighing([Example(example.terms, torch.zeros_like(example.overlap))], NAMES) is None


def test_a_missing_term_counts_as_its_mean() -> None:
    weighing = Weighing(terms={"a": (2.0, 1.0, 3.0), "b": (0.0, 2.0, 1.0)})
    terms = torch.tensor([[[torch.nan, 4.0], [2.0, 4.0], [3.0, 0.0]]])
    torch.testing.assert_close(
        contributions(weighing, ("a", "b"), terms), torch.tensor([[[0.0, 2.0], [0.0, 2.0], [3.0, 0.0]]])
    )


def test_the_weighing_of_the_most_available_terms_is_used() -> None:
    all_terms, fewer = (Weighing(terms=dict.fromkeys(names, (0.0, 1.0, 1.0))) for names in (NAMES, NAMES[:2]))
    combination = Combination(learned_on="", weighings=(fewer, all_terms))
    assert combination.weighing(("a", "b", "c", "d")) is all_terms
    assert combination.weighing(("b", "a", "d")) is fewer
    assert combination.weighing(("a", "c")) is None


def test_a_saved_combination_is_loaded_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    assert Combination.load(tmp_path) is None
    combination = Combination(learned_on="x", weighings=(Weighing(terms={"a": (0.25, 2.0, -1.5)}),))
    combination.save(tmp_path)
    assert Combination.load(tmp_path) == combination
    file = tmp_path / "combination.json"
    for damage in ("[]", file.read_text().replace("2.0", "-2.0"), file.read_text().replace("-1.5", "NaN"), "{"):
        file.write_text(damage)
        with pytest.raises(InputError, match="combination"):
            Combination.load(tmp_path)


def test_a_term_is_weighed_if_any_weighing_has_it() -> None:
    one, other = (Weighing(terms={name: (0.0, 1.0, 1.0)}) for name in "ab")
    combination = Combination(learned_on="", weighings=(one, other))
    assert [combination.weighs(name) for name in NAMES] == [True, True, False]
