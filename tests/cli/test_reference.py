"""The page of settings says what the settings are."""

from pathlib import Path

from pairloc.cli.reference import settings_page
from pairloc.settings import RunSettings, Settings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_is_what_is_generated() -> None:
    assert PAGE.read_text(encoding="utf-8") == settings_page(), "python -m pairloc.cli.reference > docs/settings.md"


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
