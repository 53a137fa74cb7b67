"""Settings: typed, frozen and grouped; unknown keys are errors.

The defaults are the recommended values. Names of solvers, backbones, methods and the like are checked against their
registries when a run is planned, so this module imports none of them.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

NO_EFFECT = "has no effect on the result"  # marks a field that cache keys ignore
Seed = Annotated[
    int, Field(ge=0, lt=2**62, description="Random seed; the same seed gives the same result on the same machine.")
]
Workers = Annotated[int, Field(ge=0, le=256, description="Number of processes that load images in advance."), NO_EFFECT]
Fraction = Annotated[float, Field(ge=0, le=1)]
Iou = Annotated[float, Field(gt=0, lt=1)]
Device = Literal["auto", "cpu", "cuda", "mps"]


class Settings(BaseModel):
    """Base class of all settings: immutable; unknown keys, infinity and NaN are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def cache_key(self) -> dict[str, Any]:
        """Return the cache key of a result: all settings except those that do not affect it."""
        key: dict[str, Any] = {}
        for name, field in type(self).model_fields.items():
            if NO_EFFECT not in field.metadata:
                value = getattr(self, name)
                key[name] = value.cache_key() if isinstance(value, Settings) else value
        return key


class SceneSettings(Settings):
    """Generated scenes: a data set that needs no download."""

    seed: Seed = 0
    size: int = Field(default=128, ge=32, le=1024, description="Side length of the square images in pixels.")
    source_images: int = Field(default=1000, ge=1, le=1_000_000, description="Number of annotated images.")
    target_images: int = Field(default=400, ge=1, le=1_000_000, description="Number of tagged images.")


class ProposerSettings(Settings):
    """Architecture and training of the proposer, torchvision's Faster R-CNN with a feature pyramid."""

    backbone: str = Field(
        default="efficientnet-lite0",
        description="Name of the backbone: efficientnet-lite0, -lite1, -lite2, resnet50, or a timm model.",
    )
    pretrained: bool = Field(default=True, description="Start the backbone from its ImageNet weights.")
    class_agnostic: bool = Field(
        default=False, description="Train with one class, object, instead of the source classes."
    )
    image_size: int = Field(
        default=320, ge=32, le=2048, description="Length of the longer side of an image inside the network, in pixels."
    )
    pyramid: int = Field(default=128, ge=8, le=512, description="Number of channels of the feature pyramid.")
    levels: int = Field(default=4, ge=1, le=4, description="Number of pyramid levels; the coarsest has stride 32.")
    anchor: int = Field(
        default=24, ge=4, le=512, description="Side length of the smallest anchors in pixels; doubles at every level."
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
    frozen: bool = Field(default=False, description="Freeze everything except the box head; needs initial weights.")
    crop: float = Field(
        default=1.0, gt=0, le=1, description="Random crops of training images keep at least this fraction of each side."
    )
    epochs: int = Field(
        default=3, ge=1, le=1000, description="Number of epochs; after long training, unknown classes are rejected."
    )
    batch: int = Field(default=16, ge=1, le=1024, description="Number of images per training step.")
    optimizer: Literal["sgd", "adamw"] = Field(
        default="adamw", description="Optimizer; sgd needs a learning rate of about 0.01."
    )
    lr: float = Field(default=5e-4, gt=0, le=10, description="Peak learning rate; it decays to zero along a cosine.")
    warm_up: int = Field(default=200, ge=0, description="Number of steps over which the learning rate rises from zero.")
    held_out: float = Field(default=0.05, ge=0, lt=1, description="Fraction of the source images held out.")
    held_classes: int = Field(default=0, ge=0, description="Number of source classes held out to measure recall on.")
    workers: Workers = 0
    seed: Seed = 0


class ExtractSettings(Settings):
    """Extraction of bags from images."""

    proposals: int = Field(default=100, ge=1, le=2000, description="Number of proposals per image.")
    nms: float = Field(default=0.7, gt=0, le=1, description="IoU threshold of non-maximum suppression of proposals.")
    whole_image: bool = Field(default=True, description="Add the box of the whole image as a proposal.")
    class_features: str = Field(default="backbone-roi", description="Class features; bags/features.py lists the names.")
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
    unreadable: Annotated[
        Literal["fail", "skip"],
        Field(description="`fail` stops at an image that cannot be read; `skip` leaves it out."),
        NO_EFFECT,
    ] = "fail"
    workers: Workers = 0


class FeatureSettings(Settings):
    """Features of a proposal that a score function uses."""

    kind: Literal["transfer", "class", "both"] = Field(
        default="both", description="Features of the proposer's box head, of the independent network, or both."
    )
    dimensions: int = Field(
        default=256, ge=0, le=8192, description="Number of principal components to keep; 0 keeps all features."
    )
    geometry: bool = Field(default=True, description="Append position, size and objectness of the box to the features.")


class TrainingSettings(Settings):
    """Stochastic gradient descent on pairs of bags, with early stopping on held-out bags."""

    steps: int = Field(default=1500, ge=1, le=10_000_000, description="Maximum number of steps; few tags need fewer.")
    pairs: int = Field(default=32, ge=1, le=65536, description="Number of pairs of bags per step.")
    optimizer: Literal["adamw", "sgd"] = Field(
        default="adamw", description="Optimizer; the paper uses sgd, which needs a learning rate of about 0.01."
    )
    lr: float = Field(default=2e-3, gt=0, le=10, description="Initial learning rate; it decays to zero along a cosine.")
    foreground: int = Field(default=3, ge=1, le=100, description="Foreground proposals sampled per bag (paper: 3).")
    background: int = Field(default=7, ge=1, le=1000, description="Background proposals sampled per bag (paper: 7).")
    held_out: float = Field(default=0.1, ge=0, lt=1, description="Fraction of the bags held out for early stopping.")


class TransferUnarySettings(Settings):
    """The class-generic unary score."""

    fit: Literal["sampled", "exact"] = Field(
        default="exact", description="Train on sampled proposals, or fit a logistic regression to all of them."
    )
    decay: float = Field(default=1e-3, gt=0, description="Weight decay of the exact fit.")
    tight_iou: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="The labels of the exact fit rise from 0 at background_iou to 1 at this IoU.",
    )


class PairSettings(Settings):
    """The pair score."""

    kind: str = Field(default="cosine", description="Name of the pair score: relation (the paper's network) or cosine.")


class TransferSettings(Settings):
    """The class-generic score functions, learned on the source (paper, eq. source_loss)."""

    images: int = Field(default=5000, ge=2, description="Maximum number of source images to learn from.")
    foreground_iou: Iou = Field(default=0.65, description="Minimum IoU with a box for a proposal to show its class.")
    background_iou: Iou = Field(default=0.5, description="Proposals with a lower IoU with every box are background.")
    features: FeatureSettings = FeatureSettings(dimensions=512)
    unary: TransferUnarySettings = TransferUnarySettings()
    pairs: PairSettings = PairSettings()
    training: TrainingSettings = TrainingSettings(steps=600, pairs=64)
    same_class: float = Field(default=0.5, gt=0, lt=1, description="Fraction of the pairs of bags that share a class.")
    seed: Seed = 0

    @model_validator(mode="after")
    def _ordered(self) -> "TransferSettings":
        if self.background_iou > self.foreground_iou:
            raise ValueError(
                "background_iou is above foreground_iou: a proposal would be both foreground and background"
            )
        if self.background_iou >= self.unary.tight_iou:
            raise ValueError("background_iou is not below unary.tight_iou: no proposal would have an IoU in between")
        return self


class EnergySettings(Settings):
    """The energy that re-localization minimises (paper, eq. reloc_full_opt), and how scores are mixed."""

    alpha: float = Field(default=1.0, ge=0, description="Weight of the pair scores; 0 disables them.")
    alpha_scale: Literal["none", "per_bag"] = Field(
        default="per_bag", description="`per_bag` averages the pair scores over the other bags; `none` sums them."
    )
    lambda1: Fraction = Field(
        default=1.0, description="Weight of the transfer scores in the pair scores; 1 trains no class pair scores."
    )
    lambda2: Fraction = Field(
        default=0.5, description="Weight of the transfer scores in the unary scores; 1 trains no class unary scores."
    )
    max_compared_bags: int = Field(
        default=1024, ge=0, description="Maximum size of the random groups of bags that are compared; 0 compares all."
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
        """Return a copy without pair scores."""
        return self.model_copy(update={"alpha": 0.0})


class SolverSettings(Settings):
    """Algorithm 1 of the paper: mini-problems, then ICM."""

    name: str = Field(default="trws", description="Name of the solver of the mini-problems.")
    k: int = Field(default=4, ge=2, le=1024, description="Number of bags in a mini-problem.")
    iterations: int = Field(default=100, ge=1, description="Maximum number of iterations of the solver.")
    epochs: int = Field(default=10, ge=0, description="Maximum number of passes of ICM over the bags.")


class ClassUnarySettings(Settings):
    """The unary of a class: the fit of its class scores, and the evidence added to them."""

    fit: Literal["sampled", "exact"] = Field(
        default="exact", description="Train on sampled proposals, or fit a logistic regression to all of them."
    )
    decay: float = Field(default=1e-2, gt=0, description="Weight decay of the exact fit.")
    other_tag_weight: float = Field(
        default=1.0, ge=0, description="Weight of the boxes of other tags as negative examples in the exact fit."
    )
    area_penalty: float = Field(
        default=3.0, ge=0, description="Penalty per fraction of the image that a proposal covers beyond one half."
    )
    max_area: float = Field(default=0.9, gt=0, le=1, description="Maximum fraction of the image that a box may cover.")


class ClassTrainingSettings(TrainingSettings):
    """Re-training: which proposals are foreground, and how bags are paired."""

    foreground_iou: float = Field(
        default=0.6, gt=0, le=1, description="Minimum IoU with the selected box for a proposal to be foreground."
    )
    negatives: Fraction = Field(default=0.5, description="Fraction of the pairs whose second bag lacks the tag.")


class BoxSettings(Settings):
    """Refinement of the selected proposals to boxes."""

    voting_iou: float = Field(
        default=0.4, ge=0, lt=1, description="Average proposals whose IoU with the box is at least this; 0 disables it."
    )


class LocalizationSettings(Settings):
    """Warm-up, then re-training and re-localization in turn (paper, sections 4 and 4.2)."""

    rounds: int = Field(default=1, ge=0, le=100, description="Maximum number of re-trainings and re-localizations.")
    folds: int = Field(
        default=4,
        ge=1,
        le=100,
        description="Number of folds; scores for one are trained on the others; 1 disables folds.",
    )
    safeguard: bool = Field(
        default=False, description="Discard a re-training that does not lower the objective; needs folds = 1."
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
            raise ValueError("safeguard needs folds = 1: folds have no common objective")
        if self.safeguard and self.energy.max_compared_bags:
            raise ValueError(
                "safeguard needs energy.max_compared_bags = 0: a group does not have the objective of its class"
            )
        return self


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


class MiSvmSettings(Settings):
    """The baseline `mi-svm`: multiple instance learning with linear support vector machines (Uijlings et al.)."""

    rounds: int = Field(default=1, ge=0, le=100, description="Maximum number of rounds of training and selection.")
    folds: int = Field(
        default=4,
        ge=1,
        le=100,
        description="Number of folds; SVMs for one are trained on the others; 1 disables folds.",
    )
    objectness_weight: Fraction = Field(
        default=0.5, description="Weight of the proposer's objectness; the rest is the weight of the SVM."
    )
    max_area: float = Field(default=0.9, gt=0, le=1, description="Maximum fraction of the image that a box may cover.")
    features: FeatureSettings = FeatureSettings()
    seed: Seed = 0


class DataSettings(Settings):
    """Source and target: generated scenes, or files in any supported format."""

    scenes: SceneSettings | None = Field(default=None, description="Generate scenes instead of reading files.")
    source: Path | None = Field(default=None, description="Annotations of the source, a file or folder.")
    source_images: Path | None = Field(default=None, description="Folder with the images of the source.")
    source_format: str = Field(default="auto", description="Format of the source; `auto` recognises it.")
    target: Path | None = Field(
        default=None, description="Tags of the target, a file or folder; its boxes are ignored."
    )
    target_images: Path | None = Field(default=None, description="Folder with the images of the target.")
    target_format: str = Field(default="auto", description="Format of the target; `auto` recognises it.")
    truth: Path | None = Field(default=None, description="Ground-truth boxes of the target, used for evaluation only.")
    allow_overlap: bool = Field(default=False, description="Allow classes that occur in both source and target.")

    @model_validator(mode="after")
    def _one_kind(self) -> "DataSettings":
        if self.scenes is not None and (self.source or self.target or self.truth):
            raise ValueError("data.scenes cannot be combined with data.source, target or truth: scenes bring their own")
        if self.scenes is None and not self.target:
            raise ValueError("data.target is missing: set it, or data.scenes")
        return self


class RunSettings(Settings):
    """All settings of a run, as in a TOML file."""

    data: DataSettings
    weights: str | None = Field(default=None, description="Weights to use instead of a source: coco63, or a folder.")
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
    device: Device = Field(default="auto", description="Device to compute on; `auto` uses a GPU if there is one.")
    memory: float = Field(default=8.0, gt=0, le=1e6, description="Maximum gigabytes of features kept in memory.")
    processes: int = Field(default=1, ge=1, le=256, description="Number of processes for learning on a CPU.")

    @model_validator(mode="after")
    def _something_to_learn_from(self) -> "RunSettings":
        if self.weights is None and self.data.scenes is None and self.data.source is None:
            raise ValueError("data.source is missing: set it, data.scenes, or weights")
        if self.weights is not None and (self.data.scenes or self.data.source):
            raise ValueError(
                "weights cannot be combined with data.source or data.scenes: they were learned on a source"
            )
        if len(set(self.methods)) < len(self.methods):
            raise ValueError("methods lists one method twice: remove one")
        if "fine-tuned" in self.methods and "full" not in self.methods[: self.methods.index("fine-tuned")]:
            raise ValueError("the method 'fine-tuned' starts from the boxes of 'full': list it after 'full'")
        return self
