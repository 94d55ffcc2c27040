from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.threat import Threat, floored


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("linf:8/255", Threat("linf", 8 / 255, "query", None, "8/255")),
        ("query:linf:0.1", Threat("linf", 0.1, "query", None, "0.1")),
        ("candidates:linf:0.1:m=5", Threat("linf", 0.1, "candidates", 5, "0.1")),
        ("both:linf:0", Threat("linf", 0.0, "both", None, "0")),
        ("l2:auto", Threat("l2", None, "query", None, "auto")),
        ("l2:3.5", Threat("l2", 3.5, "query", None, "3.5")),
    ],
)
def test_the_grammar(text, want):
    found = Threat.parse(text)
    assert found == want
    assert Threat.parse(str(found)) == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("linf", "is not a threat; write"),
        ("l7:0.1", "is not a threat"),
        ("everyone:linf:0.1", "not 'everyone'"),
        ("linf:-0.1", "between 0 and 1"),
        ("linf:1.5", "between 0 and 1"),
        ("linf:a/b", "not 'a/b'"),
        ("linf:1/0", "not '1/0'"),
        ("linf:nan", "between 0 and 1"),
        ("query:l2:inf", "0 or more, and finite"),
        ("l2:nan", "0 or more, and finite"),
        ("l2:1e400", "0 or more, and finite"),
        ("l2:1e308/1e-308", "0 or more, and finite"),
        ("linf:1_0/255", "not '1_0/255'"),
        ("linf:8/2_55", "not '8/2_55'"),
        ("linf:٣/255", "not '٣/255'"),
        ("linf:１", "not '１'"),
        ("linf: 8/255", "not ' 8/255'"),
        ("linf:8 / 255", "not '8 / 255'"),
        ("linf:0x1", "not '0x1'"),
        ("linf:1e-400", "not '1e-400'"),
        ("linf:8/inf", "not '8/inf'"),
        ("candidates:linf:0.1:m=٣", "is not a threat"),
        ("candidates:linf:0.1:m=1_0", "is not a threat"),
        ("candidates:linf:0.1:m=99999999999999999999", "is not a threat"),
        ("query:linf:0.1:m=3", "m limits altered candidates"),
    ],
)
def test_what_is_not_a_threat_is_one_line(text, says):
    with pytest.raises(ConfigError, match=says.replace("(", ".")) as error:
        Threat.parse(text)
    assert "\n" not in str(error.value)


@given(st.floats(min_value=-1e300, max_value=1e300), st.integers(0, 12))
def test_what_is_shown_of_a_proof_is_never_more_than_was_proved(value, digits):
    text = floored(value, digits)
    exact = Fraction(value)
    assert Fraction(text) <= exact < Fraction(text) + Fraction(1, 10**digits)
    assert float(text) <= value
    assert len(text.partition(".")[2]) == digits


def test_a_size_between_two_decimals_is_shown_as_the_smaller_one():
    assert floored(0.00537109375) == "0.0053"
    assert floored(0.1, 1) == "0.1"
    assert floored(0.99999) == "0.9999"
    assert floored(0.0) == "0.0000"
