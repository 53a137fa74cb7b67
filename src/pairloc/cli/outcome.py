"""Verbs that say what a result is worth."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pairloc.cli.options import Format


def evaluate(
    boxes: Annotated[Path, typer.Argument(help="Found boxes: COCO JSON with scores, or COCO results.")],
    truth: Annotated[Path, typer.Option("--truth", help="The true boxes of the same images.")],
    iou: Annotated[list[float] | None, typer.Option("--iou", help="A threshold; may be given more than once.")] = None,
    at_least: Annotated[bool, typer.Option("--at-least", help="IoU at the threshold is enough (>=, not >).")] = False,
    against: Annotated[
        Path | None, typer.Option("--against", help="Other boxes of the same images, to compare with.")
    ] = None,
    format: Format = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """CorLoc of any boxes, with intervals, per class, and where it is lost."""
    from pairloc.data.reading import read_annotated
    from pairloc.evaluation.table import evaluation_of
    from pairloc.evaluation.table import evaluation_text as text

    found: dict[str, Any] = evaluation_of(
        boxes, *read_annotated(truth, format), tuple(iou or (0.5, 0.7)), strict=not at_least, against=against
    )
    print(json.dumps(found) if as_json else text(found))
