"""Durations, cores and bytes, as numbers or as they are written in a spec."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Union

from . import errors

Duration = Union[float, str]
"""Seconds, or text as in a spec: `"30s"`, `"1h30m"`."""
Cores = Union[float, str]
"""`0.5`, or text as in a spec: `"500m"`."""
Bytes = Union[int, str]
"""`64 << 20`, or text as in a spec: `"64Mi"`."""

SECONDS_MAX = 1e9
_UNIT_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+)s)?(?:(\d+)ms)?")


def seconds(value: Duration, name: str, *, may_be_zero: bool = False) -> float:
    """A duration of the argument `name`; above 0 unless `may_be_zero`."""
    if isinstance(value, str):
        found = _DURATION.fullmatch(value)
        if found is None or not value:
            raise _bad(name, value, 'seconds, or text with d h m s ms, large to small, such as "30s" or "1h30m"')
        whole = (int(part) * unit for part, unit in zip(found.groups(), _UNIT_SECONDS.values()) if part)
        total = float(sum(whole))
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _bad(name, value, 'seconds, or text such as "30s"')
    else:
        total = float(value)
    if not 0 <= total < SECONDS_MAX or (total == 0 and not may_be_zero):
        raise errors.make("bad_request", f"`{name}` is {value!r}: it must be above 0")
    return total


def cores(value: Cores | None, name: str) -> str:
    """As it is sent; empty for none."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e6:
        raise _bad(name, value, 'cores above 0, or text such as "500m"')
    thousandths = Decimal(str(value)) * 1000
    if thousandths != int(thousandths):
        raise _bad(name, value, "cores with at most 3 places")
    return f"{int(thousandths)}m"


def size(value: Bytes | None, name: str) -> str:
    """As it is sent; empty for none."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 63:
        raise _bad(name, value, 'whole bytes above 0, or text such as "64Mi"')
    return str(value)


def _bad(name: str, value: object, expected: str) -> errors.Error:
    return errors.make("bad_request", f"`{name}` is {value!r:.80}: expected {expected}")
