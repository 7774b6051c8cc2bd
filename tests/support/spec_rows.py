"""Rows of SPEC.md as the code would write them; a test compares, and prints what is missing."""

from __future__ import annotations

import inspect as python

import msgspec
from msgspec import inspect

from aiops_protocol import limits
from aiops_protocol.connection import RECEIVABLE, TRANSITIONS
from aiops_protocol.greeting import Purpose, Role
from aiops_protocol.handshake import ADMITTED

SPELLED_TEXTS = {64: "word", 128: "key", 1024: "text"}


def spelled(kind: inspect.Type) -> str:
    """A field type in the words of SPEC.md."""
    match kind:
        case inspect.Metadata(type=inner):
            return spelled(inner)
        case inspect.BoolType():
            return "bool"
        case inspect.NoneType():
            return "nil"
        case inspect.BytesType():
            return "bytes"
        case inspect.IntType(ge=low, le=high):
            if high is None:
                return "int" if low is None else "mark"
            return "port" if high == 65535 else "count"
        case inspect.FloatType(ge=low):
            return "float" if low is None else "seconds"
        case inspect.StrType(max_length=most, pattern=None):
            return SPELLED_TEXTS[most or 0]
        case inspect.StrType(min_length=least, pattern=pattern):
            return "host" if "%" in (pattern or "") else "name" if least else "new name"
        case inspect.ListType(item_type=item, max_length=most):
            return f"[{spelled(item)}] to {most}"
        case inspect.DictType(key_type=key, value_type=value, max_length=most):
            return f"{{{spelled(key)}: {spelled(value)}}} to {most}"
        case inspect.TupleType(item_types=items):
            return f"({', '.join(map(spelled, items))})"
        case inspect.UnionType(types=types):
            return " or ".join(map(spelled, types))
        case inspect.StructType(cls=cls):
            return cls.__name__
        case _:
            raise AssertionError(f"SPEC.md has no word for {kind}")


def _default(field: inspect.Field) -> str:
    if field.required:
        return ""
    if field.default_factory is not msgspec.NODEFAULT:
        return " = {}" if field.default_factory is dict else " = []"
    match field.default:
        case bool() | None:
            return {None: " = nil", True: " = true", False: " = false"}[field.default]
        case str(text):
            return f' = "{text}"'
        case number:
            return f" = {number}"


def message_row(cls: type[msgspec.Struct]) -> str:
    """The row of a control message or of a part of one."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    fields = "; ".join(
        f"`{field.encode_name}` {spelled(field.type)}{_default(field)}" for field in info.fields
    )
    first = (python.getdoc(cls) or "").splitlines()[0]
    who, _, says = first.partition(": ") if cls.senders else ("part", "", first)  # type: ignore[attr-defined]
    return f"| `{cls.__name__}` | {who.lower()} | {fields or 'none'} | {says} |"


def transition_rows() -> list[str]:
    """The table of states."""
    return [
        f"| {state.name} | {cause.value} | {after.name} |"
        for (state, cause), after in TRANSITIONS.items()
    ]


def diagram() -> str:
    """The same, as a drawing."""
    arrows = [
        f"    {state.name} --> {after.name}: {cause.value}"
        for (state, cause), after in TRANSITIONS.items()
        if state is not after
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> HANDSHAKE", *arrows, "```"])


def receivable_rows() -> list[str]:
    """Which kinds each end may receive."""
    return [
        f"| {purpose.name} | {side.value} | "
        + ", ".join(kind.name for kind in sorted(kinds))
        + " |"
        for (purpose, side), kinds in RECEIVABLE.items()
    ]


def admitted_rows() -> list[str]:
    """Who may dial whom for what."""
    return [
        f"| {Role(accepting).name} | {Purpose(purpose).name} | "
        + ", ".join(role.name for role in sorted(dialling))
        + " |"
        for (accepting, purpose), dialling in ADMITTED.items()
    ]


def limit_values() -> dict[str, float]:
    """Every limit by name."""
    units = {"KiB", "MiB"}
    return {
        name: value
        for name, value in vars(limits).items()
        if isinstance(value, int | float) and not name.startswith("_") and name not in units
    }
