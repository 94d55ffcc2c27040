"""The methods by which bounds certify rankings: what each is called, tries, and costs."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import ConfigError, unknown_name


@dataclass(frozen=True)
class BoundMethod:
    """How hard bounds try where the boxes of two embeddings leave their order open."""

    name: str
    words: str
    """One line for help."""
    proves: str
    """By what it proves, for a report."""
    exact: bool = True
    """Whether two candidates are compared with each other, not only their distances to the query."""
    last_layer: bool = False
    """Whether they are also compared over the box before the last linear layer; for an altered query only."""
    linear: bool = False
    """Whether backward linear bounds of the whole network are tried last; for an altered query only."""
    in_search: bool = True
    written: str = ""
    """Its name in the settings of rows, where that is another one: rows of before are then of the same settings."""

    @property
    def stored(self) -> str:
        """Its name in the settings of rows."""
        return self.written or self.name

    @property
    def needs_network(self) -> bool:
        """Whether it asks the network again for what its first box leaves open."""
        return self.last_layer or self.linear


_ALL = (
    BoundMethod(
        "paper",
        "Eq. 17 and 18 of Kakizaki et al.",
        "comparing lower and upper bounds of distances (Eq. 17 and 18)",
        exact=False,
        in_search=False,
    ),
    BoundMethod("interval", "exact over the box", "exact comparison over the boxes of embeddings"),
    BoundMethod(
        "last-layer",
        "also before the last layer",
        "exact comparison over the boxes of embeddings and, if the last layer is linear, of what it sees",
        last_layer=True,
        written="elided",
    ),
    BoundMethod(
        "crown",
        "also backward linear bounds, about a pass of the network for each open pair",
        "exact comparison over boxes, and backward linear bounds of the network for pairs that these leave open",
        last_layer=True,
        linear=True,
    ),
)
METHODS = {method.name: method for method in _ALL}
IN_SEARCH = tuple(method.name for method in _ALL if method.in_search)
NAMED_BEFORE = tuple(method.stored for method in _ALL if method.stored != method.name)
"""Names of before, which are still read."""
_NAMED = METHODS | {method.stored: method for method in _ALL}


def bound_method(name: str) -> BoundMethod:
    """The method of this name, or of the name that it had before."""
    if name not in _NAMED:
        raise ConfigError(unknown_name("method", name, METHODS))
    return _NAMED[name]


def in_words(names: tuple[str, ...] = IN_SEARCH) -> str:
    """What these methods try, for help."""
    return "; ".join(f"{name}: {METHODS[name].words}" for name in names)
