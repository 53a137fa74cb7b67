"""Settings: typed, frozen, in groups; a key that is not known is an error.

The values here are the recommended ones. A setting's name (a solver, a backbone, a method) is checked against its
registry when a run is planned; this file imports none of them.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

NO_EFFECT = "has no effect on the result"  # marks a field that is left out of cache keys
Seed = Annotated[int, Field(ge=0, lt=2**62, description="The same seed gives the same result on the same machine.")]
Workers = Annotated[int, Field(ge=0, le=256, description="Processes that read images ahead."), NO_EFFECT]
Share = Annotated[float, Field(ge=0, le=1)]
Iou = Annotated[float, Field(gt=0, lt=1)]
Device = Literal["auto", "cpu", "cuda", "mps"]


class Settings(BaseModel):
    """The base of all settings: immutable; an unknown key, infinity and NaN are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def cache_key(self) -> dict[str, Any]:
        """What a result made with these settings is recognised by: ignores settings that do not affect it."""
        key: dict[str, Any] = {}
        for name, field in type(self).model_fields.items():
            if NO_EFFECT not in field.metadata:
                value = getattr(self, name)
                key[name] = value.cache_key() if isinstance(value, Settings) else value
        return key


class SceneSettings(Settings):
    """Generated scenes: a data set that needs no download."""

    seed: Seed = 0
    size: int = Field(default=128, ge=32, le=1024, description="Side of the square images in pixels.")
    source_images: int = Field(default=1000, ge=1, le=1_000_000, description="Number of annotated images.")
    target_images: int = Field(default=400, ge=1, le=1_000_000, description="Number of tagged images.")


class ProposerSettings(Settings):
    """The proposer, torchvision's Faster R-CNN on a feature pyramid, and how it is trained; detectors use it too."""

    backbone: str = Field(
        default="efficientnet-lite0",
        description="Name of the backbone: efficientnet-lite0, -lite1, -lite2, resnet50, or a timm model.",
    )
    pretrained: bool = Field(default=True, description="Start the backbone from its ImageNet weights.")
    class_agnostic: bool = Field(default=False, description="Learn one class, object, instead of the source classes.")
    image_size: int = Field(
        default=320, ge=32, le=2048, description="Pixels of an image's longer side inside the network."
    )
    pyramid: int = Field(default=128, ge=8, le=512, description="Channels of the feature pyramid.")
    levels: int = Field(default=4, ge=1, le=4, description="Levels of the pyramid; the coarsest has stride 32.")
    anchor: int = Field(
        default=24, ge=4, le=512, description="Side of the smallest anchors in pixels; doubles at every level."
    )
    roi: int = Field(default=7, ge=1, le=14, description="Side of a pooled region.")
    head: int = Field(
        default=1024, ge=8, le=4096, description="Width of the box head, which is d of the transferred feature."
    )
    sampled_rois: int = Field(
        default=256, ge=8, le=2048, description="Regions of a training image that are learned from."
    )
    min_background_iou: float = Field(
        default=0.0,
        ge=0,
        lt=0.5,
        description="Minimum IoU with a box for a region to count as background (docs/detection.md).",
    )
    frozen: bool = Field(
        default=False, description="Freeze everything except the box head; needs weights to start from."
    )
    crop: float = Field(
        default=1.0, gt=0, le=1, description="Crop training images at random to at least this part of a side."
    )
    epochs: int = Field(
        default=3, ge=1, le=1000, description="Passes over the images; long training rejects unknown classes."
    )
    batch: int = Field(default=16, ge=1, le=1024, description="Images per training step.")
    optimizer: Literal["sgd", "adamw"] = Field(
        default="adamw", description="Optimizer; use a learning rate of 0.01 with sgd."
    )
    lr: float = Field(default=5e-4, gt=0, le=10, description="Peak learning rate; it follows a cosine down to zero.")
    warm_up: int = Field(default=200, ge=0, description="Steps in which the learning rate rises from zero.")
    held_out: float = Field(default=0.05, ge=0, lt=1, description="Part of the source images that is never trained on.")
    held_classes: int = Field(
        default=0, ge=0, description="Source classes that are not taught; recall is measured on them."
    )
    workers: Workers = 0
    seed: Seed = 0


class ExtractSettings(Settings):
    """Extraction: images become bags."""

    proposals: int = Field(default=100, ge=1, le=2000, description="Proposals per image.")
    nms: float = Field(
        default=0.7, gt=0, le=1, description="IoU above which the lower-scored of two proposals is dropped."
    )
    whole_image: bool = Field(default=True, description="Add the box of the whole image as a proposal.")
    class_features: str = Field(
        default="backbone-roi", description="Class features: see bags/features.py for the names."
    )
    batch: Annotated[
        int | None, Field(ge=1, le=1024, description="Images per forward pass; 8 on a CPU, 64 on a GPU."), NO_EFFECT
    ] = None
    shard: Annotated[int, Field(ge=1, le=100_000, description="Images per shard of the store."), NO_EFFECT] = 256
    unreadable: Annotated[
        Literal["fail", "skip"], Field(description="What an image that cannot be read does."), NO_EFFECT
    ] = "fail"
    workers: Workers = 0


class FeatureSettings(Settings):
    """Which features of a proposal a score function sees."""

    kind: Literal["transfer", "class", "both"] = Field(
        default="both", description="Features of the proposer's box head, of the independent network, or both."
    )
    dimensions: int = Field(
        default=256, ge=0, le=8192, description="Principal components that are kept; 0 keeps the features."
    )
    geometry: bool = Field(default=True, description="Append position, size and objectness of the box.")


class TrainingSettings(Settings):
    """Stochastic gradient descent on pairs of bags, with early stopping on held-out bags."""

    steps: int = Field(default=1500, ge=1, le=10_000_000, description="Steps at most; few tags are learned in fewer.")
    pairs: int = Field(default=32, ge=1, le=65536, description="Pairs of bags per step.")
    optimizer: Literal["adamw", "sgd"] = Field(
        default="adamw", description="The paper uses sgd; use a rate of 0.01 with it."
    )
    lr: float = Field(default=2e-3, gt=0, le=10, description="Initial learning rate; it follows a cosine down to zero.")
    foreground: int = Field(default=3, ge=1, le=100, description="Foreground proposals drawn per bag (the paper: 3).")
    background: int = Field(default=7, ge=1, le=1000, description="Background proposals drawn per bag (the paper: 7).")
    held_out: float = Field(default=0.1, ge=0, lt=1, description="Part of the bags that early stopping watches.")


class TransferUnarySettings(Settings):
    """The class-generic unary score."""

    fit: Literal["sampled", "exact"] = Field(
        default="exact", description="Train by descent on sampled proposals, or fit logistic regression to all of them."
    )
    decay: float = Field(default=1e-3, gt=0, description="Weight decay of the exact fit.")
    tight_iou: float = Field(
        default=0.9, gt=0, le=1, description="The exact fit's label rises from 0 at background_iou to 1 at this IoU."
    )


class PairSettings(Settings):
    """The pair score."""

    kind: str = Field(default="cosine", description="relation (the paper's network) or cosine.")


class TransferSettings(Settings):
    """The class-generic score functions, learned on the source (paper, eq. source_loss)."""

    images: int = Field(default=5000, ge=2, description="Source images learned from, at most.")
    foreground_iou: Iou = Field(
        default=0.65, description="A proposal shows a class if its IoU with a box is at least this."
    )
    background_iou: Iou = Field(
        default=0.5, description="A proposal shows nothing if its IoU with every box is below this."
    )
    features: FeatureSettings = FeatureSettings(dimensions=512)
    unary: TransferUnarySettings = TransferUnarySettings()
    pairs: PairSettings = PairSettings()
    training: TrainingSettings = TrainingSettings(steps=600, pairs=64)
    same_class: float = Field(default=0.5, gt=0, lt=1, description="Part of the pairs of bags that share a class.")
    seed: Seed = 0

    @model_validator(mode="after")
    def _ordered(self) -> "TransferSettings":
        if self.background_iou > self.foreground_iou:
            raise ValueError("background_iou is above foreground_iou: a proposal would show an object and none")
        if self.background_iou >= self.unary.tight_iou:
            raise ValueError("background_iou is not below unary.tight_iou: no proposal would be in between")
        return self


class EnergySettings(Settings):
    """What re-localization minimises (paper, eq. reloc_full_opt), and how the two sides are mixed."""

    alpha: float = Field(default=1.0, ge=0, description="Weight of the pair scores; 0 leaves them out.")
    alpha_scale: Literal["none", "per_bag"] = Field(
        default="per_bag", description="`per_bag` averages the pair scores over the other bags; `none` sums them."
    )
    lambda1: Share = Field(default=1.0, description="Weight of the transfer scores in the pair scores; 1 trains none.")
    lambda2: Share = Field(default=0.5, description="Weight of the transfer scores in the unary scores; 1 trains none.")
    max_compared_bags: int = Field(
        default=1024,
        ge=0,
        description="Bags of a class that are compared with each other, in random groups; 0 compares all.",
    )

    @property
    def trains_unary(self) -> bool:
        """Whether class unary scores have any weight."""
        return self.lambda2 < 1

    @property
    def trains_pairs(self) -> bool:
        """Whether class pair scores have any weight."""
        return self.alpha > 0 and self.lambda1 < 1

    def without_pairs(self) -> "EnergySettings":
        """The same energy with its unary part alone."""
        return self.model_copy(update={"alpha": 0.0})


class SolverSettings(Settings):
    """Algorithm 1: mini-problems, then ICM."""

    name: str = Field(default="trws", description="Solver of the mini-problems.")
    k: int = Field(default=4, ge=2, le=1024, description="Bags of a mini-problem.")
    iterations: int = Field(default=100, ge=1, description="Iterations of the solver at most.")
    epochs: int = Field(default=10, ge=0, description="Passes of ICM over the bags at most.")


class ClassUnarySettings(Settings):
    """The unary of a class: how its class scores are fitted, and the evidence that stands beside them."""

    fit: Literal["sampled", "exact"] = Field(
        default="exact", description="Train by descent on sampled proposals, or fit logistic regression to all of them."
    )
    decay: float = Field(default=1e-2, gt=0, description="Weight decay of the exact fit.")
    other_tag_weight: float = Field(
        default=1.0, ge=0, description="Weight, in the exact fit, of other tags' selected boxes as negative examples."
    )
    area_penalty: float = Field(
        default=3.0, ge=0, description="Score a proposal loses per part of the image it covers beyond one half."
    )
    max_area: float = Field(
        default=0.9, gt=0, le=1, description="Part of the image that a selected proposal covers at most."
    )


class ClassTrainingSettings(TrainingSettings):
    """Re-training: what is foreground around a selected box, and what it is paired with."""

    foreground_iou: float = Field(
        default=0.6, gt=0, le=1, description="Minimum IoU with the selected box for a proposal to be foreground."
    )
    negatives: Share = Field(default=0.5, description="Part of the pairs whose other bag lacks the tag.")


class BoxSettings(Settings):
    """From selected proposals to boxes."""

    voting_iou: float = Field(
        default=0.4,
        ge=0,
        lt=1,
        description="Average the proposals whose IoU with the box is at least this; 0 disables it.",
    )


class LocalizationSettings(Settings):
    """Warm-up, then re-training and re-localization in turn (paper, sections 4 and 4.2)."""

    rounds: int = Field(default=1, ge=0, le=100, description="Rounds of re-training and re-localization at most.")
    folds: int = Field(
        default=4, ge=1, le=100, description="Re-train without each fold, re-localize that fold; 1 uses none."
    )
    safeguard: bool = Field(
        default=False,
        description="Keep a re-training only if it lowers the objective, which makes it monotone (folds = 1).",
    )
    energy: EnergySettings = EnergySettings()
    solver: SolverSettings = SolverSettings()
    features: FeatureSettings = FeatureSettings()
    unary: ClassUnarySettings = ClassUnarySettings()
    pairs: PairSettings = PairSettings()
    training: ClassTrainingSettings = ClassTrainingSettings()
    boxes: BoxSettings = BoxSettings()
    seed: Seed = 0

    @model_validator(mode="after")
    def _one_objective(self) -> "LocalizationSettings":
        if self.safeguard and self.folds > 1:
            raise ValueError("safeguard and folds contradict each other: with folds there is not one objective")
        if self.safeguard and self.energy.max_compared_bags:
            raise ValueError(
                "safeguard needs energy.max_compared_bags = 0: a group has another objective than its class"
            )
        return self


class FineTuneSettings(Settings):
    """The method `fine-tuned`: the proposer re-trained on the boxes of `full`, fold by fold."""

    epochs: int = Field(default=12, ge=1, le=1000, description="Epochs of each network at most.")
    steps: int = Field(default=400, ge=1, le=1_000_000, description="Steps of each network, about; epochs are whole.")
    batch: int = Field(default=32, ge=1, le=1024, description="Images per step.")
    lr: float = Field(default=3e-4, gt=0, le=10, description="Peak learning rate.")
    warm_up: int = Field(default=50, ge=0, description="Steps in which the learning rate rises from zero.")
    crop: float = Field(
        default=0.6, gt=0, le=1, description="Crop training images at random to at least this part of a side."
    )
    weight: float = Field(
        default=2.0, gt=0, description="Weight of the networks' log-probabilities beside the scores of full."
    )
    instance_threshold: float = Field(
        default=0.5, gt=0, le=1, description="Probability from which a further box of a tag counts as an instance."
    )
    workers: Workers = 0
    seed: Seed = 0


class MiSvmSettings(Settings):
    """The baseline `mi-svm`: multiple instance learning with linear support vector machines (Uijlings et al.)."""

    rounds: int = Field(default=1, ge=0, le=100, description="Rounds of training and selection at most.")
    folds: int = Field(
        default=4, ge=1, le=100, description="Train without each fold, select in that fold; 1 uses none."
    )
    objectness_weight: Share = Field(default=0.5, description="Weight of the proposer's objectness beside the machine.")
    max_area: float = Field(
        default=0.9, gt=0, le=1, description="Part of the image that a selected proposal covers at most."
    )
    features: FeatureSettings = FeatureSettings()
    seed: Seed = 0


class DataSettings(Settings):
    """Where source and target come from: generated scenes, or files in any format."""

    scenes: SceneSettings | None = Field(default=None, description="Draw scenes instead of reading files.")
    source: Path | None = Field(default=None, description="Annotations of the source.")
    source_images: Path | None = Field(default=None, description="Folder of the source's images.")
    source_format: str = Field(default="auto", description="Format of the source.")
    target: Path | None = Field(default=None, description="Tags of the target; boxes in that file are ignored.")
    target_images: Path | None = Field(default=None, description="Folder of the target's images.")
    target_format: str = Field(default="auto", description="Format of the target.")
    truth: Path | None = Field(default=None, description="Boxes of the target, for evaluation alone.")
    allow_overlap: bool = Field(default=False, description="Allow classes that are in source and target.")

    @model_validator(mode="after")
    def _one_kind(self) -> "DataSettings":
        if self.scenes is not None and (self.source or self.target or self.truth):
            raise ValueError("data.scenes and data.source contradict each other: scenes bring their own files")
        if self.scenes is None and not self.target:
            raise ValueError("data.target is needed (or data.scenes)")
        return self


class RunSettings(Settings):
    """A whole run, as a TOML file has it."""

    data: DataSettings
    weights: str | None = Field(
        default=None, description="Use these weights (coco63, or a folder) instead of a source."
    )
    methods: tuple[str, ...] = Field(
        default=("warm-up-unary", "warm-up", "unary", "full"),
        min_length=1,
        description="Methods to run, in this order.",
    )
    proposer: ProposerSettings = ProposerSettings()
    extract: ExtractSettings = ExtractSettings()
    transfer: TransferSettings = TransferSettings()
    localization: LocalizationSettings = LocalizationSettings()
    fine_tune: FineTuneSettings = FineTuneSettings()
    mi_svm: MiSvmSettings = MiSvmSettings()
    seed: Seed = 0
    device: Device = Field(default="auto", description="Device to compute on; auto takes a GPU where there is one.")
    memory: float = Field(default=8.0, gt=0, le=1e6, description="Gigabytes of features held at a time.")
    processes: int = Field(default=1, ge=1, le=256, description="Processes that share the work of learning on a CPU.")

    @model_validator(mode="after")
    def _something_to_learn_from(self) -> "RunSettings":
        if self.weights is None and self.data.scenes is None and self.data.source is None:
            raise ValueError("data.source is needed (or data.scenes, or weights that were learned before)")
        if self.weights is not None and (self.data.scenes or self.data.source):
            raise ValueError("weights and data.source contradict each other: weights were learned on a source before")
        if len(set(self.methods)) < len(self.methods):
            raise ValueError("methods names one method twice")
        if "fine-tuned" in self.methods and "full" not in self.methods[: self.methods.index("fine-tuned")]:
            raise ValueError("the method 'fine-tuned' goes on from 'full': name it after that one")
        return self
