"""Bad input: one line that says what was wrong and what to do, exit code 2, nothing half-written."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time

import pytest
from command import here as holdfast
from PIL import Image

from holdfast import data
from holdfast.errors import DataError
from holdfast.training.log import read_log


def refused(*words, says, cwd=None):
    done = holdfast(*words, cwd=cwd)
    lines = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert done.code == 2, (done.code, done.out, done.err)
    assert len(lines) == 1, done.err
    assert says in lines[0], done.err
    assert "Traceback" not in done.err


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (30, 30), "blue").save(path)
    return path


def test_train_on_what_is_not_there(tmp_path):
    out = tmp_path / "run"
    refused("train", "--data", "nothing", "--out", out, says="nothing")
    refused("train", "--data", tmp_path / "none", "--out", out, says="none")
    refused("train", "--config", tmp_path / "none.toml", "--out", out, says="no config file")
    refused("train", "--model", "huge", "--out", out, says="unknown model 'huge'")
    refused("train", "--defence", "magic", "--out", out, says="unknown defence 'magic'")
    refused("train", "--set", "train.epoch=3", "--out", out, says="unknown config key 'train.epoch'")
    refused("train", "--set", "epochs", "--out", out, says="key=value")
    assert not out.exists()


def test_adversaries_that_cannot_be(tmp_path):
    def wrong(*words, says, defence="ca-tride"):
        out = tmp_path / "run"
        refused("train", "--defence", defence, "--steps", 2, "--out", out, *words, says=says)
        assert not out.exists()

    wrong("--threat", "linf:0", says="eps above 0")
    wrong("--threat", "linf:2", says="between 0 and 1")
    wrong("--threat", "l2:0.5", says="training takes linf:EPS")
    wrong("--set", "defence.attack_steps=0", says="defence.attack_steps")
    wrong("--set", "defence.step=0", says="defence.step")
    wrong("--set", "defence.attention=nan", says="defence.attention")
    wrong("--set", "defence.attention=-5", says="defence.attention")
    wrong("--batch", 3, says="train.batch")
    wrong("--threat", "linf:0.1", says="and triplet has none", defence="triplet")
    wrong("--threat", "linf:0.1", says="give it to each part", defence="mixed")
    wrong("--set", "defence.moves=p", says="'a', 'pn' or 'apn'", defence="adversarial")


def test_pictures_that_are_all_alike_leave_nothing_behind(tmp_path):
    for place in ["a/0", "a/1", "a/2", "b/0", "b/1", "b/2"]:
        path = tmp_path / "black" / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (30, 30)).save(path)
    words = ("train", "--data", tmp_path / "black", "--steps", 2, "--batch", 4, "--out", tmp_path / "run")
    refused(*words, says="the same embedding")
    assert not [path for path in (tmp_path / "run").iterdir() if not path.name.startswith(".")]


def test_a_class_of_one_image_is_said(tmp_path):
    for i, place in enumerate(["a/0", "a/1", "a/2", "b/0", "b/1", "b/2", "c/0"]):
        path = tmp_path / "few" / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((30, 30), 20 + 30 * i).save(path)
    words = ("--defence", "ca-tride", "--set", "defence.attack_steps=1", "--set", "data.validation=0")
    done = holdfast(
        "train", "--data", tmp_path / "few", "--split", "closed", "--steps", 1, "--batch", 4, *words,
        "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "a single image" in done.err


def test_train_on_empty_flat_and_one_class_folders(tmp_path):
    out = tmp_path / "run"
    (tmp_path / "empty").mkdir()
    refused("train", "--data", tmp_path / "empty", "--out", out, says="no images")
    for i in range(6):
        picture(tmp_path / "flat" / f"{i}.png")
        picture(tmp_path / "one" / "class" / f"{i}.png")
    refused("train", "--data", tmp_path / "flat", "--out", out, says="needs labels")
    refused("train", "--data", tmp_path / "one", "--out", out, says="two classes")
    refused("train", "--image-size", 8, "--model", "vgg11", "--out", out, says="vgg11")
    assert not (out / "config.toml").exists()


def test_unreadable_folder(tmp_path, monkeypatch):
    """Root can read every folder, so the refusal is made here rather than by a mode."""
    (tmp_path / "locked").mkdir()

    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match="Permission denied; check its permissions"):
        data.load(str(tmp_path / "locked"))


def test_a_folder_that_is_something_else(shop, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    refused("train", "--out", tmp_path, says="not a run")
    refused("train", "--out", tmp_path / "notes.txt", says="is a file")
    refused("train", "--data", "fashion-mnist-mini", "--steps", 20, "--out", shop.run, says="finished run")
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_run_of_another_config_is_not_continued(shop, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(shop.run, run)
    (run / "card.json").unlink()
    words = ("train", "--data", "fashion-mnist-mini", "--model", "small", "--steps", 20)
    refused(*words, "--seed", 5, "--out", run, says="seed (0 there, 5 asked)")
    assert holdfast(*words, "--out", run).code == 0


def test_what_was_left_out_on_resuming_is_as_it_was(tmp_path):
    run = tmp_path / "run"
    words = ("train", "--data", "fashion-mnist-mini", "--out", run)
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from holdfast.cli import main; main()",
            *map(str, words),
            "--steps",
            "150",
            "--set",
            "train.clip=5",
            "--set",
            "train.checkpoint_seconds=0.2",
        ],
        stderr=subprocess.DEVNULL,
    )
    while child.poll() is None and not (run / "state.safetensors").exists():
        time.sleep(0.05)
    child.kill()
    child.wait()
    before = (run / "config.toml").read_text()
    assert holdfast("train", "--out", run).code == 0
    assert (run / "config.toml").read_text() == before
    assert json.loads((run / "card.json").read_text())["config"]["train"]["clip"] == 5
    assert read_log(run / "log.jsonl")[-1]["step"] == 150


def test_paths_that_lead_through_a_file(shop, tmp_path):
    (tmp_path / "file").write_text("x")
    below = tmp_path / "file" / "x"
    query = picture(tmp_path / "q.png")
    refused("train", "--steps", 1, "--out", below, says="file")
    refused("evaluate", shop.run, "--out", below, says="file")
    refused("report", shop.run, "--out", below, says="file")
    refused("search", shop.gallery, query, "--html", below, says="file")
    refused("data", "export", "fashion-mnist-mini", below, says="file")


def test_settings_that_a_network_does_not_take(tmp_path):
    for setting in (
        "model.options.dim=3",
        "model.options.spec=3",
        "model.options.nonsense=1",
        "defence.name=[1]",
    ):
        refused("train", "--set", setting, "--out", tmp_path / "run", says="")
    refused("train", "--set", "train.epochs=inf", "--out", tmp_path / "run", says="train.epochs")
    assert not (tmp_path / "run").exists()


def test_report_of_damaged_files(shop, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(shop.run, run)
    (run / "card.json").write_text("{")
    refused("report", run, says="card.json is damaged")


def test_index_of_nothing(shop, tmp_path):
    gallery = tmp_path / "g.gallery"
    (tmp_path / "empty").mkdir()
    refused("index", shop.run, tmp_path / "empty", "--out", gallery, says="no images")
    refused("index", shop.run, tmp_path / "none", "--out", gallery, says="no folder or tar")
    refused("index", tmp_path, shop.pictures, "--out", gallery, says="checkpoint")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.jpg").write_bytes(b"nonsense")
    refused("index", shop.run, tmp_path / "bad", "--out", gallery, says="could be read")
    assert not gallery.exists()


def test_search_for_what_cannot_be(shop, tmp_path):
    query = picture(tmp_path / "q.png")
    refused("search", shop.gallery, tmp_path / "none.png", says="none.png")
    refused("search", tmp_path / "none.gallery", query, says="none.gallery")
    refused("search", shop.gallery, query, "-k", 61, says="holds 60 images, fewer than -k 61")
    refused("search", shop.gallery, query, "-k", 0, says="-k")
    (tmp_path / "bad.png").write_bytes(b"nonsense")
    refused("search", shop.gallery, tmp_path / "bad.png", says="not an image")
    (tmp_path / "text.gallery").write_text("hello")
    refused("search", tmp_path / "text.gallery", query, says="text.gallery")


def test_a_gallery_of_another_model(shop, tmp_path):
    other = tmp_path / "other"
    assert holdfast("train", "--steps", 1, "--seed", 1, "--out", other).code == 0
    query = picture(tmp_path / "q.png")
    refused("search", shop.gallery, query, "--model", other, says="was made by embedder")
    refused("index", other, shop.pictures, "--out", shop.gallery, says="was made by embedder")


def test_a_checkpoint_cut_short(shop, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(shop.run, run)
    weights = run / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    refused("evaluate", run, says="model.safetensors")
    refused("evaluate", tmp_path / "none", says="no checkpoint")


def test_evaluate_what_cannot_be(shop):
    words = ("evaluate", shop.run, "--out", shop.folder / "never")
    refused(*words, "--k", "1,many", says="whole numbers")
    refused(*words, "--k", "0", says="from 1 on")
    refused(*words, "--queries", 10, "--candidates", 20, "--k", "21", says="more than the 20 candidates")
    refused(*words, "--candidates", 10, says="both")
    refused(*words, "--queries", 1500, "--candidates", 1500, says="ask for fewer")
    refused(*words, "--data", "nothing", says="nothing")
    refused(*words, "--split", "sideways", says="sideways")
    assert not (shop.folder / "never").exists()


def test_report_of_nothing(tmp_path):
    refused("report", tmp_path, says="nothing to report")
    refused("report", tmp_path / "none", says="no folder")
    refused("data", "info", "nothing", says="nothing")
    refused("nonsense", says="nonsense")


FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
sys.argv = ["holdfast", *sys.argv[2:]]
from holdfast.cli import main
main()
"""


@pytest.mark.parametrize("limit", [20_000, 200_000])
def test_no_room_to_write(shop, tmp_path, limit):
    """Files cannot grow beyond `limit`: writing fails as it does on a full disk, and the old file stays."""
    gallery = tmp_path / "g.gallery"
    shutil.copy(shop.gallery, gallery)
    before = gallery.read_bytes()
    extra = tmp_path / "extra"
    for i in range(400):
        Image.new("L", (28, 28), i % 256).save(picture(extra / f"{i}.png"))
    commands = {
        "run": ("train", "--steps", "3", "--out", str(tmp_path / "run")),
        "index": ("index", str(shop.run), str(extra), "--out", str(gallery)),
        "report": ("report", str(shop.run), "--out", str(tmp_path / "page.html")),
    }
    (tmp_path / "page.html").write_text("old page")
    for name, words in commands.items():
        done = subprocess.run(
            [sys.executable, "-c", FULL, str(limit), *words],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        )
        assert done.returncode == 2, (name, done.stderr)
        assert done.stderr.splitlines()[-1].startswith("error: "), done.stderr
        assert "Traceback" not in done.stderr
    assert (tmp_path / "page.html").read_text() == "old page"
    assert holdfast("gallery", "verify", gallery).code == 0
    assert gallery.read_bytes()[: len(before)] == before or "60" in holdfast("gallery", "info", gallery).out
    assert not (tmp_path / "run" / "card.json").exists()
