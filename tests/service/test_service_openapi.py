"""The OpenAPI says what the service does: generated requests, valid and not, get only answers that it describes."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from serving import png

ROOT = Path(__file__).resolve().parents[2]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def schema(client):
    return schemathesis.openapi.from_dict(client.get("/api/v1/openapi.json").json())


def test_every_route_is_described(schema):
    found = {
        (operation.ok().method.upper(), operation.ok().path) for operation in schema.get_all_operations()
    }
    api = "/api/v1"
    assert found >= {
        ("GET", f"{api}/status"),
        ("POST", f"{api}/search"),
        ("POST", f"{api}/search/certified"),
        ("POST", f"{api}/search/batch"),
        ("POST", f"{api}/attack"),
        ("POST", f"{api}/items"),
        ("DELETE", f"{api}/items/{{id}}"),
        ("GET", f"{api}/queries/{{digest}}/image"),
        ("GET", "/metrics"),
        ("GET", "/healthz"),
    }


def real(case):
    """The same request with a real picture and one thing asked about, so that some are answered in full."""
    if isinstance(case.body, dict):
        if "images" in case.body:
            case.body["images"] = [png()]
        if "image" in case.body:
            case.body = {key: value for key, value in case.body.items() if key not in ("id", "query")}
            case.body |= {"image": png(), "gallery": "shop", "k": 2}
            case.body |= {"threat": "linf:0.01", "steps": 2} if "threat" in case.body else {}
    return case


@pytest.mark.parametrize("mode", ["positive", "negative", "real"])
def test_generated_requests_get_only_answers_that_are_described(schema, client, mode):
    generated = GenerationMode.NEGATIVE if mode == "negative" else GenerationMode.POSITIVE
    seen = Counter()
    for found in schema.get_all_operations():
        operation = found.ok()
        if mode == "real" and operation.method.upper() != "POST":
            continue

        @settings(
            max_examples=5,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=generated))
        def check(case):
            case = real(case) if mode == "real" else case
            answer = case.call_and_validate(base_url=str(client.base_url), checks=CHECKS)
            seen[answer.status_code] += 1

        with suppress(Unsatisfiable):  # A route that takes nothing cannot be asked wrongly.
            check()
    assert seen[200] or mode == "negative", seen
    assert seen[422], seen


def test_the_page_about_the_service_names_every_route_and_only_real_options(schema):
    page = (ROOT / "docs" / "service.md").read_text()
    for found in schema.get_all_operations():
        path = found.ok().path.replace("{id}", "ID").replace("{digest}", "DIGEST")
        assert path in page, path
    told = (ROOT / "docs" / "cli.md").read_text()
    for option in set(re.findall(r"--[a-z-]+", re.sub(r"(podman|curl) .*?(holdfast serve|\n)", "", page))):
        assert option in told, option
