"""Draw the README's picture of the page from a service that really runs: a query, its hits, and an attack on it.

The galleries are of photos of clothes (the set clothing-small), by a network trained for proofs and by a plain one:

holdfast train --data clothing-small --image-size 32 --defence certified-rank --steps 1500 --batch 160 --lr 0.003 \
    --set train.clip=10 --set defence.eps=0.012 --set defence.clean=0.3 --set defence.boxes=64 \
    --set defence.ramp_start=0 --set defence.ramp_end=0.7 --out runs/clothes
holdfast train --data clothing-small --image-size 32 --steps 1000 --out runs/plain
holdfast index runs/clothes PHOTOS --out certified.gallery       (PHOTOS: train and validation of the set)
holdfast index runs/plain PHOTOS --out plain.gallery
python scripts/make_page_picture.py certified.gallery plain.gallery TEST/t-shirt/d9876909-….jpg docs/page.png

Beside docs/page.png it writes docs/page-attack.png: the same attack on both networks.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import expect, sync_playwright

WIDTH, K, EPS, STEPS, LIMIT = 1400, 5, "4/255", 60, 400_000
WAIT = 120_000


def main(certified: Path, plain: Path, photo: Path, out: Path) -> None:
    """Write the picture of the page to `out`, and that of the attack on both networks beside it."""
    chromium = os.environ.get("HOLDFAST_CHROMIUM") or shutil.which("chromium")
    with served(f"certified={certified}", f"plain={plain}") as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 1000})
        page.set_default_timeout(WAIT)
        page.goto(f"{address}/#gallery=certified&k={K}&threat=query:linf:{EPS}")
        expect(page.locator("#large-picks img").first).to_be_visible(timeout=WAIT)
        content = {"name": f"photo{photo.suffix}", "mimeType": "image/jpeg", "buffer": photo.read_bytes()}
        page.set_input_files("#file", content)
        attacked(page, 1)
        page.locator(".attack-result summary").click()
        # What stays in view while scrolling would stand in the middle of a taller picture.
        page.set_viewport_size({"width": WIDTH, "height": page.evaluate("document.body.scrollHeight")})
        below = page.locator("footer").bounding_box()
        assert below is not None
        save(page.screenshot(clip={"x": 0, "y": 0, "width": WIDTH, "height": below["y"]}), out)
        page.select_option("#other", "plain")
        attacked(page, 2)
        save(page.locator("#attacked").screenshot(), out.with_name(f"{out.stem}-attack.png"))
        browser.close()


def attacked(page: Any, columns: int) -> None:
    """Wait for the hits of each network, attack the query, and wait until that is shown."""
    expect(page.locator(".column[aria-busy=false]")).to_have_count(columns, timeout=WAIT)
    expect(page.locator(".card.waiting, .fact.stale")).to_have_count(0, timeout=WAIT)
    page.fill("#steps", str(STEPS))
    page.click("#attack-go")
    expect(page.locator(".attack-result")).to_have_count(columns, timeout=WAIT)
    page.wait_for_load_state("networkidle")
    page.evaluate("document.activeElement.blur()")
    page.mouse.move(0, 0)
    page.evaluate("scrollTo(0, 0)")


def save(content: bytes, out: Path) -> None:
    """In full colour, or with as few colours as it takes to stay below the limit."""
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    out.parent.mkdir(parents=True, exist_ok=True)
    for colours in (None, 256, 160, 96):
        # Means of what each colour stands for: else the few red pixels of a line turn into the brown of photos.
        shown = picture if colours is None else picture.quantize(colours, kmeans=1, dither=Image.Dither.NONE)
        shown.save(out, optimize=True)
        if out.stat().st_size <= LIMIT:
            print(f"{out}: {picture.width} x {picture.height}, {out.stat().st_size:,} bytes")
            return
    raise SystemExit(f"{out} has more than {LIMIT:,} bytes")


@contextmanager
def served(*galleries: str) -> Iterator[str]:
    """The address of a service of these galleries."""
    command = [sys.executable, "-m", "holdfast", "serve", *galleries, "--port", "0"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as told, subprocess.Popen(command, stderr=told) as process:
            try:
                while (found := re.search(r'"address": "([^"]+)"', log.read_text())) is None:
                    if process.poll() is not None:
                        raise SystemExit(log.read_text())
                    time.sleep(0.1)
                yield found[1]
            finally:
                process.terminate()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:5]))
