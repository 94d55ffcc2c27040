from __future__ import annotations

import numpy as np
import pytest

from holdfast.metrics.robustness import ARS_PARTS, ars_ratio, ars_trial, ers

HM_CUB = {
    "CA+": 15.5, "CA-": 37.7, "QA+": 16.6, "QA-": 30.9, "TMA": 0.75, "ES:D": 0.50,
    "ES:R": 17.9, "LTM": 16.7, "GTM": 27.3, "GTT": 2.9,
}  # fmt: skip
"""The HM row of the CA-TRIDE paper's Table 2 (CUB; clean Recall@1 34.9, ERS 36.0)."""


def test_ers_is_the_published_number():
    assert ers(HM_CUB).value == pytest.approx(36.0, abs=0.05)


def test_ars_ratio_is_the_published_row():
    found = ars_ratio(HM_CUB, 34.9)
    printed = {
        "CA+": 31.0, "CA-": 62.9, "QA+": 33.2, "QA-": 69.8, "ES:R": 51.3, "LTM": 47.9, "GTM": 78.2, "GTT": 2.9,
    }  # fmt: skip
    for name, value in printed.items():
        assert found.parts[name] == pytest.approx(value, abs=0.06), name
    assert found.value == pytest.approx(47.2, abs=0.06)


def test_attacks_that_reach_nothing_or_everything():
    still = {
        "CA+": 50.0,
        "QA+": 50.0,
        "CA-": 1.0,
        "QA-": 1.0,
        "ES:R": 40.0,
        "LTM": 40.0,
        "GTM": 40.0,
        "GTT": 100.0,
    }
    won = {
        "CA+": 0.0,
        "QA+": 0.0,
        "CA-": 100.0,
        "QA-": 100.0,
        "ES:R": 0.0,
        "LTM": 0.0,
        "GTM": 0.0,
        "GTT": 0.0,
    }
    assert ars_ratio(still, 40.0).value == 100
    assert ars_ratio(won, 40.0).value == 0
    backfired = {**still, "CA+": 70.0, "QA-": 0.2, "LTM": 45.0}
    assert ars_ratio(backfired, 40.0).value == 100
    assert ars_ratio(won, 0.0).parts["LTM"] == 100


def test_trials_agree_with_the_formula_one_by_one():
    random = np.random.default_rng(0)
    before = {name: random.uniform(0, 100, 50) for name in ARS_PARTS}
    after = {name: random.uniform(0, 100, 50) for name in ARS_PARTS}
    before["CA+"][0] = 0.0
    found = ars_trial(before, after, 60.0)
    naive = [
        100.0 if i == 0 else 100 * min(1, max(0, 1 - (i - r) / i))
        for i, r in zip(before["CA+"], after["CA+"], strict=True)
    ]
    assert found.parts["CA+"] == pytest.approx(np.mean(naive))
    naive = [
        100 * min(1, max(0, 1 - (r - i) / (100 - i)))
        for i, r in zip(before["QA-"], after["QA-"], strict=True)
    ]
    assert found.parts["QA-"] == pytest.approx(np.mean(naive))
    assert found.parts["GTM"] == pytest.approx(min(100, 100 * after["GTM"].mean() / 60))
