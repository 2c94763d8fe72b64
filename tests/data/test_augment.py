"""Augmented pictures are those of Pillow, SciPy and plain loops, and depend on their own numbers alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from scipy import ndimage
from torch import Tensor

from unskew.data.augment import Augment, normalise
from unskew.data.autoaugment import POLICY, RANGES, Op, autoaugment, recolour, resample
from unskew.errors import UserError
from unskew.types import Inputs

Array = np.ndarray
BELOW_ONE = float(np.nextafter(np.float32(1), np.float32(0)))
EVERYTHING = "crop:4,flip,rotate:15,autoaugment,cutout:8"
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def noise(n: int = 12, channels: int = 3, height: int = 16, width: int = 20, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (n, channels, height, width), dtype=torch.uint8, generator=generator)


def pictures() -> Tensor:
    """Noise, low contrast, gradients, few values, one value: 32×32."""
    x = noise(8, height=32, width=32)
    x[1] = x[1] // 4 + 100
    x[2] = torch.arange(1024).view(32, 32) // 5 % 256
    x[3] = x[3] // 128 * 200
    x[4] = 77
    x[5, 0] = 0
    x[6] = (x[6].float() ** 2 / 300).to(torch.uint8)
    x[7, :, 8:] = 255
    return x


def uniforms(n: int, draws: int, seed: int = 1) -> Tensor:
    return torch.rand(n, draws, generator=torch.Generator().manual_seed(seed))


def bytes_of(x: Tensor, augment: str, u: Tensor) -> Array:
    """Return the augmented pictures as bytes."""
    out = Augment.parse(augment).apply(x, u, (), ()) * 255
    assert torch.equal(out.round(), out.round().clamp(0, 255))
    return out.round().to(torch.uint8).numpy()


# crop, flip, rotate, cutout -----------------------------------------------------------------------


def cropped(image: Array, pad: int, mode: str, u: Array) -> Array:
    size = 2 * pad + 1
    dy, dx = (min(int(np.float32(v) * np.float32(size)), size - 1) for v in u)
    padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)), mode=mode)  # type: ignore[call-overload]
    return padded[:, dy : dy + image.shape[1], dx : dx + image.shape[2]]


edges = st.sampled_from([0.0, 0.5, BELOW_ONE]) | st.floats(0, BELOW_ONE, width=32)


@settings(max_examples=40)
@given(data=st.data(), mode=st.sampled_from(["constant", "reflect"]), flip=st.booleans())
def test_crop_and_flip_are_the_loops(data: st.DataObject, mode: str, flip: bool) -> None:
    height, width = data.draw(st.integers(2, 9)), data.draw(st.integers(2, 9))
    pad = data.draw(st.integers(0, min(height, width) - 1))
    x = noise(3, data.draw(st.integers(1, 4)), height, width)
    name = f"crop:{pad}{'/reflect' if mode == 'reflect' else ''}{',flip' if flip else ''}"
    draws = Augment.parse(name).draws
    u = torch.tensor(
        data.draw(st.lists(st.lists(edges, min_size=draws, max_size=draws), min_size=3, max_size=3))
    )
    u = u.view(3, draws)
    result = bytes_of(x, name, u)
    for i, image in enumerate(x.numpy()):
        expected = cropped(image, pad, mode, u[i, :2].numpy()) if pad else image
        if flip and u[i, -1] < 0.5:
            expected = expected[:, :, ::-1]
        assert np.array_equal(result[i], expected)


def test_every_shift_is_equally_likely() -> None:
    u = (torch.arange(9) + 0.5) / 9
    x = torch.zeros(9, 1, 9, 9, dtype=torch.uint8)
    x[:, :, 4, 4] = 255
    result = bytes_of(x, "crop:4", torch.stack((u, torch.full((9,), 0.5)), dim=1))
    assert [int(image[0].argmax()) // 9 for image in result] == [8, 7, 6, 5, 4, 3, 2, 1, 0]


def test_rotation_is_pillows() -> None:
    x = noise(20, height=32, width=24)
    u = uniforms(20, 1)
    result = bytes_of(x, "rotate:15", u)
    for i, image in enumerate(x.numpy()):
        angle = (2 * float(u[i, 0]) - 1) * 15
        turned = Image.fromarray(np.moveaxis(image, 0, 2)).rotate(angle)
        # Pillow computes the coordinates in 16-bit fixed point, so some pixels take the neighbour.
        assert (result[i] == np.moveaxis(np.asarray(turned), 2, 0)).mean() > 0.99


def test_rotation_follows_the_flip() -> None:
    x = noise(6, height=17, width=17)
    u = torch.full((6, 2), 0.0)
    u[:, 1] = uniforms(6, 1)[:, 0]
    flipped = torch.from_numpy(bytes_of(x, "flip", u[:, :1]))
    assert np.array_equal(bytes_of(x, "flip,rotate:90", u), bytes_of(flipped, "rotate:90", u[:, 1:]))


def test_a_quarter_turn_is_exact() -> None:
    x = noise(2, height=8, width=8)
    result = bytes_of(x, "rotate:180", torch.full((2, 1), 0.75))
    assert np.array_equal(result, np.rot90(x.numpy(), axes=(2, 3)))


@pytest.mark.parametrize("side", [1, 4, 7, 16])
def test_cutout_is_the_loop(side: int) -> None:
    x = noise(30)
    u = uniforms(30, 2)
    u[0], u[1] = 0.0, BELOW_ONE
    plain = normalise(x, MEAN, STD)
    result = Augment(cutout=side).apply(x, u, MEAN, STD)
    for i in range(len(x)):
        expected = plain[i].clone()
        cy, cx = (min(int(v * n), n - 1) for v, n in zip(u[i].tolist(), (16, 20), strict=True))
        for row in range(16):
            for column in range(20):
                if -(side // 2) <= row - cy < side // 2 and -(side // 2) <= column - cx < side // 2:
                    expected[:, row, column] = 0.0
        assert torch.equal(result[i], expected)
        assert int((result[i] != plain[i]).any(dim=0).sum()) <= (2 * (side // 2)) ** 2


def test_nothing_is_nothing() -> None:
    x = noise()
    for name in ("", "none", "crop:0", "rotate:0", "cutout:0", "crop:0,cutout:0"):
        augment = Augment.parse(name)
        assert augment.draws == 0
        assert torch.equal(augment.apply(x, torch.empty(len(x), 0), MEAN, STD), normalise(x, MEAN, STD))


# normalise ----------------------------------------------------------------------------------------


def test_normalise() -> None:
    x = noise()
    expected = (x.double() / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    torch.testing.assert_close(normalise(x, MEAN, STD).double(), expected.double(), rtol=0, atol=2e-6)
    torch.testing.assert_close(normalise(x, (), ()), x / 255, rtol=0, atol=0)


@pytest.mark.parametrize("x", [torch.rand(3, 5), torch.ones(3, 5, dtype=torch.int32)])
def test_tables_and_tokens_pass(x: Tensor) -> None:
    assert normalise(x, (), ()) is x
    assert Augment().apply(x, torch.empty(3, 0), (), ()) is x


# AutoAugment: colours -----------------------------------------------------------------------------

COLOURS: dict[Op, Callable[[Image.Image, float], Image.Image]] = {
    Op.AUTO_CONTRAST: lambda image, m: ImageOps.autocontrast(image),
    Op.INVERT: lambda image, m: ImageOps.invert(image),
    Op.EQUALIZE: lambda image, m: ImageOps.equalize(image),
    Op.SOLARIZE: lambda image, m: ImageOps.solarize(image, m),  # type: ignore[arg-type]
    Op.POSTERIZE: lambda image, m: ImageOps.posterize(image, round(m)),
    Op.CONTRAST: lambda image, m: ImageEnhance.Contrast(image).enhance(m),
    Op.COLOR: lambda image, m: ImageEnhance.Color(image).enhance(m),
    Op.BRIGHTNESS: lambda image, m: ImageEnhance.Brightness(image).enhance(m),
    Op.SHARPNESS: lambda image, m: ImageEnhance.Sharpness(image).enhance(m),
}


def by_pillow(image: Tensor, op: Op, magnitude: float) -> Tensor:
    pixels = image.permute(1, 2, 0).squeeze(2).numpy()
    out = np.asarray(COLOURS[op](Image.fromarray(pixels), magnitude))
    return torch.from_numpy(out.copy()).view(*image.shape[1:], -1).permute(2, 0, 1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("op", COLOURS)
def test_colour_operations_are_pillows(op: Op, channels: int) -> None:
    x = torch.cat([pictures(), noise(8, height=32, width=32)])[:, :channels]
    low, high = RANGES.get(op, (0.0, 0.0))
    magnitudes = low + (high - low) * torch.linspace(0, 1, len(x))
    if op is Op.POSTERIZE:
        magnitudes = magnitudes.round()
    result = recolour(x, torch.full((len(x),), int(op)), magnitudes)
    for i in range(len(x)):
        assert torch.equal(result[i], by_pillow(x[i], op, float(magnitudes[i]))), (i, float(magnitudes[i]))


def test_a_batch_may_mix_colour_operations() -> None:
    ops = list(COLOURS)
    x = noise(len(ops))
    magnitudes = torch.tensor([sum(RANGES.get(op, (0.0, 0.0))) * 0.6 for op in ops])
    result = recolour(x, torch.tensor([int(op) for op in ops]), magnitudes)
    for i, op in enumerate(ops):
        assert torch.equal(result[i], by_pillow(x[i], op, float(magnitudes[i]))), op


@pytest.mark.parametrize("op", [op for op in Op if op not in COLOURS])
def test_other_operations_leave_colours_alone(op: Op) -> None:
    x = pictures()
    assert torch.equal(recolour(x, torch.full((len(x),), int(op)), torch.full((len(x),), 0.7)), x)


# AutoAugment: geometry ----------------------------------------------------------------------------

GEOMETRY: dict[Op, Callable[[float, int, int], list[list[float]]]] = {
    Op.SHEAR_Y: lambda m, H, W: [[1, 0, 0], [m, 1, 0]],
    Op.TRANSLATE_X: lambda m, H, W: [[1, 0, 0], [0, 1, W * m]],
    Op.TRANSLATE_Y: lambda m, H, W: [[1, 0, H * m], [0, 1, 0]],
    Op.ROTATE: lambda m, H, W: [
        [math.cos(math.radians(m)), -math.sin(math.radians(m)), 0],
        [math.sin(math.radians(m)), math.cos(math.radians(m)), 0],
    ],
}


def smooth(n: int, height: int, width: int) -> Tensor:
    """Bright pictures without sharp edges, on which interpolations agree."""
    waves = ndimage.gaussian_filter(noise(n, 3, height, width, seed=5).numpy().astype(float), (0, 0, 2, 2))
    return torch.from_numpy(np.clip(128 + 4 * (waves - 128), 30, 255).astype(np.uint8))


def by_scipy(image: Array, op: Op, magnitude: float, order: int = 3) -> Array:
    H, W = image.shape[1:]
    matrix = np.array(GEOMETRY[op](magnitude, H, W))
    centre = np.array([(H - 1) / 2, (W - 1) / 2])
    offset = centre - matrix[:, :2] @ centre + matrix[:, 2]
    return np.stack([ndimage.affine_transform(c, matrix[:, :2], offset, order=order) for c in image])


@pytest.mark.parametrize("op", GEOMETRY)
def test_geometric_operations_are_the_affine_maps(op: Op) -> None:
    x = smooth(9, 20, 24)
    low, high = RANGES[op]
    magnitudes = low + (high - low) * torch.linspace(0, 1, 9)
    ops = torch.full((9,), int(op))
    none = (torch.zeros(9, dtype=torch.int64), magnitudes)
    result = resample(x, [(ops, magnitudes), none]).numpy().astype(int)
    assert np.array_equal(result, resample(x, [none, (ops, magnitudes)]).numpy())
    for i, image in enumerate(x.numpy()):
        expected = by_scipy(image, op, float(magnitudes[i])).astype(int)
        assert np.array_equal(result[i] == 0, expected == 0)
        assert np.abs(result[i] - expected).max() <= 8
        assert np.abs(result[i] - expected).mean() < 0.6


@pytest.mark.parametrize(
    ("first", "m1", "second", "m2"),
    [
        (Op.ROTATE, -15.0, Op.TRANSLATE_X, 0.4),
        (Op.SHEAR_Y, 0.2, Op.TRANSLATE_Y, 0.4),
        (Op.TRANSLATE_Y, 0.4, Op.TRANSLATE_Y, -0.3),
    ],
)
def test_two_geometric_operations_in_a_row(first: Op, m1: float, second: Op, m2: float) -> None:
    """Compare with one operation after the other: what the first moves out of the picture stays lost."""
    x = smooth(4, 24, 24)
    steps = [(torch.full((4,), int(op)), torch.full((4,), m)) for op, m in ((first, m1), (second, m2))]
    result = resample(x, steps).numpy().astype(int)
    for i, image in enumerate(x.numpy()):
        expected = by_scipy(by_scipy(image, first, m1), second, m2).astype(int)
        there = by_scipy(by_scipy(np.full_like(image, 255), first, m1, 0), second, m2, 0)
        # Away from the edge, where a spline swings.
        inner = ndimage.minimum_filter(there, (1, 7, 7), mode="constant") > 0
        outer = ndimage.maximum_filter(there, (1, 3, 3)) == 0
        assert 0.05 < inner.mean() < 0.95
        assert 0.05 < outer.mean() < 0.95
        assert np.abs(result[i] - expected)[inner].max() <= 12
        assert np.abs(result[i] - expected)[inner].mean() < 1
        assert not result[i][outer].any()


def test_pictures_without_geometry_stay_exact() -> None:
    x = noise(3, height=33, width=47)
    none = (torch.tensor([Op.NONE, Op.EQUALIZE, Op.INVERT]), torch.full((3,), 0.4))
    assert torch.equal(resample(x, [none, none]), x)


# AutoAugment: the policy --------------------------------------------------------------------------


def test_the_policy_is_the_papers() -> None:
    """Compare its shape and the sub-policies that the paper shows; the whole table need not be repeated."""
    assert len(POLICY) == 25
    assert POLICY[0] == ((Op.INVERT, 0.1, 7), (Op.CONTRAST, 0.2, 6))
    assert POLICY[1] == ((Op.ROTATE, 0.7, 2), (Op.TRANSLATE_X, 0.3, 9))
    assert POLICY[14] == ((Op.SOLARIZE, 0.5, 2), (Op.INVERT, 0.0, 3))
    assert POLICY[24] == ((Op.TRANSLATE_Y, 0.7, 9), (Op.AUTO_CONTRAST, 0.9, 1))
    steps = [step for pair in POLICY for step in pair]
    assert all(0 <= p <= 1 and round(10 * p) == pytest.approx(10 * p) and 0 <= m <= 9 for _, p, m in steps)
    assert sum(op is Op.EQUALIZE for op, *_ in steps) == 9
    assert sum(op in GEOMETRY for op, *_ in steps) == 10
    assert {op for op, *_ in steps} == set(Op) - {Op.NONE}


def by_policy(image: Tensor, u: list[float]) -> Tensor:
    """Apply a sub-policy to one image, operation after operation."""
    pair = POLICY[min(int(np.float32(u[0]) * np.float32(25)), 24)]
    for (op, probability, m), apply, strength in zip(pair, u[1::2], u[2::2], strict=True):
        if not np.float32(apply) < np.float32(probability):
            continue
        low, high = RANGES.get(op, (0.0, 0.0))
        grid = np.linspace(low, high, 11)
        magnitude = float(np.float32(grid[m] + strength * (grid[m + 1] - grid[m])))
        if op in GEOMETRY:
            image = resample(image[None], [(torch.tensor([int(op)]), torch.tensor([magnitude]))])[0]
        else:
            image = by_pillow(image, op, magnitude)
    return image


def test_every_sub_policy_is_its_operations_one_after_the_other() -> None:
    repeats = 6
    x = noise(25 * repeats, height=20, width=20)
    u = uniforms(len(x), 5)
    u[:, 0] = (torch.arange(len(x)) % 25 + 0.5) / 25
    result = autoaugment(x, u.unbind(dim=1))
    changed = 0
    for i in range(len(x)):
        pair = POLICY[i % 25]
        if all(op in GEOMETRY for op, *_ in pair):
            continue  # one resampling in place of two; compared above
        expected = by_policy(x[i], u[i].tolist()).int()
        close = (result[i].int() - expected).abs() <= 1  # the magnitude's last bit
        assert float(close.float().mean()) > 0.999, pair
        changed += not torch.equal(result[i], x[i])
    assert changed > len(x) // 3


def test_rotation_has_no_random_sign() -> None:
    """Index 2 of the grid from -30 to 30 degrees: from -18 at the lowest draw to -12 at the highest."""
    x = smooth(2, 32, 32)
    u = torch.tensor([[1.5 / 25, 0.0, strength, 0.99, 0.0] for strength in (0.0, BELOW_ONE)])
    result = autoaugment(x, u.unbind(dim=1)).numpy().astype(int)
    for image, out, angle in zip(x.numpy(), result, (-18.0, -12.0), strict=True):
        assert np.abs(out - by_scipy(image, Op.ROTATE, angle)).mean() < 0.6


def test_a_probability_of_zero_is_never() -> None:
    x = noise(2)
    u = torch.tensor([[14.5 / 25, BELOW_ONE, 0.5, 0.0, 0.5]] * 2)
    assert torch.equal(autoaugment(x, u.unbind(dim=1)), x)


@pytest.mark.parametrize("edge", [0.0, BELOW_ONE])
@pytest.mark.parametrize("channels", [1, 3])
def test_extreme_numbers_are_fine(edge: float, channels: int) -> None:
    augment = Augment.parse(EVERYTHING)
    out = augment.apply(
        noise(3, channels), torch.full((3, augment.draws), edge), (0.5,) * channels, (0.2,) * channels
    )
    assert out.shape == (3, channels, 16, 20)
    assert bool(out.isfinite().all())


# the whole ----------------------------------------------------------------------------------------


def test_a_picture_depends_on_its_own_row_alone() -> None:
    augment = Augment.parse(EVERYTHING)
    x, u = noise(101, height=32, width=32), uniforms(101, augment.draws)
    out = augment.apply(x, u, MEAN, STD)
    order = torch.randperm(101, generator=torch.Generator().manual_seed(2))
    assert torch.equal(augment.apply(x[order], u[order], MEAN, STD), out[order])
    for some in (slice(0, 1), slice(7, 12), slice(40, 101)):
        assert torch.equal(augment.apply(x[some], u[some], MEAN, STD), out[some])
    assert torch.equal(augment.apply(x, u, MEAN, STD), out)


def test_inputs_are_not_changed() -> None:
    augment = Augment.parse(EVERYTHING)
    x, u = noise(), uniforms(12, augment.draws)
    before = x.clone(), u.clone()
    augment.apply(x, u, MEAN, STD)
    assert torch.equal(x, before[0])
    assert torch.equal(u, before[1])


def test_steps_come_in_the_published_order() -> None:
    augment = Augment.parse("crop:3,flip,autoaugment,cutout:6")
    x, u = noise(), uniforms(12, augment.draws)
    step = torch.from_numpy(bytes_of(x, "crop:3,flip", u[:, :3]))
    step = autoaugment(step, u[:, 3:8].unbind(dim=1))
    expected = Augment(cutout=6).apply(step, u[:, 8:], MEAN, STD)
    assert torch.equal(augment.apply(x, u, MEAN, STD), expected)


@given(
    crop=st.integers(0, 9),
    reflect=st.booleans(),
    flip=st.booleans(),
    rotate=st.sampled_from([0.0, 15.0, 7.5]),
    autoaugment=st.booleans(),
    cutout=st.integers(0, 16),
)
def test_text_and_back(
    crop: int, reflect: bool, flip: bool, rotate: float, autoaugment: bool, cutout: int
) -> None:
    augment = Augment(crop, reflect and crop > 0, flip, rotate, autoaugment, cutout)
    assert Augment.parse(str(augment)) == augment
    assert Augment.parse(f" {str(augment).replace(',', ' , ')} ") == augment


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("crop:4,flp", "unknown augmentation 'flp': did you mean 'flip'?"),
        ("crop", "augmentation 'crop' needs a whole number, as in 'crop:4', not ''."),
        ("crop:2.5", "augmentation 'crop' needs a whole number, as in 'crop:4', not '2.5'."),
        ("crop:4/edge", "unknown fill of augmentation 'crop' 'edge': choose one of reflect."),
        ("rotate:far", "augmentation 'rotate' needs a number, as in 'rotate:4', not 'far'."),
        ("rotate:-5", "augmentation 'rotate:-5' needs a number of 0 or more."),
        ("rotate:nan", "augmentation 'rotate:nan' needs a number of 0 or more."),
        ("flip:2", "augmentation 'flip' takes no number: write 'flip', not 'flip:2'."),
        ("flip,crop:4", "augmentation 'flip,crop:4' is out of order or repeats itself: write each step once"),
        ("flip,flip", "augmentation 'flip,flip' is out of order or repeats itself: write each step once"),
        ("flip,", "unknown augmentation '': choose one of"),
    ],
)
def test_mistyped_augmentations_are_explained(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        Augment.parse(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "inputs", "message"),
    [
        (
            "flip",
            Inputs("table", (5,)),
            "augmentation 'flip' changes images, but these are table data: use 'none'.",
        ),
        ("flip", Inputs("text", (5,), 9), "augmentation 'flip' changes images, but these are text data"),
        (
            "crop:9",
            Inputs("image", (1, 8, 9)),
            "augmentation 'crop:9' shifts images of 8×9 too far: crop by 8 at most.",
        ),
        (
            "crop:8/reflect",
            Inputs("image", (1, 8, 9)),
            "augmentation 'crop:8/reflect' shifts images of 8×9 too far",
        ),
        (
            "cutout:9",
            Inputs("image", (1, 8, 9)),
            "augmentation 'cutout:9' exceeds images of 8×9: use 8 at most.",
        ),
        ("rotate:181", Inputs("image", (1, 8, 9)), "augmentation 'rotate:181' turns too far"),
        (
            "autoaugment",
            Inputs("image", (4, 8, 9)),
            "augmentation 'autoaugment' needs grey or RGB images, not 4",
        ),
    ],
)
def test_unfit_augmentations_are_explained(text: str, inputs: Inputs, message: str) -> None:
    augment = Augment.parse(text)
    with pytest.raises(UserError) as caught:
        augment.check(inputs)
    assert str(caught.value).startswith(message)
    dtype = {"image": torch.uint8, "table": torch.float32, "text": torch.int32}[inputs.kind]
    with pytest.raises(UserError):
        augment.apply(torch.zeros(2, *inputs.shape, dtype=dtype), torch.zeros(2, augment.draws), (), ())


def test_numbers_of_another_shape_are_explained() -> None:
    with pytest.raises(
        UserError, match=r"needs 3 numbers for each of 12 images, not an array of shape \[12, 4\]"
    ):
        Augment.parse("crop:4,flip").apply(noise(), uniforms(12, 4), (), ())


@pytest.mark.parametrize("text", ["crop:8", "crop:7/reflect", "cutout:8", "rotate:180", "crop:0", "none"])
def test_the_largest_allowed(text: str) -> None:
    augment = Augment.parse(text)
    augment.check(Inputs("image", (1, 8, 9)))
    augment.apply(noise(2, 1, 8, 9), uniforms(2, augment.draws), (), ())
    Augment.parse("none").check(Inputs("table", (5,)))
