"""Settings of a whole run, as in a TOML file."""

from pathlib import Path

from pydantic import Field, model_validator

from pairloc.settings.base import Device, Fraction, Seed, Settings
from pairloc.settings.baselines import DeselaersSettings, LsdaSettings, MiSvmSettings, TangSettings
from pairloc.settings.detector import ExtractSettings, FineTuneSettings, ProposerSettings
from pairloc.settings.evidence import EvidenceSettings
from pairloc.settings.learning import TransferSettings
from pairloc.settings.localization import LocalizationSettings
from pairloc.settings.snapping import SnapSettings


class SceneSettings(Settings):
    """Generated scenes: a data set that needs no download."""

    seed: Seed = 0
    size: int = Field(default=128, ge=32, le=1024, description="Side length of the square images in pixels.")
    source_images: int = Field(default=1000, ge=1, le=1_000_000, description="Number of annotated images.")
    target_images: int = Field(default=400, ge=1, le=1_000_000, description="Number of tagged images.")


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
        description="Methods to run, in this order: warm-up-unary, warm-up, unary, full, fine-tuned, snapped, or a "
        "baseline (mi-svm, deselaers, lsda, tang).",
    )
    proposer: ProposerSettings = ProposerSettings()
    extract: ExtractSettings = ExtractSettings()
    transfer: TransferSettings = TransferSettings()
    evidence: EvidenceSettings = EvidenceSettings()
    localization: LocalizationSettings = LocalizationSettings()
    fine_tune: FineTuneSettings = FineTuneSettings()
    snap: SnapSettings = SnapSettings()
    mi_svm: MiSvmSettings = MiSvmSettings()
    deselaers: DeselaersSettings = DeselaersSettings()
    lsda: LsdaSettings = LsdaSettings()
    tang: TangSettings = TangSettings()
    calibrate: bool = Field(
        default=True, description="Calibrate the confidence on source classes that are treated as a target."
    )
    min_confidence: Fraction = Field(
        default=0.0,
        description="Boxes of lower confidence are listed in low-confidence.csv instead of boxes.json; 0 keeps all.",
    )
    seed: Seed = 0
    device: Device = Field(default="auto", description="Device to compute on; `auto` uses a GPU if there is one.")
    memory: float = Field(default=8.0, gt=0, le=1e6, description="Maximum gigabytes of features kept in memory.")
    processes: int = Field(
        default=1, ge=1, le=256, description="Number of processes for extraction and learning on a CPU."
    )
    cluster: str | None = Field(
        default=None,
        min_length=1,
        description="Address of a Ray cluster to work on (docs/how-to/cluster.md), or `local`; by default none.",
    )

    @model_validator(mode="after")
    def _something_to_learn_from(self) -> "RunSettings":
        if self.weights is None and self.data.scenes is None and self.data.source is None:
            raise ValueError("data.source is missing: set it, data.scenes, or weights")
        if self.weights is not None and (self.data.scenes or self.data.source):
            raise ValueError(
                "weights cannot be combined with data.source or data.scenes: they were learned on a source"
            )
        needs_class = self.transfer.features.kind != "transfer"
        if self.weights is None and needs_class and not self.extract.source_class_features:
            raise ValueError("extract.source_class_features is false, but transfer.features uses class features")
        if self.weights is None and self.extract.class_features == "none":
            groups = {"transfer": self.transfer.features, "localization": self.localization.features}
            for name, features in groups.items():
                if features.kind == "class":
                    raise ValueError(f"{name}.features.kind is class, but extract.class_features is none")
        if len(set(self.methods)) < len(self.methods):
            raise ValueError("methods lists one method twice: remove one")
        if "fine-tuned" in self.methods and "full" not in self.methods[: self.methods.index("fine-tuned")]:
            raise ValueError("the method 'fine-tuned' starts from the boxes of 'full': list it after 'full'")
        if "snapped" in self.methods and (self.methods[-1] != "snapped" or "full" not in self.methods):
            raise ValueError(
                "the method 'snapped' moves the boxes of 'full' or 'fine-tuned': list it last, with 'full'"
            )
        return self
