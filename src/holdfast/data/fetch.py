"""Getting a named data set onto this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

from holdfast.data.locate import by_hand, find
from holdfast.data.registry import DatasetInfo, dataset_info
from holdfast.data.settings import fetched_folder
from holdfast.errors import DataError
from holdfast.files import exclusive, storage_error


def fetch(name: str, *, into: str | Path | None = None) -> Path:
    """Where the set is, after fetching it if need be.

    Without `into` it may be anywhere that is looked through, and is fetched into the cache; with `into` it is
    looked for, and fetched, in that data folder only. The set's folder appears once it is complete.
    """
    info = dataset_info(name)
    folder = fetched_folder() if into is None else Path(into).expanduser()
    found = find(info, None if into is None else (folder,))
    if found is not None:
        return found
    if not info.origins:
        raise DataError(f"{name} cannot be fetched; {by_hand(info)}")
    try:
        with exclusive(folder / ".fetch", f"fetching {name}"):
            return _obtain(info, folder)
    except OSError as cause:
        raise storage_error(folder, cause) from cause


def _obtain(info: DatasetInfo, folder: Path) -> Path:
    target = folder / info.name
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target} is there but is not {info.name}; move it away and fetch again")
    failures = []
    for number, origin in enumerate(info.origins):
        # Each origin has a place of its own, where a cut download waits to go on.
        staging = folder / ".fetch" / f"{info.name}.{number}"
        try:
            origin.get(staging)
        except DataError as cause:
            failures.append(f"{origin.describe()}: {cause}")
            continue
        staging.replace(target)
        for left in (folder / ".fetch").glob(f"{info.name}.[0-9]*"):
            shutil.rmtree(left)
        return target
    raise DataError(f"{info.name} could not be fetched ({'; '.join(failures)}); {by_hand(info)}")
