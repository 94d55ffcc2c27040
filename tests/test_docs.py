"""The README's commands and Python run as they stand; the pages say what the code says."""

from __future__ import annotations

import contextlib
import http.server
import importlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.data import DATASETS
from holdfast.gallery.provers import PROVERS
from holdfast.gallery.rules import RULES
from holdfast.methods import METHODS
from holdfast.models import MODELS
from holdfast.training import DEFENCES

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def blocks(kind: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", text, flags=re.S | re.M)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with `holdfast` on the path, in which the README's commands were run in order."""
    folder = tmp_path_factory.mktemp("readme")
    tools = folder / ".bin"
    tools.mkdir()
    script = tools / "holdfast"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "from holdfast.cli import main; main()" "$@"\n')
    script.chmod(0o755)
    return folder


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{folder / '.bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["sh", "-c", line],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def answers(line: str, folder: Path) -> None:
    """A service that is started as the README says answers, and ends when it is told to."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "PATH": f"{folder / '.bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = ["sh", "-c", f"exec {line} --port {port}"]
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL) as service:
        try:
            for _ in range(600):
                assert service.poll() is None
                with contextlib.suppress(httpx.TransportError):
                    if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                        break
                time.sleep(0.1)
            assert "<h1" in httpx.get(f"http://127.0.0.1:{port}/").text
        finally:
            service.terminate()
        assert service.wait(30) == 0


def test_readme_commands_and_python_run(workplace):
    lines = [line[2:] for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")]
    commands = [line for line in lines if not line.startswith("make ")]
    assert len(commands) >= 7
    printed = ""
    for line in commands:
        if line.startswith("holdfast serve"):
            answers(line, workplace)
            continue
        done = shell(line, workplace)
        assert done.returncode == 0, (line, done.stderr)
        printed += done.stdout
    for shown in ("#  id ", "hit rate  ", "true recall ", "mAP@R", "rows: runs/first/evaluations/"):
        assert shown in README
        assert shown in printed
    (program,) = blocks("python")
    assert len([line for line in program.splitlines() if line.strip()]) <= 9
    (workplace / "program.py").write_text(program)
    done = shell(f'"{sys.executable}" program.py', workplace)
    assert done.returncode == 0, done.stderr
    table = [line.split()[0] for line in done.stdout.splitlines() if line[:1].isdigit()]
    assert table[:5] == ["1", "2", "3", "4", "5"]
    assert (workplace / "altered.png").read_bytes().startswith(b"\x89PNG")
    assert (workplace / "runs/first/report.html").stat().st_size > 100_000


MY_MODEL = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(3, 8, 5, stride=3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
"""


def own_things(folder: Path) -> None:
    """What a reader of "Use your own model" has: a photo, a Python file, an ONNX file, a model's folder, labels."""
    transformers = pytest.importorskip("transformers")
    if MODELS["efficientnet-lite0"].shipped.path is None:
        pytest.skip("the weights of efficientnet-lite0 are not installed")
    (folder / "my.py").write_text(MY_MODEL)
    for number, name in enumerate(["photo", "q/0", "q/1", "g/2", "g/3", "g/4"]):
        path = folder / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 256, (90, 70, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((140, 180)).save(path)
    lines = [
        f"{name}.png,{'hat' if number % 2 else 'shoe'}"
        for number, name in enumerate(["q/0", "q/1", "g/2", "g/3", "g/4"])
    ]
    (folder / "labels.csv").write_text("\n".join(["path,label", *lines]))
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    transformers.Dinov2Model(transformers.Dinov2Config(**sizes)).save_pretrained(folder / "dinov2-small")
    settings = {"size": {"shortest_edge": 32}, "crop_size": {"height": 28, "width": 28}}
    described = {"image_processor_type": "BitImageProcessor", **settings}
    (folder / "dinov2-small/preprocessor_config.json").write_text(json.dumps(described))
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (torch.zeros(1, 3, 32, 32),), folder / "model.onnx", dynamo=False)


def test_use_your_own_model_runs_as_it_stands(workplace, tmp_path):
    page = (ROOT / "docs/models.md").read_text()
    (tmp_path / ".bin").symlink_to(workplace / ".bin")
    own_things(tmp_path)
    lines = [line[2:] for block in blocks("console", page) for line in block.splitlines()]
    assert len(lines) >= 12
    for line in lines:
        done = shell(line, tmp_path)
        assert done.returncode == 0, (line, done.stderr)
    (program,) = blocks("python", page)
    (tmp_path / "program.py").write_text(program)
    done = shell(f'"{sys.executable}" program.py', tmp_path)
    assert done.returncode == 0, done.stderr
    nearest, rate = done.stdout.splitlines()
    assert nearest.endswith(".png")
    assert 0 <= float(rate) <= 1


def test_a_model_behind_http_is_searched_with(workplace, tmp_path):
    (tmp_path / ".bin").symlink_to(workplace / ".bin")
    for number in range(3):
        noise = np.random.default_rng(number).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        (tmp_path / "photos").mkdir(exist_ok=True)
        Image.fromarray(noise).save(tmp_path / f"photos/{number}.png")

    class Service(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            images = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["images"]
            vectors = np.asarray(images, dtype=float)[:, :, ::16, ::16].reshape(len(images), -1)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"vectors": vectors.tolist()}).encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        at = f"EMBEDDING_SERVICE=http://127.0.0.1:{server.server_port}/embed"
        model = f"{ROOT / 'examples/http_model.py'}:model"
        done = shell(f"{at} holdfast index {model} photos --out shop.gallery", tmp_path)
        assert done.returncode == 0, done.stderr
        done = shell(f"{at} holdfast search shop.gallery photos/1.png --model {model} --json", tmp_path)
        server.shutdown()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["hits"][0]["id"] == "1.png"


def test_make_targets_that_the_readme_names_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make (\w+)", README)):
        assert re.search(rf"^{target}:", makefile, flags=re.M), target


@pytest.mark.parametrize(
    ("script", "page"),
    [
        ("make_cli_docs", "docs/cli.md"),
        ("make_readme_table", "README.md"),
        ("make_defence_table", "docs/defences.md"),
        ("make_preset_table", "docs/training.md"),
        ("make_which_table", "docs/which-certificate.md"),
        ("make_smoothing_table", "docs/smoothing.md"),
        ("make_sizing_table", "docs/production.md"),
    ],
)
def test_generated_pages_are_what_their_scripts_make(script, page, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    made = importlib.import_module(script).page()
    assert (ROOT / page).read_text() == made, f"run scripts/{script}.py"


def test_pages_name_everything_that_is_registered():
    for name in MODELS:
        assert f"`{name}`" in (ROOT / "docs/models.md").read_text()
    for name in DEFENCES:
        assert f"`{name}`" in (ROOT / "docs/training.md").read_text()
    for name in (*METHODS, *PROVERS, *RULES):
        assert f"`{name}`" in (ROOT / "docs/certificates.md").read_text()
    assert "fashion-mnist-mini" in DATASETS


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)
