"""Settings: typed, frozen, and strict about keys they do not know."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Settings(BaseModel):
    """The base of all settings: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def known_by(self) -> str:
        """JSON that what these settings make is known by: how many processes read pictures changes nothing of it."""
        known = self.model_copy(update={"workers": 0}) if "workers" in type(self).model_fields else self
        return known.model_dump_json()


class SceneSettings(Settings):
    """Generated scenes; the same settings give the same pictures."""

    seed: Annotated[int, Field(ge=0)] = 0
    size: Annotated[int, Field(ge=32, le=1024)] = 128  # px, pictures are square
    source_images: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    target_images: Annotated[int, Field(ge=1, le=1_000_000)] = 400


class ProposerSettings(Settings):
    """The proposer: torchvision's Faster R-CNN on a feature pyramid, and how it is trained."""

    backbone: str = "efficientnet-lite0"  # or -lite1, -lite2, resnet50, any timm model with feature maps
    pretrained: bool = True  # efficientnet-lite0 comes with the package, -lite1 and -lite2 with their own
    class_agnostic: bool = False  # one class "object" instead of the source classes
    image_size: Annotated[int, Field(ge=32, le=2048)] = 320  # px of the longer side
    pyramid: Annotated[int, Field(ge=8, le=512)] = 128  # channels of the feature pyramid
    levels: Annotated[int, Field(ge=1, le=4)] = 4  # of the pyramid, the coarsest is of stride 32
    anchor: Annotated[int, Field(ge=4, le=512)] = 24  # px, side of the smallest anchors; doubled at every level
    roi: Annotated[int, Field(ge=1, le=14)] = 7  # side of a pooled region
    head: Annotated[int, Field(ge=8, le=4096)] = 1024  # width of the box head, and d of the transferred feature
    sampled_rois: Annotated[int, Field(ge=8, le=2048)] = 256  # regions a training image
    nearby: Annotated[float, Field(ge=0, lt=0.5)] = 0.0  # of those, background overlaps a box by this: see detection.md
    frozen: bool = False  # of weights to start from, the box head alone learns
    crop: Annotated[float, Field(gt=0, le=1)] = 1.0  # a training picture is cut to at least this share of its sides
    epochs: Annotated[int, Field(ge=1, le=1000)] = 3  # longer, it learns to reject what it was not taught
    batch: Annotated[int, Field(ge=1, le=1024)] = 16
    optimizer: Literal["sgd", "adamw"] = "adamw"
    lr: Annotated[float, Field(gt=0, le=10)] = 5e-4  # for sgd take 0.01
    backbone_lr: Annotated[float, Field(ge=0, le=1)] = 1.0  # the backbone's learning rate as a share of lr
    schedule: Literal["cosine", "step"] = "cosine"
    warm_up: Annotated[int, Field(ge=0)] = 200  # steps in which the learning rate rises
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    clip: Annotated[float, Field(gt=0)] = 10.0  # of the gradient's norm
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.05  # share of the source images it never sees
    held_classes: Annotated[int, Field(ge=0)] = 0  # source classes not taught; recall is then measured on them alone
    shared: bool = False  # torchrun's processes train it together; it then depends on how many they are
    workers: Annotated[int, Field(ge=0, le=256)] = 0  # processes that read pictures
    seed: Annotated[int, Field(ge=0)] = 0


class ExtractSettings(Settings):
    """From pictures to bags."""

    proposals: Annotated[int, Field(ge=1, le=2000)] = 100  # B, an image
    nms: Annotated[float, Field(gt=0, le=1)] = 0.7
    whole_image: bool = True  # add the box of the whole picture
    class_features: str = "backbone-roi"  # see bags.features
    batch: Annotated[int, Field(ge=1, le=1024)] = 8  # pictures at a time
    shard: Annotated[int, Field(ge=1, le=100_000)] = 256  # pictures a shard
    unreadable: Literal["fail", "skip"] = "fail"
    workers: Annotated[int, Field(ge=0, le=256)] = 0


class DescentSettings(Settings):
    """Stochastic gradient descent on pairs of bags, as both trainings of score functions do it."""

    steps: Annotated[int, Field(ge=1, le=10_000_000)] = 1500
    pairs: Annotated[int, Field(ge=1, le=65536)] = 32  # of bags a step
    optimizer: Literal["adamw", "sgd"] = "adamw"  # the paper's is sgd with momentum; take an lr of 0.01 with it
    lr: Annotated[float, Field(gt=0, le=10)] = 2e-3
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # of sgd
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    clip: Annotated[float, Field(gt=0)] = 10.0  # of the gradient's norm
    foreground: Annotated[int, Field(ge=1, le=100)] = 3  # proposals of a bag in a step
    background: Annotated[int, Field(ge=1, le=1000)] = 7
    pair_loss: Literal["cross-entropy", "focal"] = "cross-entropy"
    relation: Literal["paper", "released", "cosine"] = "paper"  # pair scores: a relation network, or a cosine
    geometry: bool = False  # place and size of the boxes beside the features; see learning.geometry
    unary: Literal["sampled", "exact"] = "sampled"  # by descent, or by logistic regression on all proposals
    unary_decay: Annotated[float, Field(gt=0)] = 1e-2  # of that regression
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.1  # share of the bags the loss is watched on
    patience: Annotated[int, Field(ge=1)] = 5  # looks at the held-out loss without a new best before the end
    looks: Annotated[int, Field(ge=1, le=1000)] = 20  # at the held-out loss in all


class TransferSettings(DescentSettings):
    """The class-generic score functions, learned on the source (paper, eq. source_loss)."""

    foreground_iou: Annotated[float, Field(gt=0, lt=1)] = 0.5  # with an annotated box: shows its class
    background_iou: Annotated[float, Field(gt=0, lt=1)] = 0.5  # with every annotated box below this: shows none
    tight_iou: Annotated[float, Field(gt=0, le=1)] = 0.9  # an exact unary's label rises from background_iou up to here
    unary_decay: Annotated[float, Field(gt=0)] = 1e-3
    same_class: Annotated[float, Field(gt=0, lt=1)] = 0.5  # share of the pairs of bags that share a class
    features: Literal["transfer", "both"] = "transfer"  # what the transfer scores see
    dimensions: Annotated[int, Field(ge=0, le=8192)] = 0  # principal directions of the features; 0 keeps all
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _ordered(self) -> "TransferSettings":
        if self.background_iou > self.foreground_iou:
            raise ValueError("background_iou is above foreground_iou: a proposal would show an object and none")
        if self.background_iou >= self.tight_iou:
            raise ValueError("background_iou is not below tight_iou: no proposal would be in between")
        return self


class LearningSettings(DescentSettings):
    """Warm-up, then re-training and re-localization in turn (paper, sections 4 and 4.2)."""

    rounds: Annotated[int, Field(ge=0, le=100)] = 3  # T
    folds: Annotated[int, Field(ge=1, le=100)] = 4  # re-train on all but one, re-localize that one; 1 is none
    alpha: Annotated[float, Field(ge=0)] = 1.0  # weight of the pair scores
    alpha_scale: Literal["none", "per_bag"] = "per_bag"  # of their sum, or of their mean over the other bags
    lambda1: Annotated[float, Field(ge=0, le=1)] = 0.5  # share of the transfer scores in the pair scores
    lambda2: Annotated[float, Field(ge=0, le=1)] = 0.5  # the same in the unary scores
    k: Annotated[int, Field(ge=2, le=1024)] = 4  # bags of a mini-problem
    group: Annotated[int, Field(ge=0)] = 0  # bags of a class compared with each other at most, drawn at random; 0: all
    init: Literal["mini-problems", "unary", "random"] = "mini-problems"
    solver: str = "trws"
    iterations: Annotated[int, Field(ge=1)] = 100  # of the solver
    epochs: Annotated[int, Field(ge=0)] = 10  # of ICM at most
    features: Literal["class", "transfer", "both"] = "class"  # what the class scores see
    dimensions: Annotated[int, Field(ge=0, le=8192)] = 0  # principal directions of them; 0 keeps all
    foreground_iou: Annotated[float, Field(gt=0, le=1)] = 0.6  # with the selected box: foreground
    negatives: Annotated[float, Field(ge=0, le=1)] = 0.5  # share of the pairs with a bag that lacks the tag
    rivals: Annotated[float, Field(ge=0)] = 0.0  # weight of what other tags stand for, in exact unary scores
    largest: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of its picture a selected proposal covers at most
    oversize: Annotated[float, Field(ge=0)] = 0.0  # score a proposal loses for the share of its picture beyond one half
    refine: Annotated[float, Field(ge=0, lt=1)] = (
        0.0  # a box is the mean of the proposals that overlap it so; 0: itself
    )
    train_unary: bool = True  # otherwise the class scores are of pairs alone (needs lambda2 = 1)
    train_pairs: bool = True  # otherwise of single proposals alone (needs alpha = 0 or lambda1 = 1)
    safeguard: bool = False  # keep a re-training only if it lowers the objective (needs folds = 1)
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _not_contradictory(self) -> "LearningSettings":
        if self.safeguard and self.folds > 1:
            raise ValueError(
                "safeguard and folds contradict each other: with folds there is not one objective to watch"
            )
        if not self.train_unary and self.lambda2 < 1:
            raise ValueError("train_unary and lambda2 contradict each other: an untrained unary can have no weight")
        if not self.train_pairs and self.alpha > 0 and self.lambda1 < 1:
            raise ValueError(
                "train_pairs and alpha contradict each other: untrained pair scores can have no weight; set lambda1 = 1"
            )
        return self


class FineTuneSettings(Settings):
    """The proposer re-trained on the boxes found, fold by fold: the method `fine-tuned`, which goes on from `full`."""

    epochs: Annotated[int, Field(ge=1, le=1000)] = 12  # of each network at most
    steps: Annotated[int, Field(ge=1, le=1_000_000)] = 400  # and about so many at most: epochs are whole
    batch: Annotated[int, Field(ge=1, le=1024)] = 32
    lr: Annotated[float, Field(gt=0, le=10)] = 3e-4
    warm_up: Annotated[int, Field(ge=0)] = 50  # steps in which the learning rate rises
    crop: Annotated[float, Field(gt=0, le=1)] = 0.6  # a picture is cut to at least this share of its sides
    weight: Annotated[float, Field(gt=0)] = 2.0  # of what the networks say beside the scores of `full`
    sure: Annotated[float, Field(gt=0, le=1)] = 0.5  # probability from which a further box of a tag is an instance
    workers: Annotated[int, Field(ge=0, le=256)] = 0  # processes that read pictures
    seed: Annotated[int, Field(ge=0)] = 0


Method = Literal["warm-up-unary", "warm-up", "unary", "full", "mi-svm", "fine-tuned"]


class DataSettings(Settings):
    """Where source and target come from: generated scenes, or files in any format the readers know."""

    scenes: SceneSettings | None = None
    source: Path | None = None  # annotations
    source_images: Path | None = None
    target: Path | None = None  # tags; boxes, where the file has any, are not looked at
    target_images: Path | None = None
    truth: Path | None = None  # boxes of the target, for evaluation alone
    allow_overlap: bool = False  # classes that are in source and target

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
    weights: str | None = None  # "coco63" or the folder of a run: then nothing is learned on a source
    proposer: ProposerSettings = ProposerSettings()
    extract: ExtractSettings = ExtractSettings()
    transfer: TransferSettings = TransferSettings()
    learning: LearningSettings = LearningSettings()
    fine_tune: FineTuneSettings = FineTuneSettings()
    methods: tuple[Method, ...] = (
        "warm-up-unary", "warm-up", "unary", "full",
    )  # fmt: skip
    transfer_images: Annotated[int, Field(ge=2)] = 5000  # source images at most the transfer scores learn from
    seed: Annotated[int, Field(ge=0)] = 0  # of every part that is not given one of its own
    device: Literal["auto", "cpu", "cuda"] = "auto"
    memory: Annotated[float, Field(gt=0)] = 8.0  # GB of features held at a time

    @model_validator(mode="after")
    def _something_to_learn_from(self) -> "RunSettings":
        if self.weights is None and self.data.scenes is None and self.data.source is None:
            raise ValueError("data.source is needed (or data.scenes, or weights that were learned before)")
        if self.weights is not None and (self.data.scenes or self.data.source):
            raise ValueError("weights and data.source contradict each other: weights were learned on a source before")
        if "fine-tuned" in self.methods and "full" not in self.methods[: self.methods.index("fine-tuned")]:
            raise ValueError("the method 'fine-tuned' goes on from 'full': name it after that one")
        return self


PRESETS: dict[str, dict[str, object]] = {
    # what the paper says of its COCO experiment
    "paper": {"rounds": 5, "folds": 1, "k": 4, "alpha": 1.0, "alpha_scale": "none"},
    # where the authors' released program differs
    "released": {
        "rounds": 2, "folds": 10, "k": 4, "alpha": 1.0, "alpha_scale": "none", "lambda1": 0.25, "lambda2": 1.0,
        "train_unary": False, "pair_loss": "focal", "relation": "released", "solver": "greedy-tree", "epochs": 1,
        "foreground_iou": 0.7, "foreground": 2, "background": 8, "lr": 0.01, "pairs": 4,
    },
}  # fmt: skip

# The whole method on generated scenes, for two CPU cores; configs/demo.toml is the same as a file.
DEMO: dict[str, object] = {
    "data": {"scenes": {"source_images": 1000, "target_images": 400}},
    "proposer": {
        "image_size": 128, "pyramid": 64, "levels": 3, "roi": 5, "head": 256, "sampled_rois": 64, "lr": 1e-3,
        "warm_up": 30, "epochs": 4, "held_out": 0.05,
    },
    "extract": {"proposals": 50},
    "transfer": {"dimensions": 128, "steps": 600},
    "learning": {
        "features": "both", "dimensions": 128, "steps": 300, "lr": 5e-3, "rounds": 2, "folds": 3, "k": 8, "alpha": 2.0,
        "lambda1": 0.5, "lambda2": 0.25,
    },
    "transfer_images": 800,
}  # fmt: skip
# What `--fast` changes in it, for CI: less of everything.
FAST: dict[str, dict[str, object]] = {
    "data": {"scenes": {"source_images": 400, "target_images": 120}},
    "proposer": {"epochs": 2},
    "transfer": {"steps": 200},
    "learning": {"steps": 60, "rounds": 1, "folds": 2, "k": 4},
}
