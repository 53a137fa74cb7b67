"""From an annotated data set and tagged pictures to boxes, in a notebook's few lines.

    .venv/bin/python examples/quickstart.py

Draws small scenes first, so that it runs as it is (about two minutes on two CPU cores); replace the paths by your own.
"""

import tempfile
from pathlib import Path

from pairloc import Localizer
from pairloc.curation.scenes import write_scenes
from pairloc.formats.reading import read
from pairloc.settings import ExtractSettings, LearningSettings, ProposerSettings, SceneSettings, TransferSettings

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    write_scenes(folder, SceneSettings(source_images=300, target_images=60))
    tagged = read(folder / "target_tags.csv")

    localizer = Localizer(
        proposer=ProposerSettings(image_size=128, pyramid=64, levels=3, roi=5, head=256, sampled_rois=64, lr=1e-3),
        extract=ExtractSettings(proposals=50),
        transfer=TransferSettings(dimensions=128, steps=300),
        learning=LearningSettings(features="both", dimensions=128, steps=100, rounds=1, folds=2),
    )
    localizer.fit(folder / "source.json")
    pictures = [tagged.path(index) for index in range(len(tagged))]
    boxes = localizer.localize(pictures, [tagged.names(index) for index in range(len(tagged))])

    assert localizer.dataset_ is not None
    for image, label, box in list(zip(boxes.image, boxes.label, boxes.boxes.round(), strict=True))[:10]:
        print(pictures[image].name, localizer.dataset_.classes[label], box.tolist())
