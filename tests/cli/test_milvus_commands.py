"""The commands with a gallery in Milvus: they say what they say of a file."""

from __future__ import annotations

import json
import socket
import time

import pytest
from command import here


@pytest.fixture(params=["lite", "server"])
def address(request, tmp_path):
    if request.param == "lite":
        return f"milvus-lite:{tmp_path}/shop.db/shop"
    return f"milvus://{request.getfixturevalue('milvus_server')}/shop"


def said(*words):
    done = here(*words, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_a_gallery_in_milvus_answers_as_a_file(shop, address, tmp_path):
    file = tmp_path / "same.gallery"
    query = sorted(shop.pictures.rglob("*.png"))[7]
    made = [
        said("index", shop.run, shop.pictures, "--out", out, "--boxes", "linf:0.01")
        for out in (file, address)
    ]
    assert [(one["count"], one["added"], one["boxes"]) for one in made] == [(60, 60, [0.01])] * 2
    for words in ((), ("--certify", "linf:0.1", "--keep"), ("--certify", "candidates:linf:0.01")):
        answers = [said("search", out, query, "-k", 5, *words) for out in (file, address)]
        assert answers[0] == answers[1]
    verdicts = {hit["verdict"] for hit in said("search", address, query, "--certify", "linf:1e-6")[0]["hits"]}
    assert "CERTIFIED" in verdicts
    info = said("gallery", "info", address)
    assert (info["gallery"], info["images"], info["index"]) == (address, 60, "FLAT")
    assert (info["boxes"], info["certificates"]) == ([0.01], 1)
    again = said("index", shop.run, shop.pictures, "--out", address)
    assert (again["added"], again["unchanged"]) == (0, 60)
    first = said("search", address, query, "-k", 1)[0]["hits"][0]["id"]
    removed = said("gallery", "remove", address, first)
    assert (removed["removed"], removed["certificates"]["kept"]) == (1, 1)
    assert f"has no item '{first}'; nothing was removed" in here("gallery", "remove", address, first).err
    assert said("gallery", "compact", address) == {"gallery": address, "bytes": None}
    assert said("gallery", "verify", address) == {"gallery": address, "problems": [], "swept": []}
    assert here("gallery", "verify", address).out == f"{address} is sound\n"
    assert len(said("gallery", "certificates", address)) == 1


def test_an_approximate_index_is_named(shop, tmp_path):
    address = f"milvus-lite:{tmp_path}/shop.db/shop"
    said("index", shop.run, shop.pictures, "--out", f"{address}?index=HNSW&M=8")
    assert said("gallery", "info", address)["index"] == "HNSW"
    query = next(shop.pictures.rglob("*.png"))
    assert len(said("search", address, query, "--certify", "linf:0.1", "-k", 3)[0]["hits"]) == 3


def test_nobody_answers(shop):
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    query = next(shop.pictures.rglob("*.png"))
    address = f"milvus://127.0.0.1:{port}/shop"
    for words in (
        ("search", address, query),
        ("index", shop.run, shop.pictures, "--out", address),
        ("gallery", "info", address),
    ):
        begun = time.monotonic()
        done = here(*words)
        assert done.code == 2
        assert (
            done.err.strip()
            .splitlines()[-1]
            .endswith(
                f"could not reach a Milvus server at 127.0.0.1:{port}; start it, or check the address ({address})"
            )
        )
        assert len(done.err.strip().splitlines()) == 1
        assert time.monotonic() - begun < 15


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("milvus://127.0.0.1:19530", "is not milvus://HOST:PORT/NAME"),
        ("milvus://127.0.0.1:port/shop", "is not milvus://HOST:PORT/NAME"),
        (
            "milvus://127.0.0.1/my-shop",
            "named by letters, digits and single '_', a letter first, not 'my-shop'",
        ),
        ("milvus://127.0.0.1/a__b", "not 'a__b'"),
        ("milvus://127.0.0.1/shop?index=MAGIC", "unknown index 'MAGIC'; known: FLAT, HNSW, IVF_FLAT"),
        ("milvus://127.0.0.1/shop?index=HNSW&M=x", "M is a whole number above 0"),
        ("milvus-lite:shop", "is not milvus://HOST:PORT/NAME"),
        ("milvus-lite:none.db/shop", "there is no gallery at milvus-lite:none.db/shop"),
    ],
)
def test_addresses_that_say_nothing(address, problem, tmp_path):
    done = here("gallery", "info", address, cwd=tmp_path)
    assert done.code == 2
    assert problem in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_another_process_has_the_file(tmp_path):
    from holdfast.gallery import EmbedderInfo, create_gallery

    address = f"milvus-lite:{tmp_path}/shop.db/shop"
    with create_gallery(address, dim=4, embedder=EmbedderInfo("a" * 64)):
        from command import holdfast

        done = holdfast("gallery", "info", address)
        assert done.code == 2
        assert "another process has it open" in done.err
    assert here("gallery", "info", address).code == 0
