"""Linear classifiers of the source classes, twice: of whole images and of boxes. LSDA and Tang et al. transfer them.

The difference between the two is what turns a classifier of images into a detector.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from pairloc.bags.tensors import Bags
from pairloc.errors import InputError
from pairloc.io import read_model, write_json, write_tensors
from pairloc.localization.logistic import fit_logistic
from pairloc.localization.transfer import NEITHER, Labels

WEIGHTS, NAMES = "classifiers.safetensors", "classifiers.json"
_MAX_BAGS = 10_000  # drawn at random
DECAY = 1e-3


@dataclass(frozen=True)
class SourceClassifiers:
    """Classifiers of S source classes on d features; the last column of the weights is the bias."""

    classes: tuple[str, ...]
    image: Tensor  # (S, d + 1) classifiers of whole images
    box: Tensor  # (S, d + 1) classifiers of boxes

    def to(self, device: str | torch.device) -> "SourceClassifiers":
        """Copy the weights to a device."""
        return SourceClassifiers(self.classes, self.image.to(device), self.box.to(device))

    def save(self, folder: Path) -> None:
        """Write weights and class names into a folder."""
        write_tensors(folder / WEIGHTS, {"image": self.image, "box": self.box})
        write_json(folder / NAMES, {"classes": self.classes})

    @classmethod
    def load(cls, folder: Path) -> "SourceClassifiers":
        """Read what `save` wrote; raises an InputError if the files are missing, damaged or inconsistent."""
        names = read_model(folder / NAMES, _Names).classes
        try:
            weights = load_file(folder / WEIGHTS)
            image, box = weights["image"], weights["box"]
        except (OSError, KeyError, SafetensorError) as error:
            raise InputError(f"{folder / WEIGHTS}: cannot be read as classifiers; run again") from error
        if image.shape != box.shape or len(image) != len(names) or not (image.isfinite() & box.isfinite()).all():
            raise InputError(f"{folder / WEIGHTS}: does not hold classifiers of {len(names)} classes; run again")
        return cls(names, image, box)


class _Names(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    classes: tuple[str, ...]


def fit_classifiers(bags: Bags, labels: Labels, classes: tuple[str, ...], seed: int = 0) -> SourceClassifiers:
    """Fit both classifiers of every source class to the bags of the source and the labels of their proposals.

    An image shows a class if one of its proposals does.
    """
    label = labels.label  # (N, B)
    used = torch.nonzero(bags.valid.any(dim=1))[:, 0].cpu()
    used = used[torch.randperm(len(used), generator=torch.Generator().manual_seed(seed))[:_MAX_BAGS]]
    start = torch.zeros(len(classes), bags.d + 1, device=bags.device)
    shows = torch.zeros(bags.count, len(classes) + 1, dtype=torch.bool, device=bags.device)
    shows.scatter_(1, torch.where(label >= 0, label, len(classes)), True)
    shows = shows[:, :-1]  # (N, S)
    positives = torch.bincount(label[used.to(label.device)].flatten().clamp(min=-1) + 1, minlength=len(classes) + 1)[1:]
    counted = int((label[used.to(label.device)] != NEITHER).sum())

    def of_boxes(batch: Tensor) -> tuple[Tensor, Tensor]:
        batch_label = label[batch.to(label.device)][..., None]  # (n, B, 1)
        is_class = batch_label == torch.arange(len(classes), device=label.device)  # (n, B, S)
        weight = torch.where(is_class, 0.5 / positives.clamp(min=1), 0.5 / (counted - positives).clamp(min=1))
        return is_class.float(), weight * (batch_label != NEITHER)

    box = fit_logistic(bags.features, of_boxes, used, start, decay=DECAY)
    return SourceClassifiers(classes, image_classifiers(bags, shows, used), box)


def image_classifiers(bags: Bags, shows: Tensor, used: Tensor) -> Tensor:
    """Fit classifiers (C, d + 1) of whole images to the bags `used` (n,), given which classes images show (N, C).

    The proposal nearest to the whole image represents it. Images with and without a class have the same total weight.
    """
    features, shown = whole_images(bags, used), shows.to(bags.device)[used.to(bags.device)]  # (n, d), (n, C)
    positives = shown.sum(dim=0)  # (C,)
    weight = torch.where(shown, 0.5 / positives.clamp(min=1), 0.5 / (len(used) - positives).clamp(min=1))

    def targets(batch: Tensor) -> tuple[Tensor, Tensor]:
        return shown[batch][:, None].float(), weight[batch][:, None]

    start = torch.zeros(shown.shape[1], bags.d + 1, device=bags.device)
    rows = torch.arange(len(used), device=bags.device)
    return fit_logistic(lambda batch: features[batch][:, None], targets, rows, start, decay=DECAY)


def whole_images(bags: Bags, rows: Tensor) -> Tensor:
    """Features (n, d) of the proposals nearest to the whole image, of bags `rows` (n,)."""
    return bags.chosen(rows, bags.frame_overlap(rows).argmax(dim=1, keepdim=True))[:, 0]
