"""Kernels come out of their file letter by letter as they went in."""

import pytest

from shoal.ops import kernels
from shoal.ops.kernels import build
from shoal.ops.kernels.pack import pack, renumber, unpack

LOOP = """// built from 0123
.reg .f32 %f<907>;
$L__BB0_236:
\tfma.rn.f32 %f2626, %f2624, %f2625, %f2624;
\tld.global.v2.f32 {%f3, %f4}, [%rd35+4];
\tmov.f32 %f2627, 0fC6000000;
\t@%p330 bra $L__BB0_238;
"""


def test_what_is_packed_comes_back():
    texts = {"a": LOOP, "b": LOOP.replace("26", "99"), "empty": ""}
    packed = pack(texts)
    assert {name: unpack(packed, name) for name in texts} == texts


def test_registers_are_numbered_in_the_order_of_their_first_use():
    renamed = renumber(LOOP)
    assert "fma.rn.f32 %f1, %f2, %f3, %f2;\n\tld.global.v2.f32 {%f4, %f5}, [%rd1+4];" in renamed
    assert "$L__BB0_1:" in renamed
    assert "bra $L__BB0_2;" in renamed
    assert ".reg .f32 %f<907>;" in renamed  # as many as there were suffice
    assert renumber(renamed) == renamed


def test_a_text_that_would_not_come_back_is_refused():
    with pytest.raises(ValueError, match="leading zeros"):
        pack({"a": "mov.f32 %f007, %f1;"})


def test_the_file_has_every_kernel_and_is_small():
    packed = kernels.FILE.read_bytes()
    for name in ("shoal_nearest_brute_2", "shoal_mlp_backward_64_32", "shoal_mlp_bf16_forward1_32_16"):
        assert unpack(packed, name) == kernels.ptx(name)
    assert len(build.kernels()) == 50
    assert len(packed) < 160_000  # 659,000 if each is compressed alone
    with pytest.raises(KeyError):
        unpack(packed, "shoal_nearest_brute_3")
