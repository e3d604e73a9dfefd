import torch

from attacks.analytic.linear.certificate import judge, relative_error

GOOD = {"tokens": 64.0, "width": 192.0, "rank": 64.0, "residual": 1e-7, "condition": 1e3, "expected_psnr": 100.0}
SYMBOLS = "Σ_n G_n = ∂L/∂b_p"


def test_certifies_what_is_exact():
    assert judge({**GOOD, "identity": 1e-7, "class_token": 1e-8}, 1, SYMBOLS).certified


def test_says_why_not():
    reasons = {
        "2 images behind the update, of which this is one mixture; 196 patch tokens > width 192": {"tokens": 196.0},
        "of which this is one mixture; 192 patch tokens = width 192": {"tokens": 192.0, "rank": 192.0},
        "residual 0.27: one mixture of the 2 images": {"residual": 0.27},
        "is off by 0.1": {"identity": 0.1},
        "class token's row": {"class_token": 0.1},
        "rank 60 of 64": {"rank": 60.0},
    }
    for words, values in reasons.items():
        certificate = judge({**GOOD, **values}, 2, SYMBOLS)
        assert certificate.status == "uncertified"
        assert words in certificate.reason


def test_the_expected_error_must_be_small():
    certificate = judge({**GOOD, "expected_psnr": 45.0}, 1, SYMBOLS)
    assert not certificate.certified
    assert "45 dB expected" in certificate.reason


def test_several_examples_are_never_certified():
    """The residual of the mean of nearly alike pictures is of second order in their difference, its error of first."""
    certificate = judge(GOOD, 2, SYMBOLS)
    assert not certificate.certified
    assert certificate.reason.startswith("2 images behind the update")
    assert "expected_psnr" not in certificate.values


def test_an_unknown_error_is_not_certified():
    assert not judge({k: v for k, v in GOOD.items() if k != "expected_psnr"}, 1, SYMBOLS).certified


def test_relative_error_is_bounded():
    one, zero = torch.ones(3), torch.zeros(3)
    assert relative_error(one, one) == relative_error(zero, zero) == 0.0
    assert relative_error(one, zero) == relative_error(zero, one) == 1.0
    assert relative_error(one, -one) == 2.0
