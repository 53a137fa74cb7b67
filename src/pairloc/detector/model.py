"""The network, torchvision's Faster R-CNN on a feature pyramid, and how a trained one is saved and loaded."""

from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign

from pairloc.detector.backbones import Maps, Pyramid
from pairloc.detector.batched import BackgroundMatcher, BatchedTransform, batch_up
from pairloc.detector.compact import restored
from pairloc.errors import InputError
from pairloc.io import first_problem, read_model, reason, write_json, write_tensors
from pairloc.migration import migrated
from pairloc.settings import ProposerSettings

SETTINGS, WEIGHTS, CHECKPOINT = "proposer.json", "proposer.safetensors", "training.safetensors"


def build(settings: ProposerSettings, classes: int, *, pretrained: bool | None = None) -> FasterRCNN:
    """Build the untrained network for `classes` classes, not counting background."""
    maps = Maps(
        settings.backbone,
        pretrained=settings.pretrained if pretrained is None else pretrained,
        levels=settings.levels,
        weights=settings.backbone_weights,
    )
    pyramid = Pyramid(maps, settings.pyramid)
    names = [str(level) for level in range(settings.levels)]
    # two anchor sizes per level, a factor of sqrt(2) apart, each in three aspect ratios
    anchor = settings.smallest_anchor
    sizes = tuple((anchor * 2**level, round(anchor * 2 ** (level + 0.5))) for level in range(settings.levels))
    model = FasterRCNN(
        pyramid,
        rpn_anchor_generator=AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * settings.levels),
        box_roi_pool=MultiScaleRoIAlign(names, output_size=settings.roi, sampling_ratio=2),
        box_head=TwoMLPHead(settings.pyramid * settings.roi**2, settings.head),
        box_predictor=FastRCNNPredictor(settings.head, (1 if settings.class_agnostic else classes) + 1),
        min_size=settings.image_size,
        max_size=settings.image_size,
        image_mean=list(maps.mean),
        image_std=list(maps.std),
        box_batch_size_per_image=settings.sampled_rois,
        rpn_pre_nms_top_n_train=300,  # per level; with more, NMS takes most of a training step on a GPU
        rpn_post_nms_top_n_train=500,
        rpn_pre_nms_top_n_test=300,  # `best_boxes` sets these by the number of boxes it wants
        rpn_post_nms_top_n_test=300,
    )
    model.transform.__class__ = BatchedTransform
    matcher = model.roi_heads.proposal_matcher
    model.roi_heads.proposal_matcher = BackgroundMatcher(
        matcher.high_threshold, matcher.low_threshold, settings.min_background_iou
    )
    return model


def on_device(model: FasterRCNN, device: str | torch.device) -> FasterRCNN:
    """Move a network to a device; on a GPU it gets batched operations and the channels-last layout."""
    if torch.device(device).type != "cuda":
        return model.to(device)
    return batch_up(model.to(device, memory_format=torch.channels_last))


class _Saved(BaseModel):
    """The content of proposer.json."""

    settings: dict[str, Any]
    classes: tuple[str, ...] = Field(min_length=1)


class Proposer:
    """A trained Faster R-CNN, proposer or detector, with its settings and the names of the classes it was taught."""

    def __init__(self, model: FasterRCNN, settings: ProposerSettings, classes: tuple[str, ...]) -> None:
        self.model, self.settings, self.classes = model.eval(), settings, classes

    def save(self, folder: Path) -> None:
        """Write weights, settings and class names into a folder."""
        write_tensors(folder / WEIGHTS, self.model.state_dict())
        settings = self.settings.model_copy(update={"backbone_weights": None, "download": False})
        content = {"settings": settings.model_dump(mode="json"), "classes": self.classes}
        write_json(folder / SETTINGS, content, indent=1)

    @classmethod
    def load(cls, folder: Path, device: str | torch.device = "cpu") -> "Proposer":
        """Load what `save` wrote; settings of earlier versions are converted.

        Raises an InputError if the folder is unfinished, damaged or not that of a proposer.
        """
        check_finished(folder)
        saved = read_model(folder / SETTINGS, _Saved)
        try:
            settings = ProposerSettings.model_validate(migrated("proposer", saved.settings))
        except ValidationError as error:
            raise InputError(f"{folder / SETTINGS}: settings.{first_problem(error)}") from error
        try:
            weights = restored(load_file(folder / WEIGHTS))
            model = build(settings, len(saved.classes), pretrained=False)
            model.load_state_dict(weights)
        except (KeyError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
            raise InputError(f"{folder}: does not hold a proposer ({reason(error)})") from error
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point() and not (weights[name].is_floating_point() and tensor.isfinite().all()):
                raise InputError(f"{folder / WEIGHTS}: weights are not finite numbers ({name}); train again")
        return cls(on_device(model, device), settings, saved.classes)


def check_finished(folder: Path) -> None:
    """Raise an InputError if the training in a folder is unfinished, so that there is no proposer yet."""
    if not (folder / SETTINGS).is_file() and (folder / CHECKPOINT).is_file():
        raise InputError(f"{folder}: the training is not finished; run the same command again to resume it")
