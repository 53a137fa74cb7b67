"""Knowledge transfer (paper, section 4.2): class-generic unary and pair scores, learned on annotated boxes."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pairloc.bags.tensors import Bags
from pairloc.boxes import Ints, iou
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.errors import InputError
from pairloc.localization.descent import Curve, descend
from pairloc.localization.functions import TransferScores
from pairloc.localization.logistic import fit_logistic
from pairloc.localization.losses import mean_loss
from pairloc.localization.sampling import PairDrawer, PositiveBags, Sample, draw
from pairloc.settings import TransferSettings

BACKGROUND, NEITHER = -1, -2
_LABELLED_BAGS = 512  # bags that are labelled at a time
_HELD_OUT_PAIRS = 256  # pairs of bags used to measure the held-out loss


class NoObjectsError(InputError):
    """Raised if the proposals of a source overlap too few annotated objects."""


@dataclass(frozen=True)
class Labels:
    """The labels of the source's proposals."""

    label: Tensor  # (N, B) class, BACKGROUND, or NEITHER (in between, overlaps an ignored box, or padding)
    overlap: Tensor  # (N, B) highest IoU with an annotated box

    @classmethod
    def of(cls, label: Tensor) -> "Labels":
        """Build labels (N, B) of proposals that fit an object perfectly or not at all."""
        return cls(label, (label >= 0).float())


def label_proposals(bags: Bags, dataset: Dataset, truth: GroundTruth, settings: TransferSettings) -> Labels:
    """Label every proposal of the source by its IoU with the annotated boxes of its image.

    Raises an InputError if the annotations lack the image of a bag.
    """
    images = dataset.indices_of(bags.store.dataset.subset(bags.indices))
    for row, image in enumerate(images):
        if image is None:
            raise InputError(
                f"{bags.store.path}: the image of bag {row} is not in the annotations; extract the bags again"
            )
    order = np.argsort(truth.image, kind="stable")
    starts = np.searchsorted(truth.image[order], np.arange(len(dataset) + 1))
    annotated = [order[starts[image] : starts[image + 1]] for image in images if image is not None]
    label, overlap = torch.full((bags.count, bags.size), NEITHER), torch.zeros(bags.count, bags.size)
    if not len(truth):
        truth = GroundTruth(  # one box without area, which no proposal overlaps
            np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros((1, 4)), np.zeros(1, np.bool_)
        )
    for start in range(0, bags.count, _LABELLED_BAGS):
        rows = slice(start, min(start + _LABELLED_BAGS, bags.count))
        label[rows], overlap[rows] = _label_batch(bags.boxes[rows], annotated[rows], truth, settings)
    return Labels(label.masked_fill(~bags.valid.cpu(), NEITHER).to(bags.device), overlap.to(bags.device))


def _label_batch(
    boxes: Tensor, annotated: list[Ints], truth: GroundTruth, settings: TransferSettings
) -> tuple[Tensor, Tensor]:
    """Label the proposals (n, B, 4) of n bags, given the indices of the annotated boxes of each: (n, B), (n, B)."""
    most = max(1, *(len(indices) for indices in annotated))  # G
    index = torch.full((len(annotated), most), -1)
    for row, indices in enumerate(annotated):
        index[row, : len(indices)] = torch.from_numpy(indices)
    exists = index >= 0  # (n, G)
    true_boxes, ignored = torch.from_numpy(truth.boxes)[index], torch.from_numpy(truth.ignored)[index] & exists
    overlap = iou(boxes.double(), true_boxes.to(boxes.device)).cpu() * exists[:, None]  # (n, B, G)
    best, nearest = overlap.masked_fill(ignored[:, None], 0.0).max(dim=2)
    crowd = (overlap * ignored[:, None]).amax(dim=2)
    background = (best < settings.background_iou) & (crowd < settings.background_iou)
    shown = torch.from_numpy(truth.label)[index].gather(1, nearest)
    foreground = (best >= settings.foreground_iou) & exists.any(dim=1, keepdim=True)
    return torch.where(foreground, shown, torch.where(background, BACKGROUND, NEITHER)), best


def source_drawer(label: Tensor, bags: Tensor, same_class: float, seed: int) -> PairDrawer:
    """Build a drawer of pairs among bags (m,), given the labels (N, B) of all proposals."""
    classes = int(label.max()) + 1
    rows = bags.to(label.device)
    has_class = torch.zeros(len(label), classes + 1, dtype=torch.bool, device=label.device)
    has_class[rows] = has_class[rows].scatter(1, torch.where(label[rows] >= 0, label[rows], classes), True)
    entry_class, bag = torch.nonzero(has_class[:, :classes].T, as_tuple=True)
    return PairDrawer(PositiveBags.of(bag, entry_class, classes), bag, has_class[:, :classes], same_class, seed)


def learn_transfer(bags: Bags, labels: Labels, settings: TransferSettings) -> tuple[TransferScores, Curve]:
    """Train psi^U and psi^P on the labelled proposals of the source (paper, eq. source_loss).

    The two functions share no weights, so alpha, the weight between their losses, would only change their learning
    rates: each is trained on its mean loss. Returns the scores and the training curve. Raises a NoObjectsError if fewer
    than two bags have a foreground proposal.
    """
    label = labels.label
    training = settings.training
    torch.manual_seed(settings.seed)
    scores = TransferScores(bags.reduction, settings).to(bags.device)
    with_object = torch.nonzero((label >= 0).any(dim=1))[:, 0].cpu()
    shuffled = with_object[torch.from_numpy(np.random.default_rng(settings.seed).permutation(len(with_object)))]
    if len(shuffled) < 2:
        raise NoObjectsError("the source has fewer than two images with a proposal on an annotated object")
    count = min(int(len(shuffled) * training.held_out), len(shuffled) - 2)
    held_out, train = shuffled[:count], shuffled[count:]
    drawer = source_drawer(label, train, settings.same_class, settings.seed)

    def loss() -> Tensor:
        return source_loss(scores, bags, label, drawer, training.pairs)

    def held_out_loss() -> Tensor:
        same_pairs = source_drawer(label, held_out, settings.same_class, settings.seed + 1)  # every time
        return source_loss(scores, bags, label, same_pairs, _HELD_OUT_PAIRS)

    validation = held_out_loss if len(held_out) > 1 else None
    curve = descend(scores, loss, validation, training, what="transfer scores")
    if settings.unary.fit == "exact":
        _fit_unary(scores, bags, labels, with_object)
    return scores, curve


@torch.no_grad()
def _fit_unary(scores: TransferScores, bags: Bags, labels: Labels, with_object: Tensor) -> None:
    """Fit psi^U exactly to all proposals; the target rises from 0 at IoU background_iou to 1 at tight_iou."""
    settings = scores.settings
    low, high = settings.background_iou, settings.unary.tight_iou
    tightness = ((labels.overlap - low) / (high - low)).clamp(0, 1).masked_fill(labels.label == BACKGROUND, 0.0)
    counted = (labels.label != NEITHER) | (tightness > 0)
    counted &= bags.valid & (labels.label > NEITHER).any(dim=1, keepdim=True)
    weight = counted.float() / counted.sum()

    def targets(batch: Tensor) -> tuple[Tensor, Tensor]:
        batch = batch.to(bags.device)
        return tightness[batch][..., None], weight[batch][..., None]

    start = torch.zeros(1, bags.d + 1, device=bags.device)
    scores.unary.set(fit_logistic(bags.features, targets, with_object, start, decay=settings.unary.decay))


def source_loss(scores: TransferScores, bags: Bags, label: Tensor, drawer: PairDrawer, count: int) -> Tensor:
    """Return the mean loss of `count` drawn pairs of bags (paper, eq. source_loss)."""
    settings, pairs, entries = scores.settings, drawer.draw(count), drawer.positives
    samples = []
    for entry in (pairs.first, torch.where(pairs.second >= 0, pairs.second, pairs.other)):  # others are entries too
        index, focus = entries.bag[entry], entries.label[entry]
        proposal_label = label[index]  # (n, B)
        counts = (settings.training.foreground, settings.training.background)
        is_focus = proposal_label == focus[:, None]
        sample: Sample = draw(is_focus, (proposal_label != NEITHER) & ~is_focus, counts, drawer.generator)
        features, drawn_label = bags.chosen(index, sample.proposals), proposal_label.gather(1, sample.proposals)
        samples.append((features, drawn_label, sample.drawn))
    (left, left_label, left_drawn), (right, right_label, right_drawn) = samples
    related = (left_label[:, :, None] == right_label[:, None]) & (left_label >= 0)[:, :, None]
    both = left_drawn[:, :, None] & right_drawn[:, None]
    pair = mean_loss(scores.relation(left, right)[..., 0], related, both)
    if settings.unary.fit == "exact":
        return pair
    is_object = torch.cat([left_label, right_label]) >= 0
    drawn = torch.cat([left_drawn, right_drawn])
    return pair + mean_loss(scores.unary(torch.cat([left, right]))[..., 0], is_object, drawn)
