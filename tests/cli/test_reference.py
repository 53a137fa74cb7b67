"""The generated reference pages."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pairloc.cli.reference import cli_page, settings_page
from pairloc.cli.reference_api import api_page
from pairloc.settings import RunSettings, Settings

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize(("name", "page"), [("settings", settings_page), ("cli", cli_page), ("api", api_page)])
def test_pages_are_up_to_date(name: str, page: Callable[[], str]) -> None:
    current = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert current == page(), "run python -m pairloc.cli.reference docs/reference"


def every_field(kind: type[Settings]) -> list[tuple[str, str | None]]:
    found = []
    for name, field in kind.model_fields.items():
        value = field.default
        if isinstance(value, Settings):
            found += every_field(type(value))
        elif name not in ("data", "scenes"):
            found.append((f"{kind.__name__}.{name}", field.description))
    return found


def test_every_setting_is_described_in_a_sentence() -> None:
    for name, description in every_field(RunSettings):
        assert description, name
        assert description[0].isupper() or description[0] in "`(" or description.split()[0].islower(), name
        assert description.endswith((".", ")")), name
