"""Matrix products have full precision while bounds are computed, whatever the user has set; or the run is refused."""

import pytest
import torch

import zonogpt
from builders import image_model
from zonogpt.errors import PrecisionError
from zonogpt.verification.precision import full_precision, require_full_precision

CPU = torch.device("cpu")
NEWER = hasattr(torch.backends, "fp32_precision")


@pytest.fixture
def run():
    model = zonogpt.load(image_model(0))
    return lambda: zonogpt.verify(model, zonogpt.image_ball(model, torch.full((6, 4), 0.5), 1e-4))


@pytest.fixture(autouse=True)
def as_before():
    yield
    torch.set_float32_matmul_precision("highest")
    if NEWER:
        for place in (torch.backends, torch.backends.cuda.matmul, torch.backends.mkldnn.matmul):
            place.fp32_precision = "none"


def settings():
    newer = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul) if NEWER else ()
    return [place.fp32_precision for place in newer]


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_the_older_interface_is_left_as_it_was(run, precision):
    torch.set_float32_matmul_precision(precision)
    before = settings()
    assert run().status == "verified"
    assert torch.get_float32_matmul_precision() == precision
    assert settings() == before


@pytest.mark.skipif(not NEWER, reason="this PyTorch has one interface only")
@pytest.mark.parametrize("place", ["cuda.matmul", "mkldnn.matmul", ""])
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_the_newer_interface_is_left_as_it_was(run, place, precision):
    at = torch.backends
    for name in filter(None, place.split(".")):
        at = getattr(at, name)
    at.fp32_precision = precision
    before = settings()
    with full_precision(CPU):
        assert not {"tf32", "bf16"} & set(settings())
    assert run().status == "verified"
    assert settings() == before
    at.fp32_precision = "none"
    assert not {"tf32", "bf16"} & set(settings())  # inherited settings are inherited again


def fewer_bits(a, b):
    """A product like bfloat16's: of eight bits of each factor."""
    return a.bfloat16().to(a.dtype), b.bfloat16().to(b.dtype)


def cut(x):
    """A row as integers of 80 bits, without what is below 2^-80 of its largest entry."""
    unit = torch.exp2(x.abs().amax(-1, keepdim=True).clamp(min=1e-300).log2().ceil() - 80)
    return (x / unit).round() * unit


def integers(a, b):
    return cut(a), b


def integers_of_columns(a, b):
    return a, cut(b.mT).mT


@pytest.mark.parametrize("coarsely", [fewer_bits, integers, integers_of_columns])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_with_fewer_bits_are_refused(monkeypatch, run, coarsely, dtype):
    require_full_precision(CPU)
    plain = torch.Tensor.__matmul__
    monkeypatch.setattr(
        torch.Tensor, "__matmul__", lambda a, b: plain(*(coarsely(a, b) if a.dtype == dtype else (a, b)))
    )
    with pytest.raises(PrecisionError, match="fewer bits"):
        require_full_precision(CPU)
    with pytest.raises(PrecisionError):
        run()


def test_numbers_that_are_flushed_to_zero_are_noticed(run):
    """Rounding is bounded for arithmetic that underflows gradually."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormal numbers")
    try:
        with pytest.raises(PrecisionError, match="flushes numbers below the smallest normal one to 0"):
            run()
    finally:
        torch.set_flush_denormal(False)
    assert run().status == "verified"
