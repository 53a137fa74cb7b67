"""Settings of the proposer, and of extraction with it."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pairloc.settings.base import NO_EFFECT, Seed, Settings, Workers


class ProposerSettings(Settings):
    """Architecture and training of the proposer, torchvision's Faster R-CNN with a feature pyramid."""

    backbone: str = Field(
        default="efficientnet-lite0",
        description="Name of the backbone: efficientnet-lite0, -lite1, -lite2, resnet50, or a timm model.",
    )
    pretrained: bool = Field(default=True, description="Start the backbone from its ImageNet weights.")
    backbone_weights: Path | None = Field(
        default=None,
        description="File (safetensors) of the backbone's ImageNet weights, needed if no package has them.",
    )
    download: Annotated[
        bool, Field(description="Allow the download of ImageNet weights that no package has."), NO_EFFECT
    ] = False
    class_agnostic: bool = Field(
        default=False, description="Train with one class, object, instead of the source classes."
    )
    image_size: int = Field(
        default=320, ge=32, le=2048, description="Length of the longer side of an image inside the network, in pixels."
    )
    pyramid: int = Field(default=128, ge=8, le=512, description="Number of channels of the feature pyramid.")
    levels: int = Field(default=4, ge=1, le=4, description="Number of pyramid levels; the coarsest has stride 32.")
    anchor: int | None = Field(
        default=None,
        ge=4,
        le=512,
        description="Side of the smallest anchors in pixels, doubled per level; by default 0.075 times image_size.",
    )
    roi: int = Field(default=7, ge=1, le=14, description="Side length of a pooled region in cells.")
    head: int = Field(
        default=1024, ge=8, le=4096, description="Width of the box head, the dimension d of the transfer features."
    )
    sampled_rois: int = Field(default=256, ge=8, le=2048, description="Number of regions sampled per training image.")
    min_background_iou: float = Field(
        default=0.0,
        ge=0,
        lt=0.5,
        description="Minimum IoU with a box for a region to count as background (docs/how-to/detector.md).",
    )
    soft_labels: bool = Field(
        default=False, description="Teach the box head how tight a region is, not only what it shows."
    )
    contrast: float = Field(
        default=0.0,
        ge=0,
        le=100,
        description="Weight of a loss that makes objects of a class alike across images, and unlike everything else.",
    )
    frozen: bool = Field(default=False, description="Freeze everything except the box head; needs initial weights.")
    crop: float = Field(
        default=1.0, gt=0, le=1, description="Random crops of training images keep at least this fraction of each side."
    )
    epochs: int = Field(
        default=3,
        ge=1,
        le=1000,
        description="Number of epochs; long training makes it miss classes it was not trained on.",
    )
    batch: int = Field(default=16, ge=1, le=1024, description="Number of images per training step.")
    optimizer: Literal["sgd", "adamw"] = Field(
        default="adamw", description="Optimizer; sgd needs a learning rate of about 0.01."
    )
    lr: float = Field(default=5e-4, gt=0, le=10, description="Peak learning rate; it decays to zero along a cosine.")
    warm_up: int = Field(default=200, ge=0, description="Number of steps over which the learning rate rises from zero.")
    held_out: float = Field(
        default=0.05,
        ge=0,
        lt=1,
        description="Fraction of the source images not trained on; recall is measured on them.",
    )
    held_classes: int = Field(default=0, ge=0, description="Number of source classes held out to measure recall on.")
    workers: Workers = 0
    seed: Seed = 0

    @property
    def smallest_anchor(self) -> int:
        """Side length of the smallest anchors in pixels of the network's input."""
        return max(4, round(0.075 * self.image_size)) if self.anchor is None else self.anchor


class ExtractSettings(Settings):
    """Extraction of bags from images."""

    proposals: int = Field(default=100, ge=1, le=2000, description="Number of proposals per image.")
    nms: float = Field(default=0.7, gt=0, le=1, description="IoU threshold of non-maximum suppression of proposals.")
    whole_image: bool = Field(default=True, description="Add the box of the whole image as a proposal.")
    class_features: str = Field(
        default="backbone-roi",
        description="Class features: backbone-roi, backbone-crops, alexnet-crops (a download) or none.",
    )
    source_class_features: bool = Field(
        default=True, description="Extract class features of source images too, for tuning and for `transfer.features`."
    )
    download: Annotated[bool, Field(description="Allow the download of weights of the class features."), NO_EFFECT] = (
        False
    )
    agnostic_boxes: bool = Field(
        default=False,
        description="Take boxes from a second, class-agnostic proposer and features from the multi-class one.",
    )
    batch: Annotated[
        int | None,
        Field(
            ge=1, le=1024, description="Number of images per forward pass; the default is 8 on a CPU and 64 on a GPU."
        ),
        NO_EFFECT,
    ] = None
    shard: Annotated[
        int, Field(ge=1, le=100_000, description="Number of images per shard of the store."), NO_EFFECT
    ] = 256
    precision: Annotated[
        Literal["auto", "single"],
        Field(description="`auto` computes in bfloat16 where the CPU or GPU does, which is faster; `single` never."),
        NO_EFFECT,  # but rounding
    ] = "auto"
    unreadable: Annotated[
        Literal["fail", "skip"],
        Field(description="`fail` stops at an image that cannot be read; `skip` leaves it out."),
        NO_EFFECT,
    ] = "fail"
    workers: Workers = 0


class FineTuneSettings(Settings):
    """The method `fine-tuned`: it re-trains the proposer on the boxes of `full`, fold by fold."""

    epochs: int = Field(default=12, ge=1, le=1000, description="Maximum number of epochs of each network.")
    steps: int = Field(
        default=400, ge=1, le=1_000_000, description="Approximate number of steps of each network, in whole epochs."
    )
    batch: int = Field(default=32, ge=1, le=1024, description="Number of images per step.")
    lr: float = Field(default=3e-4, gt=0, le=10, description="Peak learning rate.")
    warm_up: int = Field(default=50, ge=0, description="Number of steps over which the learning rate rises from zero.")
    crop: float = Field(
        default=0.6, gt=0, le=1, description="Random crops of training images keep at least this fraction of each side."
    )
    weight: float = Field(
        default=2.0, gt=0, description="Weight of the networks' log-probabilities, added to the scores of `full`."
    )
    instance_threshold: float = Field(
        default=0.5, gt=0, le=1, description="Minimum probability for a further box of a tag to count as an instance."
    )
    workers: Workers = 0
    seed: Seed = 0
