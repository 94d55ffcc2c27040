"""The README's commands and Python run as they stand; the pages say what the code says."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from holdfast.data import DATASETS
from holdfast.gallery.provers import PROVERS
from holdfast.gallery.rules import RULES
from holdfast.methods import METHODS
from holdfast.models import MODELS
from holdfast.training import DEFENCES

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", README, flags=re.S | re.M)


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
