"""Learn from an annotated data set and find boxes in tagged images, as in a notebook.

    .venv/bin/python examples/quickstart.py

It generates small scenes first, so that it runs as it is (about two minutes on two CPU cores). Replace their paths with
your own.
"""

import tempfile
from pathlib import Path

from pairloc import Localizer, evaluate, read
from pairloc.curation.scenes import write_scenes
from pairloc.presets import demo_settings
from pairloc.settings import SceneSettings

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    write_scenes(folder, SceneSettings(source_images=400, target_images=80))
    tagged = read(folder / "target_tags.csv")
    images = [tagged.path(index) for index in range(len(tagged))]
    tags = [tagged.names(index) for index in range(len(tagged))]

    small = demo_settings(fast=True)  # settings for small generated scenes; omit them for real images
    localizer = Localizer(
        proposer=small.proposer, extract=small.extract, transfer=small.transfer, localization=small.localization
    )
    localizer.fit(folder / "source.json")
    found = localizer.localize(images, tags)

    for image in list(found)[:5]:
        for box in image.boxes:
            print(
                Path(image.file).name, box.tag, [round(coordinate) for coordinate in box.box], f"{box.confidence:.2f}"
            )
    for row, score in zip(*found.alternatives(0, tags[0][0], 3), strict=True):
        print("alternative", row.round().tolist(), f"{score:.2f}")
    print(f"CorLoc@0.5 {100 * evaluate(found, folder / 'target_truth.json').mean:.1f}")
