"""Everything Holdfast raises on purpose.

The message of each error is one line that says what was wrong and what to do. The command line
prints it and exits with code 2; nothing is half-written when one of these is raised.
"""

from __future__ import annotations


class HoldfastError(Exception):
    """The root of all errors that Holdfast raises on purpose.

    `option` names the setting that it is about, as the parameter of a function is called, with a value where one helps.
    The message itself speaks of no command line; that adds its own word for the option.
    """

    def __init__(self, message: str = "", *, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option


class ConfigError(HoldfastError):
    """A setting is unknown, of the wrong type, or contradicts another."""


class DataError(HoldfastError):
    """A data set is missing, empty, or not in the layout it should have."""


class ImageError(DataError):
    """One image could not be read."""


class DecoderError(HoldfastError):
    """A process that decodes images does not work; it says nothing about the image."""


class ModelError(HoldfastError):
    """An embedder is unknown, or does not fit the images it was given."""


class CheckpointError(ModelError):
    """A checkpoint is missing, cut short, altered, or not a checkpoint at all."""


class GalleryError(HoldfastError):
    """A gallery is missing, damaged, or belongs to another embedder."""


class RunError(HoldfastError):
    """A run's folder cannot be used: in use, finished, or of another config."""


class StorageError(HoldfastError):
    """Writing failed (disk full, no permission); what was there before is intact."""


class OutOfTimeError(HoldfastError):
    """Work was stopped because it took longer than it was given."""


class MissingExtraError(HoldfastError):
    """An optional part of Holdfast is needed and not installed."""

    def __init__(self, what: str, extra: str = "", *, command: str = "") -> None:
        command = command or f"pip install 'holdfast[{extra}]'"
        super().__init__(f"{what} needs an optional part: {command}")


def unknown_name(kind: str, name: str, known: object) -> str:
    """One line for a name that no registry knows; it lists the names that exist."""
    names = ", ".join(sorted(str(entry) for entry in known))  # type: ignore[attr-defined]
    return f"unknown {kind} '{name}'; known: {names}"
