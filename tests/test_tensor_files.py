"""Tensors that come back from bytes as they went."""

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unskew.tensor_files import dump, load

IMAGES = torch.arange(2 * 3 * 4 * 5.0).view(2, 3, 4, 5)
TENSORS = {
    "plain": IMAGES,
    "channels last": IMAGES.to(memory_format=torch.channels_last),
    "one channel, channels last": torch.randn(4, 1, 5, 5).to(memory_format=torch.channels_last),
    "transposed": torch.randn(3, 4).T,
    "half": torch.randn(7).bfloat16(),
    "scalar": torch.tensor(3),
    "empty": torch.empty(0, 3),
    "truth": torch.tensor([True, False]),
    "not numbers": torch.tensor([torch.nan, torch.inf, -0.0]),
    "a part of another": torch.randn(6, 6)[:, 2:4],
}


def test_values_types_strides_and_order_come_back() -> None:
    restored = load(dump(TENSORS))
    assert list(restored) == list(TENSORS)
    for name, value in TENSORS.items():
        assert restored[name].dtype == value.dtype
        as_bytes, expected = (
            each.contiguous().numpy(force=True).tobytes()
            if each.dtype != torch.bfloat16
            else each.view(torch.int16).numpy().tobytes()
            for each in (restored[name], value)
        )
        assert as_bytes == expected
        if name != "a part of another":  # has gaps, which nobody keeps
            assert restored[name].stride() == value.stride()


def test_tensors_that_share_memory_come_back_each_with_its_own() -> None:
    value = torch.ones(3)
    restored = load(dump({"a": value, "b": value, "c": value[:2]}))
    restored["a"].zero_()
    assert restored["b"].tolist() == [1, 1, 1]
    assert restored["c"].tolist() == [1, 1]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_damaged_bytes_are_refused_or_read_never_worse(data: st.DataObject) -> None:
    content = bytearray(dump({"a": TENSORS["channels last"], "b": TENSORS["half"]}))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    with contextlib.suppress(ValueError):
        load(bytes(content))


@pytest.mark.parametrize(
    "layout", ["[[2,60],[1,2],3]", "[[2],[1]]", "[[120,1],[1,-5]]", "[[60,2],[1,1]]", "7"]
)
def test_a_layout_that_does_not_fit_is_refused(layout: str) -> None:
    content = dump({"a": IMAGES.permute(3, 2, 1, 0)})
    true = b"[[5, 4, 3, 2], [1, 5, 20, 60]]"
    assert true in content
    with pytest.raises(ValueError, match="tensors of unskew"):
        load(content.replace(true, layout.encode().ljust(len(true))))
