"""The OpenAPI says what the service does: generated requests, valid and not, get only answers that it describes."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

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


def test_generated_requests_get_only_answers_that_are_described(schema, client):
    for found in schema.get_all_operations():
        operation = found.ok()
        for mode in schemathesis.GenerationMode:

            @settings(
                max_examples=6,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @schemathesis.pytest.given(case=operation.as_strategy(generation_mode=mode))
            def check(case):
                case.call_and_validate(base_url=str(client.base_url), checks=CHECKS)

            check()
