"""Values as they may stand in a log line: bounded, plain, and unable to break out of it.

Here lives the translation of any object into JSON data and of that into text. It is the one place
that decides what of a payload, an exception or a peer's string is shown; `logs` builds lines of it.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from math import isfinite
from typing import Any, Final

import numpy as np

TEXT_CHARACTERS_MAX: Final = 2_000
"""The longest value of a field: error texts with a list of ranks fit, a payload does not."""

HEX_BYTES_MAX: Final = 32
"""Bytes shown of anything binary: enough to recognise a stranger's protocol, not a payload."""

ITEMS_MAX: Final = 64
"""Items shown of a list or mapping: the ranks a barrier waits for, not the keys of a table."""

_DEPTH_MAX: Final = 4


def plain(value: object, depth: int = 0) -> Any:
    """Turn any object into bounded JSON data, without ever writing a payload out.

    Parameters
    ----------
    value
        Anything. Arrays become their type and shape, bytes a short hexadecimal piece, numbers that
        are not finite their names; what has no better form its `repr`.
    depth
        How deep in a nested value this one lies; past the limit it becomes its `repr`.

    Returns
    -------
    data : None, bool, int, float, str, list or dict
        What `json.dumps` takes as it is.
    """
    match value:
        case enum.Enum():
            return value.name
        case None | bool():
            return value
        case int():
            # Python refuses to print an integer of more than 4,300 digits.
            return int(value) if value.bit_length() <= 128 else _cut(hex(value))
        case float():
            return float(value) if isfinite(value) else str(float(value))
        case str():
            return _cut(str(value))
        case bytes() | bytearray() | memoryview():
            return _hex(value)
        case np.ndarray():
            return f"{value.dtype}{list(value.shape)}"
        case np.generic():
            item = value.item()  # of a longdouble it is itself
            return _cut(str(value)) if isinstance(item, np.generic) else plain(item, depth)
        case BaseException():
            return _cut(f"{type(value).__name__}: {_show(str, value)}")
        case dict() if depth < _DEPTH_MAX:
            items = list(value.items())[:ITEMS_MAX]
            more = {"...": f"{len(value) - ITEMS_MAX} more"} if len(value) > ITEMS_MAX else {}
            return {_cut(_show(str, name)): plain(item, depth + 1) for name, item in items} | more
        case list() | tuple() | set() | frozenset() | range() if depth < _DEPTH_MAX:
            rest = [f"... {len(value) - ITEMS_MAX} more"] if len(value) > ITEMS_MAX else []
            return [plain(item, depth + 1) for item in list(value)[:ITEMS_MAX]] + rest
        case _:
            return _cut(_show(repr, value))


def console_value(value: Any) -> str:
    """Show a value that `plain` returned so that it cannot be taken for anything but one value.

    A word stands as it is. Everything else is JSON: quoted, so that a space or an equals sign in a
    name forges no field; and escaped down to ASCII if any character in it is not printable (a line
    break, ESC, a mark that reverses the direction of text).
    """
    if isinstance(value, str) and value.isprintable() and value and not set(value) & set(' ="'):
        return value
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if text.isprintable() else ascii_json(value)


def ascii_json(value: Any) -> str:
    """Return a value as JSON of printable ASCII: no terminal that shows it obeys what is in it."""
    # DEL is the one control character that json leaves as it is.
    return json.dumps(value, separators=(",", ":")).replace("\x7f", "\\u007f")


def _show(convert: Callable[[object], str], value: object) -> str:
    try:
        return convert(value)
    except Exception:  # a log line must not fail because of what it shows
        return f"<{type(value).__name__} that cannot be shown>"


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[: TEXT_CHARACTERS_MAX - 3] + "..."


def _hex(data: bytes | bytearray | memoryview) -> str:
    raw = data.tobytes() if isinstance(data, memoryview) else data
    return raw[:HEX_BYTES_MAX].hex() + ("..." if len(raw) > HEX_BYTES_MAX else "")
