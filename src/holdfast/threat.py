"""The threat: what an attacker may alter, and by how much. One grammar everywhere."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Literal, get_args

from holdfast.errors import ConfigError
from holdfast.numbers import parse_number
from holdfast.spec import PictureOf

Norm = Literal["linf", "l2"]
LEVEL = 1 / 255
"""The least difference between two values of an 8-bit file."""
Who = Literal["query", "candidates", "both"]

GRAMMAR = (
    "[query|candidates|both:]NORM:EPS[:m=M], for example linf:8/255, query:linf:0.1, candidates:linf:0.1:m=5"
)


@dataclass(frozen=True)
class Threat:
    """Images within `eps` of the true ones in `norm`, inside [0, 1]; who is altered, and how many at most.

    `size` is eps as it was written. `eps` is None for `auto`: the largest that can be certified.
    `most` limits how many candidates are altered; None: all of them.
    """

    norm: Norm
    eps: float | None
    who: Who = "query"
    most: int | None = None
    size: str = ""

    def __post_init__(self) -> None:
        if self.norm not in get_args(Norm):
            raise ConfigError(f"unknown norm '{self.norm}' in a threat; write {GRAMMAR}")
        if self.who not in get_args(Who):
            raise ConfigError(f"a threat alters the query, the candidates or both, not '{self.who}'")
        largest = math.inf if self.norm == "l2" else 1.0
        if self.eps is not None and not (0 <= self.eps <= largest and math.isfinite(self.eps)):
            most = (
                "is 0 or more, and finite" if self.norm == "l2" else "lies between 0 and 1 (the image domain)"
            )
            raise ConfigError(f"eps {most}, not {self.size or self.eps}")
        if self.most is not None and (self.who != "candidates" or self.most < 0):
            raise ConfigError(
                f"m limits altered candidates and is 0 or more; found m={self.most} for {self.who}"
            )

    def __str__(self) -> str:
        limit = "" if self.most is None else f":m={self.most}"
        size = self.size or ("auto" if self.eps is None else repr(float(self.eps)))
        return f"{self.who}:{self.norm}:{size}{limit}"

    @property
    def remark(self) -> str | None:
        """One line for an eps that no 8-bit file can be altered by; None for any other."""
        if self.eps is None or self.eps >= LEVEL or self.eps == 0:
            return None
        return (
            f"8-bit files differ by whole levels of 1/255 = {floored(LEVEL)}: within "
            f"{self.norm}:{self.size or self.eps} such a file cannot be altered at all"
        )

    def altered(self, picture: PictureOf | None = None) -> str:
        """Who is altered, for people; with `picture` also whether the file is meant or what the network is given."""
        file = " file" if picture == "file" else ""
        some = f"every candidate{file}" if self.most is None else f"at most {self.most} candidate{file}s"
        who = {
            "query": f"the query{file}",
            "candidates": some,
            "both": f"the query{file} and every candidate{file}",
        }
        return who[self.who] + (", as the network sees it," if picture == "network input" else "")

    @classmethod
    def parse(cls, text: str) -> Threat:
        """The threat that `text` describes in the grammar above."""
        found = re.fullmatch(r"(?:(\w+):)?(linf|l2):([^:]+)(?::m=([0-9]{1,9}))?", text.strip())
        if found is None:
            raise ConfigError(f"'{text}' is not a threat; write {GRAMMAR}")
        who, norm, size, most = found.groups()
        eps = None if size == "auto" else parse_eps(size)
        return cls(norm, eps, who or "query", None if most is None else int(most), size)  # type: ignore[arg-type]


def parse_eps(text: str) -> float:
    """A number, or a fraction such as 8/255."""
    try:
        above, slash, below = text.partition("/")
        eps = parse_number(above) / (parse_number(below) if slash else 1.0)
        if eps == 0 and re.search("[1-9]", re.split("[eE/]", above)[0]):
            raise ValueError("too small for a float")
        if eps >= 0 and "-" in (above[:1], below[:1]):
            raise ValueError("a sign that means nothing")
        return eps
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"eps is a number or a fraction such as 8/255, not '{text}'") from None


def floored(value: float, digits: int = 4) -> str:
    """The largest decimal of so many digits that is not above `value`: a proof is never shown longer than it is."""
    exact = Context(prec=400, rounding=ROUND_FLOOR)
    return f"{Decimal(float(value)).quantize(Decimal(1).scaleb(-digits), context=exact):f}"
