from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import plain, planted_store, planted_truth, slow_cross_entropy
from pairloc.bags.geometry import GEOMETRY
from pairloc.bags.tensors import Bags
from pairloc.boxes import iou
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.errors import InputError
from pairloc.localization.functions import TransferScores
from pairloc.localization.transfer import (
    BACKGROUND,
    NEITHER,
    Labels,
    label_proposals,
    learn_transfer,
    source_drawer,
    source_loss,
)
from pairloc.settings import TransferSettings

SETTINGS = TransferSettings.model_validate(
    {
        "foreground_iou": 0.6,
        "background_iou": 0.4,
        "features": plain("transfer"),
        "unary": {"fit": "sampled"},
        "pairs": {"kind": "relation"},
        "training": {"steps": 150, "pairs": 16, "lr": 0.01},
    }
)


def changed(group: str, **values: object) -> TransferSettings:
    """Return SETTINGS with other values in a group."""
    content = SETTINGS.model_dump()
    return TransferSettings.model_validate(content | {group: content[group] | values})


def test_labels_equal_a_slow_loop(tmp_path: Path) -> None:
    store, shown = planted_store(tmp_path / "s", proposals=20)
    bags = Bags(store, plain("transfer"))
    _, truth = planted_truth(store, shown)
    crowd = np.arange(bags.count) % 5 == 0
    truth = GroundTruth(truth.image, truth.label, truth.boxes, crowd)
    labels = label_proposals(bags, store.dataset, truth, SETTINGS)
    for i in range(bags.count):
        overlap = iou(bags.boxes[i].double().numpy(), truth.boxes[i][None])[:, 0]
        for value, found in zip(overlap.tolist(), labels.label[i].tolist(), strict=True):
            if value >= 0.6 and not crowd[i]:
                assert found == truth.label[i]
            elif value < 0.4:
                assert found == BACKGROUND
            else:
                assert found == NEITHER


@torch.no_grad()
def slow_source_loss(scores: TransferScores, bags: Bags, label: list[list[int]]) -> tuple[float, float]:
    """L^P and L^U of the paper (eq. source_loss), one pair and one proposal after the other.

    The paper sums over everything; here a term counts as often as sampling draws it. A bag is drawn for a class that it
    shows: foreground and background proposals are those that show this class and the others. Its partner shows the
    class too, with the probability `same_class`, or lacks it and is drawn for a class of its own.
    """
    features = bags.features(torch.arange(bags.count))
    unary = scores.unary.of_class(features).tolist()
    relation = [[scores.relation(one[None], two[None])[0, :, :, 0].tolist() for two in features] for one in features]
    drawn = [(bag, shown) for bag, row in enumerate(label) for shown in sorted({y for y in row if y >= 0})]
    share, same = 0.3, scores.settings.same_class  # 3 of 10 sampled proposals are foreground

    def weights(bag: int, shown: int) -> dict[int, float]:
        """How often every proposal of a bag is drawn."""
        foreground = [e for e, y in enumerate(label[bag]) if y == shown]
        background = [e for e, y in enumerate(label[bag]) if y not in (shown, NEITHER)]
        return dict.fromkeys(foreground, share / len(foreground)) | dict.fromkeys(
            background, (1 - share) / len(background)
        )

    pair_loss = unary_loss = 0.0
    for first, shown in drawn:
        mates = [(bag, other) for bag, other in drawn if other == shown and bag != first]
        strangers = [(bag, other) for bag, other in drawn if shown not in label[bag]]
        partners = [(mate, same / len(mates)) for mate in mates]
        partners += [(stranger, (1 - same) / len(strangers)) for stranger in strangers]
        for (second, other), often in partners:
            left, right = weights(first, shown), weights(second, other)
            often /= len(drawn)
            for e, e_often in left.items():
                for f, f_often in right.items():
                    related = label[first][e] == label[second][f] != BACKGROUND
                    pair_loss += often * e_often * f_often * slow_cross_entropy(relation[first][second][e][f], related)
            for bag, proposals in ((first, left), (second, right)):
                for e, e_often in proposals.items():
                    is_object = label[bag][e] != BACKGROUND
                    unary_loss += often / 2 * e_often * slow_cross_entropy(unary[bag][e], is_object)
    return pair_loss, unary_loss


@torch.no_grad()
@pytest.mark.parametrize("fit", ["exact", "sampled"])
def test_the_sampled_loss_is_the_paper_s_loss_on_average(tmp_path: Path, fit: str) -> None:
    """An exactly fitted unary score leaves L^P alone to sampling."""
    store, _ = planted_store(tmp_path / "s", bags=9, proposals=14, d=8)
    bags = Bags(store, plain("transfer"))
    generator = torch.Generator().manual_seed(0)
    label = torch.tensor([BACKGROUND, BACKGROUND, NEITHER, 0, 1, 2])[
        torch.randint(6, (bags.count, bags.size), generator=generator)
    ]
    for bag in range(bags.count):  # every bag lacks a class
        label[bag, :8] = BACKGROUND
        label[bag, label[bag] == bag % 3] = NEITHER
    settings = changed("unary", fit=fit)
    torch.manual_seed(0)
    scores = TransferScores(bags.reduction, settings)
    scores.unary.linear.weight.normal_()
    scores.relation.score.weight.normal_(std=2.0)
    pair_loss, unary_loss = slow_source_loss(scores, bags, label.tolist())
    drawer = source_drawer(label, torch.arange(bags.count), settings.same_class, seed=0)
    drawn = [float(source_loss(scores, bags, label, drawer, 400)) for _ in range(40)]
    expected = pair_loss + (unary_loss if fit == "sampled" else 0.0)
    assert sum(drawn) / len(drawn) == pytest.approx(expected, rel=0.01)


def test_learned_scores_separate_objects_and_classes(tmp_path: Path) -> None:
    """Unary scores find objects; pair scores separate pairs of one class from pairs of two."""
    store, shown = planted_store(tmp_path / "s", classes=6, bags=120, d=24, noise=0.2)
    bags = Bags(store, plain("transfer"))
    labels = label_proposals(bags, *planted_truth(store, shown), SETTINGS)
    scores, curve = learn_transfer(bags, labels, SETTINGS)
    assert curve[-1]["held-out loss"] < 0.7 * curve[0]["held-out loss"]
    features = bags.features(torch.arange(bags.count))
    unary = scores.unary.of_class(features)
    assert float((unary.argmax(dim=1) == torch.from_numpy(shown)).double().mean()) > 0.8
    objects = features[torch.arange(bags.count), torch.from_numpy(shown)]
    with torch.no_grad():
        pair = scores.relation(objects[None], objects[None])[0, :, :, 0]
    label = torch.arange(bags.count) % 6
    same = label[:, None] == label
    assert float(pair[same].median()) > float(pair[~same].quantile(0.95))


def test_saved_scores_are_loaded_unchanged(tmp_path: Path) -> None:
    store, shown = planted_store(tmp_path / "s")
    settings = changed("features", dimensions=5)
    bags = Bags(store, settings.features)
    labels = label_proposals(bags, *planted_truth(store, shown), SETTINGS)
    scores, _ = learn_transfer(
        bags, labels, changed("training", steps=5).model_copy(update={"features": settings.features})
    )
    scores.save(tmp_path / "t")
    again = TransferScores.load(tmp_path / "t")
    features = bags.features(torch.arange(4))
    torch.testing.assert_close(again.unary(features), scores.unary(features))
    torch.testing.assert_close(again.relation(features, features), scores.relation(features, features))
    (tmp_path / "t" / "transfer.safetensors").write_bytes(b"x")
    with pytest.raises(InputError, match="does not hold transfer scores"):
        TransferScores.load(tmp_path / "t")


def test_a_loss_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    store, shown = planted_store(tmp_path / "s")
    bags = Bags(store, plain("transfer"))
    labels = label_proposals(bags, *planted_truth(store, shown), SETTINGS)
    assert bags._cached is not None
    bags._cached[:, :, 0] = torch.nan
    with pytest.raises(InputError, match=r"not finite at step 1; lower training\.lr"):
        learn_transfer(bags, labels, SETTINGS)


def test_a_source_without_objects_is_refused(tmp_path: Path) -> None:
    store, _ = planted_store(tmp_path / "s")
    bags = Bags(store, plain("transfer"))
    with pytest.raises(InputError, match="fewer than two images"):
        learn_transfer(bags, Labels.of(torch.full((bags.count, bags.size), BACKGROUND)), SETTINGS)


@pytest.mark.parametrize("fit", ["sampled", "exact"])
@pytest.mark.parametrize("pairs", ["relation", "cosine"])
def test_every_kind_of_score_separates_objects_from_background(tmp_path: Path, fit: str, pairs: str) -> None:
    store, shown = planted_store(tmp_path / "s", classes=6, bags=60, d=24, noise=0.2)
    bags = Bags(store, plain("transfer"))
    settings = TransferSettings.model_validate(
        SETTINGS.model_dump() | {"unary": {"fit": fit}, "pairs": {"kind": pairs}, "training": {"steps": 60, "lr": 0.01}}
    )
    labels = label_proposals(bags, *planted_truth(store, shown), settings)
    scores, _ = learn_transfer(bags, labels, settings)
    unary = scores.unary.of_class(bags.features(torch.arange(bags.count)))
    assert float((unary.argmax(dim=1) == torch.from_numpy(shown)).double().mean()) > 0.8


def test_geometry_is_part_of_the_features(tmp_path: Path) -> None:
    store, shown = planted_store(tmp_path / "s")
    settings = changed("features", geometry=True).model_copy(update={"training": changed("training", steps=5).training})
    bags = Bags(store, settings.features)
    scores, _ = learn_transfer(bags, label_proposals(bags, *planted_truth(store, shown), settings), settings)
    assert scores.relation.d == bags.d == 12 + GEOMETRY
    scores.save(tmp_path / "t")
    assert TransferScores.load(tmp_path / "t").settings == settings


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("transfer.json", "[]", "transfer.json"),
        ("transfer.json", '{"images": 1}', "images: Input should be greater than or equal to 2"),
        ("transfer.json", '{"image": 5}', "image: Extra inputs"),
        ("transfer.json", '{"pairs": {"kind": "magic"}}', "does not hold transfer scores"),
    ],
)
def test_invalid_settings_are_reported_in_one_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    store, _ = planted_store(tmp_path / "s")
    bags = Bags(store, plain("transfer"))
    TransferScores(bags.reduction, SETTINGS).save(tmp_path / "t")
    (tmp_path / "t" / name).write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        TransferScores.load(tmp_path / "t")
    assert len(str(caught.value).splitlines()) == 1
