"""The page in a real browser, against a real `holdfast serve`."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("fastapi", reason="the page needs the extra 'serve'")
sync_api = pytest.importorskip("playwright.sync_api", reason="the page is tested through Playwright")
expect = sync_api.expect

CHROMIUM = os.environ.get("HOLDFAST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
if CHROMIUM is None:
    pytest.skip("the page is tested in Chromium, which is not installed", allow_module_level=True)

SOON = 20_000


@dataclass(frozen=True)
class Shop:
    folder: Path
    photo: Path
    address: str


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """The same pictures by an embedder that can be certified, by a plain one and by a smoothed one, served."""
    from holdfast import data, models
    from holdfast.data.export import export_images
    from holdfast.gallery.building import open_and_index
    from holdfast.proofs.smoothing import Smoothing

    folder = tmp_path_factory.mktemp("page")
    test = data.load("fashion-mnist-mini").test
    export_images(test.take(range(150)), folder / "pictures")
    export_images(test.take(range(150, 151)), folder / "photos")
    torch.manual_seed(0)
    networks = {
        "proved": averaging(),
        "plain": models.build("small", spec=(1, 28, 28), dim=16, unit_norm=True),
    }
    smooth = Smoothing(0.25, gallery=20, n=200)
    for name, run, more in (
        ("proved", "proved", {"boxes": 0.01}),
        ("plain", "plain", {}),
        ("smooth", "plain", {"smooth": smooth}),
    ):
        where = folder / run
        if not where.exists():
            models.save(networks[run], where, config={}, data="fashion-mnist-mini", seed=0, metrics={})
        made = folder / f"{name}.gallery"
        open_and_index(models.load(where), folder / "pictures", made, **more)[0].close()
    (photo,) = (folder / "photos").rglob("*.png")
    with served(
        folder / "log", *(folder / f"{name}.gallery" for name in ("proved", "plain", "smooth"))
    ) as address:
        yield Shop(folder, photo, address)


def averaging() -> Any:
    """A network whose numbers are means of parts of the picture: altered by eps, none moves by more than eps.

    So its hits are certified far, at different sizes, without any training.
    """
    from holdfast import models

    embedder = models.build("small", spec=(1, 28, 28), dim=16)
    parts = torch.zeros(16, 32, 13, 13)
    for number in range(16):
        down, across = divmod(number, 4)
        rows, columns = (slice(at * 13 // 4, (at + 1) * 13 // 4) for at in (down, across))
        parts[number, :, rows, columns] = 1
    with torch.no_grad():
        for weights in embedder.parameters():
            if weights.dim() == 1:
                weights.zero_()
            elif weights.dim() == 4:
                weights.abs_().div_(weights.sum((1, 2, 3), keepdim=True))
            else:
                weights.copy_((parts / parts.sum((1, 2, 3), keepdim=True)).flatten(1))
    return embedder


@contextlib.contextmanager
def served(log: Path, *words: object) -> Iterator[str]:
    """The address of a service that was started as a user would; `log` is what it says."""
    command = [sys.executable, "-m", "holdfast", "serve", *map(str, words), "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("w") as told, subprocess.Popen(command, stderr=told, env=environment) as process:
        try:
            until = time.monotonic() + 60
            while (found := re.search(r'"address": "([^"]+)"', log.read_text())) is None:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < until, "the service does not start"
                time.sleep(0.05)
            yield f"{found[1]}/"
        finally:
            process.terminate()
            process.wait(timeout=20)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@dataclass
class Visit:
    """A page, what went wrong in it, and whom it asked."""

    page: Any
    wrong: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def visit(browser: Any, shop: Shop) -> Iterator[Callable[..., Any]]:
    """Opens the page in a context of its own; nothing may go wrong in it, and nobody else be asked."""
    visits: list[Visit] = []

    def open_page(address: str = "", expected: tuple[str, ...] = (), **settings: Any) -> Any:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, **settings)
        context.set_default_timeout(SOON)
        opened = Visit(context.new_page())
        visits.append(opened)
        opened.page.on(
            "console",
            lambda said: (
                opened.wrong.append(said.text)
                if said.type in ("error", "warning") and not any(text in said.text for text in expected)
                else None
            ),
        )
        opened.page.on("pageerror", lambda error: opened.wrong.append(str(error)))
        opened.page.on("request", lambda request: opened.asked.append(request.url))
        opened.page.goto(address or shop.address)
        return opened.page

    yield open_page
    for opened in visits:
        opened.page.context.close()
        assert opened.wrong == []
        away = [url for url in opened.asked if not url.startswith(("http://127.0.0.1:", "data:", "blob:"))]
        assert away == []
        assert opened.asked


def settled(page: Any, columns: int = 1) -> None:
    """Wait until every column has its proofs."""
    expect(page.locator(".column[aria-busy=false] .card")).not_to_have_count(0, timeout=SOON)
    expect(page.locator(".column[aria-busy=false]")).to_have_count(columns, timeout=SOON)
    expect(page.locator(".card.waiting")).to_have_count(0, timeout=SOON)


def ids(page: Any, column: int = 0) -> list[str]:
    cards = page.locator(".column").nth(column).locator(".card")
    return [str(card.get_attribute("data-id")) for card in cards.all()]


def searched(page: Any, shop: Shop) -> None:
    page.set_input_files("#file", shop.photo)
    settled(page)


def test_a_picture_is_searched_and_the_slider_shows_what_stays_proven(visit, shop):
    page = visit()
    expect(page.locator("#large-picks img")).to_have_count(12)
    searched(page, shop)
    expect(page.locator(".card")).to_have_count(10)
    verdicts = page.locator(".card .chip").all_inner_texts()
    assert set(verdicts) <= {"Certified", "Unknown"}
    assert len(verdicts) == 10
    expect(page.locator(".card").first).to_contain_text("distance")
    expect(page.locator(".card").first).to_contain_text("ranks")
    expect(page.locator(".card").first).to_contain_text("proven to")
    for image in page.locator(".card img").all():
        expect(image).to_have_js_property("complete", True)
        assert image.evaluate("image => image.naturalWidth") == 28

    page.locator("#size").evaluate("slider => { slider.value = 0; slider.dispatchEvent(new Event('input')) }")
    end = float(page.locator("#size").get_attribute("max"))
    counts = []
    for part in range(11):
        page.locator("#size").evaluate(
            "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')) }",
            end * part / 10,
        )
        counts.append(page.locator(".card.certified").count())
    assert counts[0] > counts[-1]
    assert counts == sorted(counts, reverse=True)

    page.locator("#size").evaluate(
        "slider => { slider.value = 0.5; for (const n of ['input', 'change']) slider.dispatchEvent(new Event(n)) }"
    )
    expect(page.locator("#size-value")).to_have_text("0.5/255")
    expect(page.locator(".fact.stale")).to_have_count(0, timeout=SOON)
    answer = page.request.post(
        f"{shop.address}api/v1/search/certified",
        multipart={"image": _file(shop.photo), "threat": "linf:0.5/255", "k": "10"},
    ).json()
    shown = page.locator(".card .facts").all_inner_texts()
    for text, hit, chip in zip(
        shown, answer["hits"], page.locator(".card .chip").all_inner_texts(), strict=True
    ):
        ranks = f"{hit['best']}–{hit['worst']}" if hit["best"] != hit["worst"] else str(hit["best"])
        assert re.search(rf"ranks\n{ranks}\n", text), (ranks, text)
        assert chip.upper() == hit["verdict"]
    certified = sum(hit["verdict"] == "CERTIFIED" for hit in answer["hits"])
    expect(page.locator("#standing")).to_have_text(f"{certified} of 10 hits certified")


def _file(path: Path) -> dict[str, Any]:
    return {"name": path.name, "mimeType": "image/png", "buffer": path.read_bytes()}


def test_a_dropped_and_a_pasted_picture_are_searched(visit, shop):
    page = visit()
    expect(page.locator("#large-picks img")).to_have_count(12)
    content = base64.b64encode(shop.photo.read_bytes()).decode()
    carried = """content => {
        const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
        const carried = new DataTransfer();
        carried.items.add(new File([bytes], "dropped.png", { type: "image/png" }));
        return carried;
    }"""
    data = page.evaluate_handle(carried, content)
    page.dispatch_event("#drop", "dragover", {"dataTransfer": data})
    expect(page.locator("#drop")).to_have_class(re.compile("over"))
    page.dispatch_event("#drop", "drop", {"dataTransfer": data})
    settled(page)
    dropped = ids(page)
    expect(page.locator("#query-name")).to_have_text("dropped.png")
    page.reload()
    settled(page)
    page.evaluate(
        f"content => document.dispatchEvent(new ClipboardEvent('paste', {{ clipboardData: ({carried})(content) }}))",
        content,
    )
    settled(page)
    assert ids(page) == dropped


def test_a_picture_chosen_before_the_page_knows_its_galleries_waits(visit, shop):
    page = visit("about:blank")
    held: list[Any] = []
    page.route("**/api/v1/status", lambda route: held.append(route))
    page.goto(shop.address)
    page.set_input_files("#file", shop.photo)
    while not held:
        page.wait_for_timeout(20)
    held[0].continue_()
    settled(page)
    assert len(ids(page)) >= 5


def test_an_attack_shows_both_pictures_and_that_certified_hits_held(visit, shop):
    page = visit()
    searched(page, shop)
    page.fill("#strength", "0.5")
    page.fill("#steps", "5")
    page.click("#attack-go")
    result = page.locator(".attack-result")
    expect(result).to_have_count(1, timeout=SOON)
    for image in result.locator(".trio img").all():
        expect(image).to_have_js_property("complete", True)
        assert image.evaluate("image => image.naturalWidth") == 28
    expect(result.locator("figcaption").nth(2)).to_contain_text("difference ×")
    expect(result.locator(".outcome")).to_contain_text(
        re.compile(r"(All \d+ certified hits|Both certified hits|The certified hit) held")
    )
    expect(page.locator("#live")).to_contain_text("held")
    assert result.locator(".slope").count() >= 10
    before = [int(text) for text in result.locator("tbody tr td:nth-child(2)").all_inner_texts()[:10]]
    assert before == list(range(1, 11))


def test_a_shared_link_restores_the_same_hits(visit, shop):
    page = visit()
    searched(page, shop)
    page.fill("#k", "7")
    page.press("#k", "Tab")
    expect(page.locator(".card")).to_have_count(7)
    settled(page)
    page.locator("#size").focus()
    page.keyboard.press("ArrowRight")
    size = page.locator("#size-value").inner_text()
    expect(page).to_have_url(re.compile(re.escape(f"threat=query:linf:{size}")))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#share")
    expect(page.locator("#share")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    other = visit(copied)
    settled(other)
    assert ids(other) == ids(page)
    assert other.locator("#size-value").inner_text() == size
    assert other.locator(".summary").inner_text() == page.locator(".summary").inner_text()


def test_two_embedders_stand_side_by_side(visit, shop):
    page = visit(color_scheme="dark")
    searched(page, shop)
    page.select_option("#other", "plain")
    settled(page, 2)
    left, right = ids(page, 0), ids(page, 1)
    marks = page.locator(".column").first.locator(".mark").all_inner_texts()
    assert len(marks) == 10
    assert [mark == "only here" for mark in marks] == [id not in right for id in left]
    expect(page.locator("#standing")).to_contain_text(
        re.compile(r"certified in proved, \d+ of 10 hits certified in plain")
    )
    page.fill("#steps", "3")
    page.click("#attack-go")
    expect(page.locator(".attack-result")).to_have_count(2, timeout=SOON)


def test_altered_candidates_and_smoothed_galleries(visit, shop):
    page = visit()
    searched(page, shop)
    page.locator("#who label", has_text="the candidates").click()
    settled(page)
    expect(page.locator(".fact.stale")).to_have_count(0, timeout=SOON)
    expect(page).to_have_url(re.compile("threat=candidates:linf:"))
    page.fill("#most", "1")
    page.press("#most", "Tab")
    expect(page).to_have_url(re.compile(":m=1"), timeout=SOON)
    page.select_option("#gallery", "smooth")
    settled(page)
    assert set(page.locator(".card .chip").all_inner_texts()) <= {"Certified", "Unknown", "Abstain"}
    expect(page.locator(".card").first).to_contain_text("radius")
    expect(page.locator("#size-label")).to_contain_text("ℓ2")


def test_sizes_are_shown_as_they_are_asked_and_never_rounded_up(visit, shop):
    page = visit()
    shown = page.evaluate(
        """async () => {
            const { provenText, sizeText, threatText } = await import("./static/words.js");
            const slider = Array.from({ length: 5100 }, (_, n) => n / 1000);
            const exact = (n) => sizeText("linf", n / 255) === `${n}/255` && sizeText("l2", n) === `${n}`;
            const wrong = slider.filter((n) => !exact(n));
            const some = Array.from({ length: 2000 }, (_, n) => (n + 0.5) / 7919);
            for (const text of [sizeText, provenText]) {
                for (const eps of some) {
                    const units = text("linf", eps).split("/")[0];
                    if (Number(units.replace("<0.01", "0")) / 255 > eps) wrong.push(["linf", eps]);
                    if (Number(text("l2", eps).replace("<0.001", "0")) > eps) wrong.push(["l2", eps]);
                }
            }
            return [wrong, sizeText("l2", 0.1075), provenText("l2", 0.00537109375), sizeText("linf", 0.00537109375),
                threatText({ who: "candidates", norm: "linf", most: "3" }, 2 / 255)];
        }"""
    )
    assert shown == [[], "0.1075", "0.005", "1.369/255", "candidates:linf:2/255:m=3"]


def test_the_slider_for_altered_candidates_ends_at_their_boxes(visit, shop):
    page = visit()
    searched(page, shop)
    page.locator("#who label", has_text="the candidates").click()
    page.locator("#size").focus()
    page.keyboard.press("End")
    expect(page.locator("#size-value")).to_have_text("2.55/255")
    expect(page).to_have_url(re.compile("threat=candidates:linf:2.55/255"), timeout=SOON)
    settled(page)
    expect(page.locator(".fact.stale")).to_have_count(0, timeout=SOON)


def test_proofs_of_another_threat_are_dropped_at_once(visit, shop):
    page = visit()
    searched(page, shop)
    page.locator("#size").evaluate("slider => { slider.value = 0; slider.dispatchEvent(new Event('input')) }")
    assert page.locator(".card.certified").count() > 0
    held: list[Any] = []
    page.route("**/api/v1/search/certified", lambda route: held.append(route))
    page.evaluate(
        """() => {
            document.querySelector("#who input[value=candidates]").click();
            const slider = document.getElementById("size");
            for (const name of ["input", "change"]) slider.dispatchEvent(new Event(name));
        }"""
    )
    assert page.locator(".card.certified").count() == 0
    while not held:
        page.wait_for_timeout(20)
    assert page.locator(".card.certified").count() == 0
    page.evaluate(
        """() => {
            document.querySelector("#who input[value=query]").click();
            document.getElementById("size").dispatchEvent(new Event("change"));
        }"""
    )
    page.unroute("**/api/v1/search/certified")
    settled(page)
    expect(page.locator(".card").first).to_contain_text("proven to")


def test_everything_works_by_keyboard(visit, shop):
    page = visit()
    page.on("filechooser", lambda chooser: chooser.set_files(shop.photo))
    expect(page.locator("#large-picks img")).to_have_count(12)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('#large-picks') !== null"):
            break
    else:
        pytest.fail("Tab does not reach an example")
    chosen = page.evaluate("document.activeElement.firstChild.alt")
    page.keyboard.press("Enter")
    settled(page)
    assert ids(page)[0] in chosen
    page.locator("#size").focus()
    before = page.locator("#size").get_attribute("aria-valuetext")
    page.keyboard.press("End")
    assert page.locator("#size").get_attribute("aria-valuetext") != before
    page.locator("#file").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#query-name")).to_have_text(shop.photo.name, timeout=SOON)
    settled(page)


def test_the_page_can_be_read_without_seeing_it(visit, shop):
    page = visit()
    searched(page, shop)
    page.fill("#steps", "2")
    page.click("#attack-go")
    expect(page.locator(".attack-result")).to_have_count(1, timeout=SOON)
    assert page.locator("h1").count() == 1
    for landmark in ("header", "main", "aside[aria-label]", "footer"):
        assert page.locator(landmark).count() == 1
    assert page.locator("html").get_attribute("lang") == "en"
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("input, select, button, textarea")].filter((control) => {
            const named = control.labels && [...control.labels].some((label) => label.textContent.trim());
            const inside = control.querySelector("img[alt]:not([alt=''])");
            return !(named || control.textContent.trim() || control.getAttribute("aria-label") || inside);
        }).map((control) => control.outerHTML)"""
    )
    assert unnamed == []
    assert page.locator("img:not([alt])").count() == 0
    assert page.locator(".card img[alt='']").count() == 0
    named = page.locator("[id]").evaluate_all("all => all.map((e) => e.id)")
    assert len(named) == len(set(named))
    levels = [
        int(tag[1]) for tag in page.locator("h1, h2, h3").evaluate_all("all => all.map((e) => e.tagName)")
    ]
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert page.locator("[style]").evaluate_all(
        "all => all.every((e) => !e.getAttribute('style').includes('url'))"
    )
    page.emulate_media(color_scheme="light")
    light = _contrasts(page)
    page.emulate_media(color_scheme="dark")
    dark = _contrasts(page)
    assert min(light) >= 4.5
    assert min(dark) >= 4.5
    assert page.screenshot() != (page.emulate_media(color_scheme="light") or page.screenshot())


def _contrasts(page: Any) -> list[float]:
    """The contrast of each kind of text with what lies behind it, by WCAG's formula."""
    return list(
        page.evaluate(
            """() => {
                const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
                const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
                    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
                    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
                const behind = (element) => {
                    for (let at = element; at; at = at.parentElement) {
                        const colour = rgb(getComputedStyle(at).backgroundColor);
                        if (colour.length === 3 || colour[3] > 0) return colour;
                    }
                    return [255, 255, 255];
                };
                const shown = document.querySelectorAll(
                    "p, .chip, dt, dd, .soft, .mark, button, legend, #size-value, figcaption, th, td");
                const seen = [...shown].filter((e) => e.offsetParent && e.textContent.trim() && !e.closest(".stale"));
                return seen.map((e) => {
                    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
                    return (a + 0.05) / (b + 0.05);
                });
            }"""
        )
    )


def test_a_narrow_screen_needs_no_scrolling_sideways(visit, shop):
    page = visit()
    page.set_viewport_size({"width": 360, "height": 740})
    searched(page, shop)
    page.fill("#steps", "2")
    page.click("#attack-go")
    expect(page.locator(".attack-result")).to_have_count(1, timeout=SOON)
    page.locator("#examples summary").click()
    page.locator(".attack-result summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.select_option("#other", "plain")
    settled(page, 2)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_what_goes_wrong_is_said(visit, shop, tmp_path):
    page = visit(expected=("404", "422", "400"))
    broken = tmp_path / "broken.png"
    broken.write_bytes(shop.photo.read_bytes()[:200])
    page.set_input_files("#file", broken)
    expect(page.locator("#problem")).to_be_visible()
    expect(page.locator("#problem p")).to_have_text(
        "broken.png: The picture is cut short: send the whole file."
    )
    expect(page.locator("#found")).to_be_hidden()
    lost = visit(f"{shop.address}#gallery=proved&query={'0' * 32}&k=5", expected=("404",))
    expect(lost.locator("#problem")).to_contain_text("send it again.")


def test_a_key_is_asked_for_and_kept_in_the_tab(visit, shop):
    page = visit("about:blank", expected=("401",))
    refused = {"title": "Unauthorized", "status": 401, "detail": "this key is not known"}

    def check(route: Any) -> None:
        if route.request.headers.get("authorization") == "Bearer right":
            route.continue_()
        else:
            route.fulfill(status=401, content_type="application/problem+json", body=json.dumps(refused))

    page.route("**/api/v1/**", check)
    page.goto(shop.address)
    expect(page.locator("#key-dialog")).to_be_visible()
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#key-note")).to_contain_text("This key is not known.")
    expect(page.locator("#key")).to_have_value("")
    page.fill("#key", "right")
    page.keyboard.press("Enter")
    expect(page.locator("#large-picks img").first).to_have_js_property("naturalWidth", 28)
    searched(page, shop)
    expect(page.locator(".card img").first).to_have_js_property("naturalWidth", 28)
    expect(page.locator("#query-picture")).to_have_js_property("naturalWidth", 28)
    assert "right" not in page.url
    page.reload()
    settled(page)


def test_examples_come_from_all_over_the_gallery(browser, shop):
    context = browser.new_context()
    found = context.request.get(f"{shop.address}api/v1/items?limit=5").json()["items"]
    every = context.request.get(f"{shop.address}api/v1/items?limit=100").json()["items"]
    context.close()
    names = [item["id"] for item in found]
    assert len(every) == 100
    assert len(names) == 5
    assert names == sorted(names)
    assert len({item["label"] for item in found}) == 5
