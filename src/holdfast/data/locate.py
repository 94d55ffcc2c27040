"""Finding a named data set on this machine."""

from __future__ import annotations

from pathlib import Path

from holdfast.data.registry import DATASETS, DatasetInfo
from holdfast.data.settings import data_folders, fetched_folder
from holdfast.errors import DataError, unknown_name


def find(info: DatasetInfo, folders: tuple[Path, ...] | None = None) -> Path | None:
    """The folder or tar that holds the set, or None; the first match in the first folder counts."""
    for folder in data_folders() if folders is None else folders:
        for pattern in info.patterns:
            for path in sorted(folder.glob(pattern)):
                if path.suffix == ".tar" and path.is_file():
                    return path
                if path.is_dir() and any(next(path.glob(marker), None) for marker in info.markers):
                    return path
    return None


def require(info: DatasetInfo) -> Path:
    """Where the set is, or one line that says how to get it."""
    found = find(info)
    if found is None:
        raise DataError(f"{info.name} is not on this machine; {how_to_get(info)}")
    return found


def how_to_get(info: DatasetInfo) -> str:
    """What a person can do to have the set."""
    by_command = f"run 'holdfast data fetch {info.name}', or " if info.origins else ""
    return f"{by_command}{by_hand(info)}"


def by_hand(info: DatasetInfo) -> str:
    """What to do where no origin works."""
    return f"{info.manual} (a data folder is one that HOLDFAST_DATA names, or {fetched_folder()})"


def resolve(name_or_path: str) -> tuple[DatasetInfo | None, Path]:
    """The set and the place that `name_or_path` means: NAME, NAME:PATH, or a path (no set).

    A registered name wins over a folder of the same name; write ./NAME for the folder.
    """
    name, colon, rest = name_or_path.partition(":")
    if not colon and name in DATASETS:
        return DATASETS[name], require(DATASETS[name])
    if colon and name in DATASETS:
        path = Path(rest).expanduser()
        if not rest or not path.exists():
            raise DataError(
                f"there is nothing at '{rest}' for {name}; write {name}:PATH with a folder or tar"
            )
        return DATASETS[name], path
    path = Path(name_or_path).expanduser()
    if name_or_path and path.exists():
        return None, path
    if "/" in name_or_path or name_or_path.endswith(".tar"):
        raise DataError(f"there is no folder or tar at {name_or_path}; check the path")
    raise DataError(
        unknown_name("data set", name_or_path, DATASETS) + "; and there is no folder of that name here"
    )


def absolute(name_or_path: str) -> str:
    """`name_or_path` with its path, if it has one, from the root: the same from every folder."""
    info, path = resolve(name_or_path)
    if name_or_path in DATASETS:
        return name_or_path
    return str(path.resolve()) if info is None else f"{info.name}:{path.resolve()}"
