"""Knowledge transfer (paper, section 4.2): class-generic unary and pair scores, learned on the source's boxes."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pairloc.bags.tensors import Bags
from pairloc.boxes import iou
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.errors import InputError
from pairloc.localization.descent import Curve, descend
from pairloc.localization.functions import TransferScores
from pairloc.localization.logistic import fit_logistic
from pairloc.localization.losses import mean_loss
from pairloc.localization.sampling import PairDrawer, Sample, Shown, draw
from pairloc.settings import TransferSettings

BACKGROUND, NEITHER = -1, -2
_LOOK = 256  # pairs of bags the held-out loss is measured on


class NoObjectsError(InputError):
    """A source whose proposals show too few annotated objects."""


@dataclass(frozen=True)
class Labels:
    """What the proposals of the source show."""

    shown: Tensor  # (N, B) class; BACKGROUND for none, NEITHER for in between, what does not count, and padding
    overlap: Tensor  # (N, B) IoU with the annotated box that fits best

    @classmethod
    def of(cls, shown: Tensor) -> "Labels":
        """Labels of proposals that fit perfectly or not at all."""
        return cls(shown, (shown >= 0).float())

    def without(self, bags: Tensor) -> "Labels":
        """The same with nothing known of some bags, a mask (N,)."""
        return Labels(self.shown.masked_fill(bags.to(self.shown.device)[:, None], NEITHER), self.overlap)


def label_proposals(bags: Bags, dataset: Dataset, truth: GroundTruth, settings: TransferSettings) -> Labels:
    """The class of every proposal of the source, by IoU with its annotated boxes."""
    places = dataset.places(bags.store.dataset.subset(bags.indices))
    labels, overlaps = torch.full((bags.count, bags.size), NEITHER), torch.zeros(bags.count, bags.size)
    order = np.argsort(truth.image, kind="stable")
    starts = np.searchsorted(truth.image[order], np.arange(len(dataset) + 1))
    boxes = bags.boxes.cpu()
    for row, image in enumerate(places):
        if image is None:
            raise InputError(f"{bags.store.path}: has a bag whose image is not among the source's annotations")
        own = order[starts[image] : starts[image + 1]]
        overlap = iou(boxes[row][None].double(), torch.from_numpy(truth.boxes[own]).reshape(1, -1, 4))[0]  # (B, G)
        ignored = torch.from_numpy(truth.ignored[own])
        counting = overlap.masked_fill(ignored, 0.0)
        best, place = counting.max(dim=1) if len(own) else (torch.zeros(bags.size), torch.zeros(bags.size).long())
        crowd = (overlap * ignored).amax(dim=1) if len(own) else torch.zeros(bags.size)
        labels[row] = torch.where(
            (best < settings.background_iou) & (crowd < settings.background_iou), BACKGROUND, NEITHER
        )
        overlaps[row] = best
        hit = best >= settings.foreground_iou
        if len(own):
            labels[row] = torch.where(hit, torch.from_numpy(truth.label[own])[place], labels[row])
    return Labels(labels.masked_fill(~bags.valid.cpu(), NEITHER).to(bags.device), overlaps.to(bags.device))


def _drawer(labels: Tensor, bags: Tensor, same_class: float, seed: int) -> PairDrawer:
    """Pairs of some bags (m,): a bag and a class it shows, with one that shows it too or one that shows others."""
    classes = int(labels.max()) + 1
    some = bags.to(labels.device)
    has = torch.zeros(len(labels), classes + 1, dtype=torch.bool, device=labels.device)
    has[some] = has[some].scatter(1, torch.where(labels[some] >= 0, labels[some], classes), True)
    label, bag = torch.nonzero(has[:, :classes].T, as_tuple=True)
    return PairDrawer(Shown.of(bag, label, classes), bag, has[:, :classes], same_class, seed)


def learn_transfer(bags: Bags, known: Labels, settings: TransferSettings) -> tuple[TransferScores, Curve]:
    """Train psi^U and psi^P on source bags whose proposals are labelled (paper, eq. source_loss).

    The two functions share no weights, so alpha, which weighs their losses, changes nothing but their learning rates:
    each is trained by its mean loss.
    """
    labels = known.shown
    training = settings.training
    torch.manual_seed(settings.seed)
    scores = TransferScores(bags.reduction, settings).to(bags.device)
    with_object = torch.nonzero((labels >= 0).any(dim=1))[:, 0].cpu()
    shuffled = with_object[torch.from_numpy(np.random.default_rng(settings.seed).permutation(len(with_object)))]
    if len(shuffled) < 2:
        raise NoObjectsError("the source has fewer than two images whose proposals show an annotated object")
    count = min(int(len(shuffled) * training.held_out), len(shuffled) - 2)
    held, train = shuffled[:count], shuffled[count:]
    drawer = _drawer(labels, train, settings.same_class, settings.seed)

    def loss() -> Tensor:
        return _loss(scores, bags, labels, drawer, training.pairs)

    def held_out() -> Tensor:
        again = _drawer(labels, held, settings.same_class, settings.seed + 1)
        return _loss(scores, bags, labels, again, _LOOK)

    watched = held_out if len(held) > 1 else None
    curve = descend(scores, loss, watched, training, what="transfer scores")
    if settings.unary.fit == "exact":
        _fit_unary(scores, bags, known, with_object)
    return scores, curve


@torch.no_grad()
def _fit_unary(scores: TransferScores, bags: Bags, known: Labels, with_object: Tensor) -> None:
    """psi^U on all proposals; its label says how tight a proposal is, from background_iou up to tight_iou."""
    settings = scores.settings
    low, high = settings.background_iou, settings.unary.tight_iou
    tight = ((known.overlap - low) / (high - low)).clamp(0, 1).masked_fill(known.shown == BACKGROUND, 0.0)
    counted = (known.shown != NEITHER) | (tight > 0)
    counted &= bags.valid & (known.shown > NEITHER).any(dim=1, keepdim=True)
    weight = counted.float() / counted.sum()

    def targets(some: Tensor) -> tuple[Tensor, Tensor]:
        some = some.to(bags.device)
        return tight[some][..., None], weight[some][..., None]

    start = torch.zeros(1, bags.d + 1, device=bags.device)
    scores.unary.set(fit_logistic(bags.features, targets, with_object, start, decay=settings.unary.decay))


def _loss(scores: TransferScores, bags: Bags, labels: Tensor, drawer: PairDrawer, count: int) -> Tensor:
    """The mean loss of some pairs of bags (paper, eq. source_loss)."""
    settings, pairs, shown = scores.settings, drawer.draw(count), drawer.shown
    sides = []
    for entry in (pairs.first, torch.where(pairs.second >= 0, pairs.second, pairs.other)):  # the others are entries too
        index, focus = shown.bag[entry], shown.label[entry]
        own = labels[index]
        counts = (settings.training.foreground, settings.training.background)
        is_focus = own == focus[:, None]
        sample: Sample = draw(is_focus, (own != NEITHER) & ~is_focus, counts, drawer.generator)
        sides.append((bags.chosen(index, sample.proposals), own.gather(1, sample.proposals), sample.drawn))
    (left, left_label, left_drawn), (right, right_label, right_drawn) = sides
    related = (left_label[:, :, None] == right_label[:, None]) & (left_label >= 0)[:, :, None]
    both = left_drawn[:, :, None] & right_drawn[:, None]
    pair = mean_loss(scores.relation(left, right)[..., 0], related, both)
    if settings.unary.fit == "exact":
        return pair
    is_object = torch.cat([left_label, right_label]) >= 0
    drawn = torch.cat([left_drawn, right_drawn])
    return pair + mean_loss(scores.unary(torch.cat([left, right]))[..., 0], is_object, drawn)
