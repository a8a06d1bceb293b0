"""Eight-bit codes by their bits are torch's float8_e4m3fn, code for code and rounding for rounding."""

import torch
from fp8_kernels import decode_kernel, encode_kernel
from guarded import Guarded


def _encoded(values: torch.Tensor) -> torch.Tensor:
    codes = Guarded(len(values), dtype=torch.uint8)
    encode_kernel[(1,)](values, codes.tensor, SIZE=len(values))
    codes.check_guards()
    return codes.tensor


def test_every_code_is_decoded_exactly() -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    values = torch.empty(256)
    decode_kernel[(1,)](codes, values, SIZE=256)
    expected = codes.view(torch.float8_e4m3fn).float()
    assert torch.equal(values.nan_to_num(1e9), expected.nan_to_num(1e9))
    assert values.isnan().sum() == 2


def test_values_between_codes_go_to_the_nearest_and_ties_to_even() -> None:
    exact = torch.arange(0x7F, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn).float()
    middle = (exact[1:] + exact[:-1]) / 2
    values = torch.cat([exact, middle, middle.nextafter(exact[1:]), middle.nextafter(exact[:-1])])
    values = torch.cat([values, -values, torch.zeros(1024 - 2 * len(values))])
    assert torch.equal(_encoded(values), values.to(torch.float8_e4m3fn).view(torch.uint8))


def test_what_is_too_large_becomes_the_largest_and_nan_stays() -> None:
    values = torch.tensor([449.0, -1e9, torch.inf, -torch.inf, torch.nan, 464.0, 448.0, -0.0])
    assert _encoded(values).tolist() == [0x7E, 0xFE, 0x7E, 0xFE, 0x7F, 0x7E, 0x7E, 0x80]


def test_random_values_are_encoded_as_torch_encodes_them() -> None:
    values = torch.randn(4096) * torch.tensor([1e-3, 0.02, 1.0, 90.0]).repeat(1024)
    assert torch.equal(_encoded(values), values.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8))
