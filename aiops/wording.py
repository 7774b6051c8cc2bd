"""How values of users and peers are put into errors and log lines: short, on one line, always.

What a message says stays readable whatever was passed; the value itself is with whoever passed it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["listed", "shown"]

SHOWN_CHARACTERS_MAX: Final = 200
"""Enough to know a value again; two or three such values still fit a screen."""

LISTED_MAX: Final = 20
"""Names of a list that are said; the number of the others follows."""


def shown(value: object) -> str:
    """Return the `repr` of any value in one line, cut where it is long."""
    size = ""
    if isinstance(value, str | bytes) and len(value) > SHOWN_CHARACTERS_MAX:
        size = f" ({len(value):,} long)"
        value = value[:SHOWN_CHARACTERS_MAX]
    try:
        text = repr(value)
    except Exception:  # an object of somebody else's, or a number of more than 4300 digits
        text = f"<{type(value).__name__}>"
    text = " ".join(text.split())
    if len(text) > SHOWN_CHARACTERS_MAX:
        text = text[: SHOWN_CHARACTERS_MAX - 3] + "..."
    return text + size


def listed(names: Iterable[object], separator: str = ", ") -> str:
    """Return names with separators between; of a long list the first ones, and how many more."""
    texts = [str(name) for name in names]
    more = len(texts) - LISTED_MAX
    if more <= 1:  # "and 1 more" would say less than the name
        return separator.join(texts)
    return f"{separator.join(texts[:LISTED_MAX])}{separator}and {more} more"
