"""Adding and removing single items of a gallery, with the pictures that were uploaded for them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from holdfast.files import atomic_write
from holdfast.gallery import Boxes, Gallery, Item
from holdfast.gallery.bounding import stored_boxes
from holdfast.gallery.leftovers import is_picture, picture_name, pictures_of, uploading
from holdfast.service.engine import Pixels, Served, shortened
from holdfast.service.pictures import digest_of
from holdfast.service.problems import ConflictError, ForbiddenError, NotThereError, NotUnderstoodError

LONGEST = 512


def check_id(id: str) -> None:
    """Refuse an id that could not be asked for again by its address."""
    parts = id.split("/")
    if not id.isprintable() or id != id.strip() or not 0 < len(id) <= LONGEST:
        raise NotUnderstoodError(
            f"an id is 1 to {LONGEST} printable characters without spaces around them, not '{shortened(id)}'"
        )
    if any(part in ("", ".", "..") for part in parts) or parts[-1] == "image":
        raise NotUnderstoodError(
            f"between its slashes an id has names other than '.', '..' and, at its end, 'image'; "
            f"'{shortened(id)}' has not"
        )


def add_item(
    served: Served, content: bytes, pixels: Pixels, id: str, label: str | None, *, replace: bool = False
) -> tuple[Item, int]:
    """Embed a picture into the gallery under `id`; gives the item and the gallery's generation.

    The picture is on the disk before the gallery says so. An id that is there is a ConflictError unless `replace`.
    """
    _check_writable(served)
    check_id(id)
    if label is not None and (not label.isprintable() or not 0 < len(label) <= LONGEST):
        raise NotUnderstoodError(f"a label is 1 to {LONGEST} printable characters, not '{shortened(label)}'")
    vectors = served.embedder.embed_candidates(pixels[None]).numpy()
    path = pictures_of(served.where) / picture_name(id, digest_of(content))
    item = Item(id, label, str(path.resolve()), digest_of(content))

    def add(gallery: Gallery) -> tuple[Item | None, int]:
        old = gallery.get(id) if id in gallery else None
        if old is not None and not replace:
            raise ConflictError(
                f"gallery '{served.name}' has an item '{shortened(id)}' already; say replace=true to replace it"
            )
        boxes = _boxes(served, pixels, gallery.info.boxes)
        with uploading(path.parent):
            existed = path.exists()
            atomic_write(path, content)
            try:
                gallery.add(
                    [id],
                    vectors,
                    labels=[label],
                    paths=[item.path],
                    digests=[item.digest],
                    boxes=boxes,
                    replace=replace,
                )
            except BaseException:
                if not existed:
                    with suppress(OSError):
                        path.unlink()
                raise
            return old, gallery.info.generation

    old, generation = served.use(add)
    if old is not None and old.path != item.path:
        _drop_picture(served, old)
    return item, generation


def remove_item(served: Served, id: str) -> int:
    """Take an item out of the gallery, and its picture if it was uploaded; gives the gallery's generation."""
    _check_writable(served)

    def remove(gallery: Gallery) -> tuple[Item, int]:
        if id not in gallery:
            raise NotThereError(f"gallery '{served.name}' has no item '{shortened(id)}'")
        item = gallery.get(id)
        gallery.remove([id])
        return item, gallery.info.generation

    item, generation = served.use(remove)
    _drop_picture(served, item)
    return generation


def _boxes(served: Served, pixels: Pixels, sizes: Sequence[float]) -> dict[float, Boxes]:
    if not sizes:
        return {}
    certifier = served.certifier
    if certifier is None:
        raise ConflictError(
            f"gallery '{served.name}' has boxes of its candidates, and its model can no longer be bounded"
        )
    return {eps: stored_boxes(certifier, pixels[None], eps) for eps in sizes}


def _check_writable(served: Served) -> None:
    if not served.writable:
        raise ForbiddenError(f"gallery '{served.name}' is served for reading only (start with --writable)")


def _drop_picture(served: Served, item: Item) -> None:
    """Delete a picture that was uploaded; one that was indexed from elsewhere belongs to someone else."""
    if item.path is None:
        return
    path = Path(item.path)
    if path.parent == pictures_of(served.where).resolve() and is_picture(path):
        with suppress(OSError):
            path.unlink()
