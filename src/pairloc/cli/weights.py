"""Commands about weights: what is packaged, what it knows, and whether it is intact."""

from pathlib import Path
from typing import Annotated

import typer

weights_app = typer.Typer(help="Weights: what is packaged, what it knows, how it was made.", no_args_is_help=True)
Name = Annotated[
    str, typer.Argument(metavar="WEIGHTS", help="coco63, a folder that `Localizer.save` wrote, or the folder of a run.")
]


@weights_app.command("list")
def weights_list() -> None:
    """List the weights in the package."""
    from pairloc.weights.catalogue import describe, packaged

    for name in packaged():
        found = describe(name)
        print(f"{name:10} {found.bytes / 1e6:.0f} MB, {found.backbone}, knows {len(found.classes)} classes by name")


@weights_app.command("info")
def weights_info(
    name: Name = "coco63",
    config: Annotated[
        bool, typer.Option("--config", help="Print the settings they were made with, as TOML for `pairloc run`.")
    ] = False,
) -> None:
    """Print the card of weights and the classes they know, or the settings that made them."""
    from pairloc.weights.catalogue import describe, made_with

    if config:
        print(made_with(name), end="")
        return
    found = describe(name)
    print(found.card or f"{name}: weights without a card")
    print(f"folder: {found.folder}")
    print(f"size: {found.bytes / 1e6:.1f} MB, backbone {found.backbone}")
    print(f"learned how much each piece of evidence counts: {'yes' if found.evidence else 'no'}")
    print(f"classes known by name ({len(found.classes)}): {', '.join(found.classes)}")


@weights_app.command("make")
def weights_make(
    source: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a finished run, or other weights.")],
    out: Annotated[Path, typer.Option(help="Folder to write. It must be new, empty, or written by this command.")],
    evidence: Annotated[
        Path | None,
        typer.Option(help="Folder of weights whose learned evidence and confidence are taken instead."),
    ] = None,
) -> None:
    """Write the weights of a run into a folder of their own, in a quarter of the space, for `localize --weights`."""
    from pairloc.weights.catalogue import describe
    from pairloc.weights.packing import make

    make(source, out, evidence=evidence)
    found = describe(str(out))
    print(f"{out}: {found.bytes / 1e6:.1f} MB, {found.backbone}, knows {len(found.classes)} classes by name")


@weights_app.command("verify")
def weights_verify(name: Name = "coco63") -> None:
    """Check that no file of weights has changed since they were written. The exit status is 1 if one has."""
    from pairloc.weights.catalogue import changed, describe

    lines = changed(name)
    for line in lines:
        print(line)
    if lines:
        raise typer.Exit(1)
    print(f"{describe(name).folder}: no file has changed since it was written")
