"""The figure of the final model's features in two dimensions (PKD, Fig. 5; FedLC, Fig. 7)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unskew.errors import UserError
from unskew.report.figures.fitting import distinct, fit, text_width
from unskew.report.figures.layout import add_legend, blank, columns_for, panels
from unskew.report.figures.lines import class_looks
from unskew.report.figures.style import COLUMN, LINE, NORMAL, PAGE, SMALL, TALLEST, printed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CLASSES = 21
"""The most classes that can be told apart: there are two or three markers in each of ten colours."""


@dataclass(frozen=True, eq=False)
class Features:
    """The features of test samples by one model."""

    name: str
    values: NDArray[np.float32]
    """[n, d]"""
    labels: NDArray[np.int64]
    """[n]"""


@printed
def tsne(
    models: Sequence[Features], classes: Sequence[str], *, width: float | None = None, title: str = ""
) -> Figure:
    """Draw a panel for each model, with a point for each sample in the look of its class.

    t-SNE shows which samples are near each other. Sizes of clusters and distances between them mean nothing.
    """
    shown = sorted({int(label) for model in models for label in model.labels})
    if len(shown) > MOST_CLASSES:
        raise UserError(
            f"{len(shown)} classes cannot be told apart: choose at most {MOST_CLASSES} with --classes."
        )
    total = width or (COLUMN if len(models) == 1 else PAGE)
    columns = columns_for(len(models), int(max(total // (1.75 if len(models) > 3 else 2.2), 1)))
    rows = math.ceil(len(models) / columns)
    side = min(total / columns - 0.1, (TALLEST - 0.8) / rows - 0.25, 3.0)
    names = distinct([classes[label] for label in shown], 0.9)
    figure = blank(total, rows * (side + 0.25), title)
    every, spare = panels(figure, len(models), columns)
    for model, axes in zip(models, every, strict=True):
        places = embed(model.values)
        for look, label in zip(class_looks(len(shown)), shown, strict=True):
            mine = places[model.labels == label]
            axes.plot(mine[:, 0], mine[:, 1], **look, markersize=2.2, alpha=0.75)
        axes.set(xticks=[], yticks=[], box_aspect=1)
        _name_clusters(axes, {names[i]: places[model.labels == label] for i, label in enumerate(shown)}, side)
        axes.spines[:].set_visible(True)
        if len(models) > 1:
            axes.set_title(fit(model.name, side, NORMAL))
    add_legend(figure, _keys(len(shown)), names, spare)
    return figure


def _name_clusters(axes: Axes, clusters: Mapping[str, NDArray[np.float32]], side: float) -> None:
    """Write each class's name at the median of its points, or a few lines away if it would cover another.

    A name without such a place is left out. Names help since markers are hard to tell apart without colour.
    """
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    taken: list[tuple[float, float, float]] = []
    for name, points in clusters.items():
        if not len(points):
            continue
        x, y = np.median(points, axis=0)
        wide = text_width(name, SMALL) / 2 + 0.03
        across = float(np.clip((x - left) / (right - left) * side, wide, side - wide))
        for lines in (0, 1, -1, 2, -2, 3, -3):
            up = float((y - bottom) / (top - bottom) * side) + 1.1 * lines * LINE
            free = all(
                abs(across - other) >= wide + half or abs(up - height) >= 1.1 * LINE
                for other, height, half in taken
            )
            if free and LINE < up < side - LINE:
                taken.append((across, up, wide))
                axes.text(
                    across / side, up / side, name, transform=axes.transAxes, ha="center", va="center",
                    fontsize=SMALL, bbox={"facecolor": "white", "alpha": 0.8, "pad": 0.4, "linewidth": 0},
                )  # fmt: skip
                break


def _keys(number: int) -> list[object]:
    from matplotlib.lines import Line2D

    return [Line2D([], [], **look, markersize=4) for look in class_looks(number)]


def embed(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute t-SNE with scikit-learn from a fixed start, so that the same features give the same picture."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # comes with scikit-learn

    n = len(values)
    if n < 8 or not np.isfinite(values).all():
        raise UserError(
            "t-SNE needs at least 8 samples with finite features: choose more classes, or a run that did not "
            "diverge."
        )
    with threadpool_limits(1):  # several threads would add up numbers in any order
        made = TSNE(perplexity=min(30.0, (n - 1) / 3), init="pca", random_state=0).fit_transform(values)
    return np.asarray(made, dtype=np.float32)
