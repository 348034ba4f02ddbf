# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Units of GPU memory, and Kubernetes quantities as whole numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from gpushare_runtime.core.bounds import quote

_QUANTITY: Final = re.compile(r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:([eE][+-]?[0-9]{1,2})|([numkMGTPE]|[KMGTPE]i))?")
# Kubernetes itself writes at most some twenty.
_DIGITS: Final = 64
_PLAIN: Final = 18
_SUFFIX: Final = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{s: Fraction(10 ** (3 * i)) for i, s in enumerate("kMGTPE", 1)},
    **{s: Fraction(1024**i) for i, s in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
RESOURCE_RULE: Final = "extended resources are counted in whole units"


@dataclass(frozen=True)
class Unit:
    """The size that one id of `aliyun.com/gpu-mem` stands for.

    name: as written in flags, `gpushare/gpus` and messages ("GiB", "64MiB"); mib: its size in MiB.
    """

    name: str
    mib: int

    def count(self, mib: int) -> int:
        """Whole units in `mib` MiB of one GPU; memory that does not fill a unit is not published."""
        return mib // self.mib

    def amount(self, units: int) -> str:
        """So many units, for people: "24 GiB", "100 x 64 MiB"."""
        return f"{units} {self.name}" if self.name in ("GiB", "MiB") else f"{units} x {self}"

    def __str__(self) -> str:
        return f"1 {self.name}" if self.name in ("GiB", "MiB") else self.name.replace("MiB", " MiB")


GIB: Final = Unit("GiB", 1024)
UNITS: Final = {u.name: u for u in (GIB, Unit("MiB", 1), Unit("64MiB", 64), Unit("128MiB", 128), Unit("256MiB", 256))}


def parse_unit(name: str) -> Unit:
    """The unit of that name; ValueError lists the names that exist."""
    try:
        return UNITS[name]
    except KeyError:
        raise ValueError(f"memory unit {quote(name)} is not known; use one of {', '.join(UNITS)}") from None


def parse_quantity(value: object) -> int:
    """A Kubernetes quantity ("8", 8, "10G", "1e3") as a whole number; negative ones keep their sign.

    ValueError if it is not a quantity or not whole: extended resources are counted, not measured.
    """
    if isinstance(value, str) and len(value) <= _PLAIN and value.isascii() and value.isdigit():
        # Nearly all: no fractions are needed.
        return int(value)
    number = _fraction(value)
    if number.denominator != 1:
        raise ValueError(f"{quote(value)} is not a whole number; {RESOURCE_RULE}")
    return number.numerator


def parse_cpu(value: object, most: int) -> int:
    """A Kubernetes quantity of CPU ("4", "500m", 0.5) in thousandths of a CPU, rounded up as Kubernetes does; `most` where it is more.

    ValueError if it is not a quantity, or negative.
    """
    thousandths = -(-1000 * _fraction(str(value) if isinstance(value, float) else value) // 1)
    if thousandths < 0:
        raise ValueError(f"{quote(value)} is negative; write how many CPUs, such as 4")
    return min(thousandths, most)


def _fraction(value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"{quote(value)} is not a quantity; write a whole number such as 8")
    if isinstance(value, int):
        return Fraction(value)
    match = _QUANTITY.fullmatch(value) if len(value) <= _DIGITS else None
    if match is None:
        raise ValueError(f"{quote(value)} is not a quantity; write a whole number such as 8")
    sign, digits, exponent, suffix = match.groups()
    number = Fraction(digits)
    if exponent:
        number *= Fraction(10) ** int(exponent[1:])
    elif suffix:
        number *= _SUFFIX[suffix]
    return -number if sign == "-" else number
