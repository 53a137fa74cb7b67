"""LSDA and Tang et al.: adapted classifiers, similarity of classes, and no transfer or pair scores in them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import found_fraction, plain_transfer, planted_store, planted_target, planted_truth
from pairloc.errors import InputError
from pairloc.localization.baselines.half_steps import HalfSteps
from pairloc.localization.baselines.lsda import adapted, lsda, selected_by, target_classifiers
from pairloc.localization.baselines.source_classifiers import SourceClassifiers, image_classifiers, whole_images
from pairloc.localization.baselines.tang import tang, visual_similarity
from pairloc.localization.engine import learn_classifiers, learn_source, localize_target
from pairloc.localization.learned import Learned
from pairloc.settings import LsdaSettings, Settings, TangSettings

METHODS: list[tuple[str, Settings]] = [("lsda", LsdaSettings(neighbours=2)), ("tang", TangSettings(neighbours=2))]


def taught(tmp_path: Path) -> Learned:
    """Learn from a planted source of four classes."""
    store, shown = planted_store(tmp_path / "source", classes=4, bags=40)
    truth = planted_truth(store, shown)
    return learn_classifiers(store, truth, learn_source(store, truth, plain_transfer(steps=5)))


def test_a_box_classifier_tells_the_objects_of_its_class(tmp_path: Path) -> None:
    store, shown = planted_store(tmp_path / "s", classes=3, bags=30)
    truth = planted_truth(store, shown)
    learned = learn_classifiers(store, truth, learn_source(store, truth, plain_transfer(steps=5)))
    classifiers = learned.classifiers
    assert classifiers is not None
    assert classifiers.classes == store.dataset.classes
    for index, tags in enumerate(store.dataset.tags):
        features = learned.scores.reduction(torch.from_numpy(np.array(store.bag(index).transfer)))
        weights = classifiers.box[tags[0]]
        assert int((features @ weights[:-1]).argmax()) == shown[index]


def test_adaptation_is_the_formula_of_lsda() -> None:
    generator = torch.Generator().manual_seed(0)
    image, source_image, source_box = (torch.randn(n, 4, generator=generator) for n in (2, 3, 3))
    weights = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    result = adapted(image, SourceClassifiers(("a", "b", "c"), source_image, source_box), weights)
    change = source_box - source_image
    assert torch.allclose(result[0], image[0] + (change[0] + change[1]) / 2)
    assert torch.allclose(result[1], image[1] + change[2])


def test_the_whole_image_is_the_proposal_nearest_to_it(tmp_path: Path) -> None:
    target, _ = planted_target(tmp_path / "s", bags=6)
    rows = torch.arange(6)
    nearest = target.bags.frame_overlap(rows).argmax(dim=1)
    features = target.bags.features(rows)
    assert torch.equal(whole_images(target.bags, rows), features[rows, nearest])


def test_an_image_classifier_tells_images_that_show_a_class(tmp_path: Path) -> None:
    target, _ = planted_target(tmp_path / "s", classes=2, bags=20)
    rows = torch.arange(20)
    frames = whole_images(target.bags, rows)
    shows = frames[:, :2] > frames[:, :2].median(dim=0).values  # a property that is linear in the features
    weights = image_classifiers(target.bags, shows, rows)
    predicted = (frames @ weights[:, :-1].T + weights[:, -1]) > 0
    assert (predicted == shows).double().mean() > 0.9


@pytest.mark.parametrize(("method", "settings"), METHODS)
def test_transfer_and_pair_scores_do_not_leak_in(tmp_path: Path, method: str, settings: Settings) -> None:
    learned = taught(tmp_path)
    store, _ = planted_store(tmp_path / "target", classes=2, bags=16, seed=1)
    before = localize_target(store, store.dataset, learned, settings, method=method).boxes
    with torch.no_grad():
        for parameter in learned.scores.parameters():
            parameter.fill_(torch.nan)
    after = localize_target(store, store.dataset, learned, settings, method=method).boxes
    assert np.array_equal(before.boxes, after.boxes)
    assert np.array_equal(before.score, after.score)
    assert ((before.score > 0) & (before.score <= 1)).all()


def test_the_change_of_source_classes_finds_objects(tmp_path: Path) -> None:
    """New classes whose objects look like those of source classes are found; image classifiers alone do not."""
    source, source_shown = planted_store(tmp_path / "source", classes=3, bags=60, seed=5)
    truth = planted_truth(source, source_shown)
    learned = learn_classifiers(source, truth, learn_source(source, truth, plain_transfer(steps=5)))
    target, shown = planted_target(tmp_path / "target", classes=3, bags=60, seed=5)
    classifiers = learned.classifiers
    assert classifiers is not None
    outcome = lsda(target, classifiers, LsdaSettings(neighbours=3))
    without = SourceClassifiers(classifiers.classes, classifiers.image, classifiers.image)
    plain = lsda(target, without, LsdaSettings(neighbours=3))
    found, found_without = (found_fraction(target, shown, o.state.selection) for o in (outcome, plain))
    assert found > found_without + 0.2


@pytest.mark.parametrize("neighbours", [1, 2])
def test_the_nearest_source_classes_are_those_whose_image_classifier_is_alike(tmp_path: Path, neighbours: int) -> None:
    target, _ = planted_target(tmp_path / "s", classes=2, bags=20)
    image = target_classifiers(target)
    generator = torch.Generator().manual_seed(0)
    offset = torch.randn(image.shape[1], generator=generator)
    source = torch.stack([image[0] + 9 * offset, image[0] + 0.1 * offset, image[0] - 0.2 * offset, image[1] + offset])
    box = source + torch.randn(4, image.shape[1], generator=generator)
    classifiers = SourceClassifiers(("far", "nearest", "second", "other"), source, box)
    expected = image[0] + (box - source)[1 : 1 + neighbours].mean(dim=0)
    bags = target.positives[0]
    scores = lsda(target, classifiers, LsdaSettings(neighbours=neighbours)).scores[0]
    torch.testing.assert_close(scores, target.bags.features(bags) @ expected[:-1] + expected[-1])


def test_visual_similarity_is_a_distribution_over_source_classes(tmp_path: Path) -> None:
    learned = taught(tmp_path)
    target, _ = planted_target(tmp_path / "target", classes=2, bags=8, seed=3)
    assert learned.classifiers is not None
    similarity = visual_similarity(target, learned.classifiers)
    assert similarity.shape == (2, 4)
    assert torch.allclose(similarity.sum(dim=1), torch.ones(2))


def test_a_semantic_table_decides_which_source_class_counts(tmp_path: Path) -> None:
    learned = taught(tmp_path)
    classifiers = learned.classifiers
    assert classifiers is not None
    target, _ = planted_target(tmp_path / "target", classes=2, bags=8, seed=3)
    table = tmp_path / "table.csv"
    table.write_text("target,source,similarity\nclass 0,class 2,1\nclass 1,class 3,0.5\n")
    outcome = tang(target, classifiers, TangSettings(visual=0.0, neighbours=1, semantic_table=table))
    weights = torch.zeros(2, 4)
    weights[0, 2] = weights[1, 3] = 1.0
    image = image_classifiers(target.bags, target.tagged, torch.arange(8))
    expected = selected_by(target, adapted(image, classifiers, weights), HalfSteps())
    assert all(map(torch.equal, outcome.scores, expected.scores))


def test_classifiers_survive_saving(tmp_path: Path) -> None:
    learned = taught(tmp_path)
    assert learned.classifiers is not None
    learned.classifiers.save(tmp_path / "c")
    again = SourceClassifiers.load(tmp_path / "c")
    assert again.classes == learned.classifiers.classes
    assert torch.equal(again.box, learned.classifiers.box)
    (tmp_path / "c" / "classifiers.json").write_text('{"classes": ["a"]}')
    with pytest.raises(InputError, match="does not hold classifiers of 1 classes"):
        SourceClassifiers.load(tmp_path / "c")
    (tmp_path / "c" / "classifiers.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match="cannot be read as classifiers"):
        SourceClassifiers.load(tmp_path / "c")


@pytest.mark.parametrize(("method", "settings"), METHODS)
def test_weights_without_classifiers_are_refused(tmp_path: Path, method: str, settings: Settings) -> None:
    store, shown = planted_store(tmp_path / "s", bags=12)
    learned = learn_source(store, planted_truth(store, shown), plain_transfer(steps=2))
    with pytest.raises(InputError, match=f"{method} needs classifiers of the source classes"):
        localize_target(store, store.dataset, learned, settings, method=method)


@pytest.mark.parametrize("classes", [1, 2])
def test_a_source_with_few_classes_works(tmp_path: Path, classes: int) -> None:
    store, shown = planted_store(tmp_path / "source", classes=classes, bags=12)
    truth = planted_truth(store, shown)
    learned = learn_classifiers(store, truth, learn_source(store, truth, plain_transfer(steps=2)))
    target, _ = planted_store(tmp_path / "target", classes=2, bags=8, seed=1)
    for method, settings in METHODS:
        found = localize_target(target, target.dataset, learned, settings, method=method).boxes
        assert len(found) == 8
        assert np.isfinite(found.score).all()
