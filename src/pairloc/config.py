"""Settings: typed, frozen, and strict about keys they do not know."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """The base of all settings: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SceneSettings(Settings):
    """Generated scenes; the same settings give the same pictures."""

    seed: Annotated[int, Field(ge=0)] = 0
    size: Annotated[int, Field(ge=32, le=1024)] = 128  # px, pictures are square
    source_images: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    target_images: Annotated[int, Field(ge=1, le=1_000_000)] = 400


class ProposerSettings(Settings):
    """The proposer: torchvision's Faster R-CNN on a feature pyramid, and how it is trained."""

    backbone: str = "efficientnet-lite0"  # or resnet50, or any timm model with feature maps
    pretrained: bool = True  # efficientnet-lite0 comes with a package; others are downloaded
    class_agnostic: bool = False  # one class "object" instead of the source classes
    image_size: Annotated[int, Field(ge=32, le=2048)] = 320  # px of the longer side
    pyramid: Annotated[int, Field(ge=8, le=512)] = 128  # channels of the feature pyramid
    levels: Annotated[int, Field(ge=1, le=4)] = 4  # of the pyramid, the coarsest is of stride 32
    anchor: Annotated[int, Field(ge=4, le=512)] = 24  # px, side of the smallest anchors; doubled at every level
    roi: Annotated[int, Field(ge=1, le=14)] = 7  # side of a pooled region
    head: Annotated[int, Field(ge=8, le=4096)] = 1024  # width of the box head, and d of the transferred feature
    sampled_rois: Annotated[int, Field(ge=8, le=2048)] = 256  # regions a training image
    crop: Annotated[float, Field(gt=0, le=1)] = 1.0  # a training picture is cut to at least this share of its sides
    epochs: Annotated[int, Field(ge=1, le=1000)] = 6
    batch: Annotated[int, Field(ge=1, le=1024)] = 16
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: Annotated[float, Field(gt=0, le=10)] = 0.01
    schedule: Literal["cosine", "step"] = "cosine"
    warm_up: Annotated[int, Field(ge=0)] = 200  # steps in which the learning rate rises
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    clip: Annotated[float, Field(gt=0)] = 10.0  # of the gradient's norm
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.05  # share of the source images it never sees
    held_classes: Annotated[int, Field(ge=0)] = 0  # source classes not taught; recall is then measured on them alone
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
