import pytest
import torch

from pairloc.bags.features import EXTRACTORS, check_class_features, feature_extractor
from pairloc.detector.backbones import Maps, lite_weights
from pairloc.errors import InputError


@pytest.mark.parametrize("name", ["backbone-roi", "backbone-crops", "none"])
def test_features_of_an_image_do_not_depend_on_its_batch(name: str) -> None:
    extractor = feature_extractor(name)
    torch.manual_seed(0)
    images = [torch.rand(3, 50, 70), torch.rand(3, 64, 64)]
    boxes = [torch.tensor([[0.0, 0.0, 70.0, 50.0], [10.0, 10.0, 40.0, 30.0]]), torch.zeros(0, 4)]
    together = extractor(images, boxes)
    assert [features.shape for features in together] == [(2, extractor.d), (0, extractor.d)]
    (alone,) = extractor(images[:1], boxes[:1])
    torch.testing.assert_close(together[0], alone, atol=1e-4, rtol=1e-4)


def test_unknown_class_features_are_refused() -> None:
    for name in EXTRACTORS:
        check_class_features(name)
    for function in (check_class_features, feature_extractor):
        with pytest.raises(InputError, match="no class features 'magic'; known are backbone-roi"):
            function("magic")


def test_the_backbone_loads_the_packaged_imagenet_weights() -> None:
    """Every parameter of the feature maps is the packaged one, and the maps have the expected strides."""
    import timm

    network = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    network.load_state_dict(lite_weights())
    maps = Maps("efficientnet-lite0", pretrained=True, levels=4)
    expected = dict(network.named_parameters())
    loaded = dict(maps.body.named_parameters())
    assert len(loaded) > 100
    for name, parameter in loaded.items():
        assert torch.equal(parameter, expected[name.replace("blocks_", "blocks.")]), name
    levels = maps(torch.zeros(1, 3, 64, 64))
    assert [level.shape[1:] for level in levels] == [(24, 16, 16), (40, 8, 8), (112, 4, 4), (320, 2, 2)]
