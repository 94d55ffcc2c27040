"""What each command prints and leaves behind when all is well."""

from __future__ import annotations

import json
import shutil
import tarfile

from command import here as holdfast
from PIL import Image

from holdfast import __version__
from holdfast.gallery import Gallery, verify_file


def test_train_leaves_a_checkpoint_a_config_and_a_log(shop):
    names = {path.name for path in shop.run.iterdir()}
    assert {"config.toml", "log.jsonl", "state.safetensors", "model.safetensors", "card.json"} <= names
    card = json.loads((shop.run / "card.json").read_text())
    assert card["data"] == "fashion-mnist-mini"
    assert 0 < card["metrics"]["hit_rate_1"] <= 1


def test_search_prints_a_table_and_the_query_is_nearest_to_itself(shop):
    query = sorted(shop.pictures.rglob("*.png"))[7]
    done = holdfast("search", shop.gallery, query, "-k", 3)
    assert done.code == 0, done.err
    first = done.out.splitlines()[2].split()
    assert first[0] == "1"
    assert str(query.relative_to(shop.pictures)).split("/")[-1] in done.out.splitlines()[2]
    assert "0.0000" in done.out.splitlines()[2]


def test_json_is_one_document_on_stdout(shop):
    query = next(shop.pictures.rglob("*.png"))
    found = json.loads(holdfast("search", shop.gallery, query, "--json").out)
    assert [hit["rank"] for hit in found[0]["hits"]] == list(range(1, 11))
    listed = json.loads(holdfast("data", "list", "--json").out)
    assert "fashion-mnist-mini" in {entry["name"] for entry in listed}
    assert json.loads(holdfast("data", "info", "fashion-mnist-mini", "--json").out)["classes"] == 10
    assert json.loads(holdfast("gallery", "info", shop.gallery, "--json").out)["images"] == 60


def test_search_page_shows_the_pictures(shop, tmp_path):
    query = next(shop.pictures.rglob("*.png"))
    done = holdfast("search", shop.gallery, query, "-k", 4, "--html", tmp_path / "hits.html")
    assert done.code == 0, done.err
    assert (tmp_path / "hits.html").read_text().count("data:image/") == 5


def test_index_again_adds_updates_and_prunes(shop, tmp_path):
    pictures = tmp_path / "pictures"
    shutil.copytree(shop.pictures, pictures)
    gallery = tmp_path / "g.gallery"
    first = json.loads(holdfast("index", shop.run, pictures, "--out", gallery, "--json").out)
    assert (first["added"], first["unchanged"]) == (60, 0)
    files = sorted(pictures.rglob("*.png"))
    files[0].unlink()
    Image.new("L", (28, 28), 90).save(files[1])
    Image.new("RGB", (50, 20), "red").save(pictures / "loose.jpg")
    (pictures / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no")
    again = json.loads(holdfast("index", shop.run, pictures, "--out", gallery, "--prune", "--json").out)
    assert [again[key] for key in ("added", "updated", "unchanged", "removed", "count")] == [1, 1, 58, 1, 60]
    assert [entry["id"] for entry in again["skipped"]] == ["broken.jpg"]
    assert "sound" in holdfast("gallery", "verify", gallery).out


def test_two_folders_are_told_apart(shop, tmp_path):
    for name, colour in (("one", "red"), ("two", "blue")):
        (tmp_path / name).mkdir()
        Image.new("RGB", (30, 30), colour).save(tmp_path / name / "img.png")
    gallery = tmp_path / "g.gallery"
    assert holdfast("index", shop.run, tmp_path / "one", "--out", gallery).code == 0
    clash = holdfast("index", shop.run, tmp_path / "two", "--out", gallery)
    assert clash.code == 2
    assert "--prefix" in clash.err
    both = holdfast(
        "index", shop.run, tmp_path / "two", "--prefix", "two/", "--prune", "--out", gallery, "--json"
    )
    assert json.loads(both.out)["count"] == 2, "what is in another folder is not pruned"


def test_a_moved_folder_keeps_its_vectors_and_gets_its_new_paths(shop, tmp_path):
    shutil.copytree(shop.pictures, tmp_path / "before")
    gallery = tmp_path / "g.gallery"
    assert holdfast("index", shop.run, tmp_path / "before", "--out", gallery).code == 0
    (tmp_path / "before").rename(tmp_path / "after")
    again = json.loads(holdfast("index", shop.run, tmp_path / "after", "--out", gallery, "--json").out)
    assert (again["updated"], again["added"], again["count"]) == (60, 0, 60)
    with Gallery.open(gallery, readonly=True) as opened:
        assert all("/after/" in (item.path or "") for item in opened.catalogue().values())


def test_an_image_that_broke_leaves_the_gallery(shop, tmp_path):
    shutil.copytree(shop.pictures, tmp_path / "pictures")
    gallery = tmp_path / "g.gallery"
    assert holdfast("index", shop.run, tmp_path / "pictures", "--out", gallery).code == 0
    next((tmp_path / "pictures").rglob("*.png")).write_bytes(b"broken")
    again = json.loads(holdfast("index", shop.run, tmp_path / "pictures", "--out", gallery, "--json").out)
    assert (again["removed"], again["count"], len(again["skipped"])) == (1, 59, 1)


def test_a_tar_is_indexed_and_its_pictures_are_shown(shop, tmp_path):
    with tarfile.open(tmp_path / "pictures.tar", "w") as archive:
        archive.add(shop.pictures, "pictures")
        again = next(shop.pictures.rglob("*.png"))
        archive.add(again, f"pictures/{again.relative_to(shop.pictures)}")
    gallery = tmp_path / "g.gallery"
    done = json.loads(holdfast("index", shop.run, tmp_path / "pictures.tar", "--out", gallery, "--json").out)
    assert done["count"] == 60
    found = holdfast(
        "search", gallery, next(shop.pictures.rglob("*.png")), "-k", 3, "--html", tmp_path / "h.html"
    )
    assert found.code == 0, found.err
    assert (tmp_path / "h.html").read_text().count("data:image/") == 4


def test_gallery_cache_and_snapshot(shop, tmp_path):
    gallery, copy = tmp_path / "g.gallery", tmp_path / "copy.gallery"
    shutil.copy(shop.gallery, gallery)
    made = json.loads(holdfast("gallery", "cache", gallery, "--json").out)
    assert made["read"] == made["blocks"] > 0
    assert f"0 of {made['blocks']} blocks new" in holdfast("gallery", "cache", gallery).out
    done = json.loads(holdfast("gallery", "snapshot", gallery, copy, "--json").out)
    assert (done["images"], done["bytes"]) == (60, copy.stat().st_size)
    assert verify_file(copy) == []
    again = holdfast("gallery", "snapshot", gallery, copy)
    assert (again.code, len(again.err.splitlines())) == (2, 1)
    assert "is there already; choose another name" in again.err
    vectors = next((tmp_path / "g.gallery-cache").glob("vector.f4"))
    content = bytearray(vectors.read_bytes())
    content[5000] ^= 1
    vectors.write_bytes(content)
    damaged = holdfast("gallery", "verify", gallery)
    assert (damaged.code, "the cache of column 'vector' is damaged" in damaged.out) == (1, True)


def test_gallery_remove_and_compact(shop, tmp_path):
    gallery = tmp_path / "g.gallery"
    shutil.copy(shop.gallery, gallery)
    some = json.loads(holdfast("search", gallery, next(shop.pictures.rglob("*.png")), "--json").out)[0][
        "hits"
    ][0]["id"]
    assert "removed 1" in holdfast("gallery", "remove", gallery, some).out
    assert holdfast("gallery", "compact", gallery).code == 0
    assert json.loads(holdfast("gallery", "info", gallery, "--json").out)["images"] == 59
    again = holdfast("gallery", "remove", gallery, some)
    assert again.code == 2
    assert "nothing was removed" in again.err


def test_evaluate_and_report(shop):
    done = holdfast("evaluate", shop.run, "--queries", 200, "--candidates", 300, "--k", "1,10", "--json")
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert summary["queries"] == 200
    assert set(summary["hit_rate"]) == {"1", "10"}
    assert summary["hit_rate"]["1"] > 0.4
    again = holdfast("evaluate", shop.run, "--queries", 200, "--candidates", 300, "--k", "1,10")
    assert f"{summary['hit_rate']['10']:.3f}" in again.out
    report = holdfast("report", shop.run, "--json")
    assert json.loads(report.out)["report"].endswith("report.html")
    assert "Retrieval on fashion-mnist-mini" in (shop.run / "report.html").read_text()


def test_a_model_moved_is_named_with_an_option(shop, tmp_path):
    run = tmp_path / "moved"
    shutil.copytree(shop.run, run)
    gallery = tmp_path / "g.gallery"
    assert holdfast("index", run, shop.pictures, "--out", gallery).code == 0
    shutil.rmtree(run)
    query = next(shop.pictures.rglob("*.png"))
    lost = holdfast("search", gallery, query)
    assert lost.code == 2
    assert "--model" in lost.err
    assert holdfast("search", gallery, query, "--model", shop.run).code == 0


def test_version_and_help_need_no_torch():
    done = holdfast("--version")
    assert done.out.strip() == f"holdfast {__version__}"
    assert "evaluate" in holdfast("--help").out


def test_certify_prints_three_numbers_and_keeps_rows(shop, tmp_path):
    words = ("certify", shop.run, "--threat", "query:linf:1/255", "--threat", "candidates:linf:1/255:m=1")
    done = holdfast(
        *words, "--queries", 30, "--candidates", 60, "--k", "1,20", "--out", tmp_path / "c", "--json"
    )
    assert done.code == 0, done.err
    table = json.loads(done.out)["table"]
    assert [line["threat"] for line in table] == ["query:linf:1/255"] * 2 + ["candidates:linf:1/255:m=1"] * 2
    assert all(0 <= line["cr_recall"] <= line["certified_hit_rate"] <= line["recall"] <= 1 for line in table)
    bad = holdfast("certify", shop.run, "--threat", "query:linf:7")
    assert bad.code == 2
    assert "eps lies between 0 and 1" in bad.err


def test_certify_finds_the_largest_eps(shop, tmp_path):
    words = ("certify", shop.run, "--queries", 6, "--candidates", 20, "--k", "1,10", "--threat")
    done = holdfast(*words, "query:linf:auto", "--out", tmp_path / "c")
    assert done.code == 0, done.err
    assert "median largest eps" in done.out
    assert [line.split()[0] for line in done.out.splitlines()[2:4]] == ["1", "10"]
    again = json.loads(holdfast(*words, "query:linf:auto", "--out", tmp_path / "c", "--json").out)
    assert [line["eps"][:3] for line in again["table"]] == [[0, 0.01, 0.02]] * 2
    assert all(line["certified"][0] <= line["clean"] for line in again["table"])
    bad = holdfast(*words, "query:linf:auto", "--threat", "query:linf:0.1")
    assert bad.code == 2
    assert "by itself" in bad.err


def test_search_with_certificates(shop, tmp_path):
    query = next(shop.pictures.rglob("*.png"))
    done = holdfast("search", shop.gallery, query, "-k", 3, "--certify", "linf:0")
    assert done.code == 0, done.err
    assert "rank interval" in done.out
    assert "CERTIFIED" in done.out
    found = json.loads(holdfast("search", shop.gallery, query, "--certify", "linf:1/255", "--json").out)[0]
    assert all(hit["best"] <= hit["rank"] <= hit["worst"] for hit in found["hits"])
    shown = holdfast(
        "search", shop.gallery, query, "-k", 3, "--certify", "linf:auto", "--html", tmp_path / "hits.html"
    )
    assert shown.code == 0, shown.err
    page = (tmp_path / "hits.html").read_text()
    assert page.count("data:image/") == 4
    assert page.count("rank 1–") >= 1
    assert "the largest ε found" in page
    bad = holdfast("search", shop.gallery, query, "--certify", "candidates:linf:0.1")
    assert bad.code == 2


def test_candidate_boxes_and_kept_certificates(shop, tmp_path):
    pictures, gallery = tmp_path / "pictures", tmp_path / "g.gallery"
    shutil.copytree(shop.pictures, pictures)
    made = holdfast("index", shop.run, pictures, "--out", gallery, "--boxes", "linf:1/255")
    assert made.code == 0, made.err
    assert "boxes of altered candidates: linf:0.00392157" in made.out
    query = next(pictures.rglob("*.png"))
    done = holdfast("search", gallery, query, "-k", 3, "--certify", "both:linf:1/255", "--keep")
    assert done.code == 0, done.err
    assert f"certificates kept in {gallery}: 1" in done.out
    smaller = holdfast("search", gallery, query, "-k", 3, "--certify", "candidates:linf:0.001:m=2")
    assert "the candidates' boxes for linf:0.00392157, which hold those of 0.001" in smaller.out
    shutil.copy(query, pictures / "twin.png")
    again = json.loads(holdfast("index", shop.run, pictures, "--out", gallery, "--json").out)
    assert again["boxes"] == [1 / 255]
    assert again["certificates"]["kept"] == 1
    assert "'twin.png'" in str(again["certificates"]["changed"][0]["changes"])
    removed = holdfast("gallery", "remove", gallery, "twin.png")
    assert "1 of 1 kept certificates changed" in removed.out
    listed = json.loads(holdfast("gallery", "certificates", gallery, "--json").out)
    assert [(one["query"], one["threat"], one["current"]) for one in listed] == [
        (str(query), "both:linf:1/255", True)
    ]
    gone = holdfast("gallery", "certificates", gallery, "--forget", query)
    assert "keeps no certificates" in gone.out
    assert verify_file(gallery) == []


def test_boxes_and_keep_say_what_they_take(shop, tmp_path):
    bad = holdfast("index", shop.run, shop.pictures, "--out", tmp_path / "g", "--boxes", "l2:1")
    assert (bad.code, "boxes are for linf:EPS" in bad.err) == (2, True)
    query = next(shop.pictures.rglob("*.png"))
    bad = holdfast("search", shop.gallery, query, "--keep")
    assert (bad.code, "say which with --certify" in bad.err) == (2, True)
    bad = holdfast("search", shop.gallery, query, "--certify", "both:linf:0.1")
    assert (bad.code, "has no boxes of its candidates" in bad.err) == (2, True)


def test_certify_smooths(shop, tmp_path):
    words = ("certify", shop.run, "--queries", 4, "--candidates", 30, "--k", "1,5", "--out", tmp_path / "out")
    how = "sigma=0.2,n=60,first=20,gallery=8,bound=1000"
    done = holdfast(*words, "--smooth", how)
    assert done.code == 0, done.err
    assert "cdf" in done.out
    assert "votes" in done.out
    assert "the search abstains on" in done.out
    assert "queries at once, take alpha=" in done.out
    assert "560 images through the network" in done.err
    table = json.loads(holdfast(*words, "--smooth", how, "--json").out)["table"]
    assert {(line["rule"], line["k"]) for line in table} >= {("paper", 1), ("cdf", 5)}
    bad = holdfast("certify", shop.run, "--smooth", "sigma=0.2")
    assert (bad.code, "not normalised" in bad.err) == (2, True)
    for more in ((), ("--smooth", "sigma=0.1", "--threat", "linf:0.1")):
        bad = holdfast("certify", shop.run, *more)
        assert (bad.code, "give one thing to certify against" in bad.err) == (2, True)
