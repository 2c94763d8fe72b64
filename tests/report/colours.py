"""Colours as they are seen, also by eyes that lack one kind of cone."""

from __future__ import annotations

import numpy as np

# How eyes that lack one kind of cone see a colour: linear RGB to linear RGB (Machado, Oliveira and Fernandes,
# A Physiologically-based Model for Simulation of Color Vision Deficiency, 2009, severity 1.0).
VISION = {
    "normal": np.eye(3),
    "protan": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deutan": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritan": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB of linear RGB, D65."""
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / TO_XYZ.sum(axis=1)
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def ciede2000(one: np.ndarray, other: np.ndarray) -> float:
    """CIE 142-2001, as Sharma, Wu and Dalal write it out (2005)."""
    (L1, a1, b1), (L2, a2, b2) = one, other
    mean = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    G = 0.5 * (1 - np.sqrt(mean**7 / (mean**7 + 25**7)))
    a1, a2 = (1 + G) * a1, (1 + G) * a2
    C1, C2 = np.hypot(a1, b1), np.hypot(a2, b2)
    h1, h2 = np.degrees(np.arctan2(b1, a1)) % 360, np.degrees(np.arctan2(b2, a2)) % 360
    turn = (h2 - h1 + 180) % 360 - 180 if C1 * C2 else 0.0
    L, C = (L1 + L2) / 2, (C1 + C2) / 2
    h = h1 + turn / 2 if C1 * C2 else h1 + h2
    H = 2 * np.sqrt(C1 * C2) * np.sin(np.radians(turn / 2))
    T = 1 + sum(
        weight * np.cos(np.radians(times * h + shift))
        for weight, times, shift in ((-0.17, 1, -30), (0.24, 2, 0), (0.32, 3, 6), (-0.20, 4, -63))
    )
    away = (h % 360 - 275) / 25
    R = -np.sin(np.radians(60 * np.exp(-(away**2)))) * 2 * np.sqrt(C**7 / (C**7 + 25**7))
    lightness = (L2 - L1) / (1 + 0.015 * (L - 50) ** 2 / np.sqrt(20 + (L - 50) ** 2))
    chroma, hue = (C2 - C1) / (1 + 0.045 * C), H / (1 + 0.015 * C * T)
    return float(np.sqrt(lightness**2 + chroma**2 + hue**2 + R * chroma * hue))


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2 has it."""
    return float(TO_XYZ[1] @ linear(colour))
