"""Grey phantoms that resemble a frontal chest X-ray: thorax, lungs, ribs, heart, opacities, noise.

Coordinates are x, y in [-1, 1], y downward. They exercise code; they are no model of disease.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from jaxtyping import Float, UInt8

NUM_CHEST_LABELS = 14

Grid = tuple[Float[np.ndarray, "h h"], Float[np.ndarray, "h h"]]


def pneumonia_image(rng: np.random.Generator, size: int, is_pneumonia: bool) -> UInt8[np.ndarray, "h h"]:
    """One image; pneumonia adds one to three focal opacities or a diffuse haze, often faint.

    Normal images get faint mimics now and then, so that the classes overlap.
    """
    image, lungs, grid = _thorax(rng, _grid(size))
    if is_pneumonia:
        if rng.random() < 0.3:
            image += rng.uniform(0.04, 0.28) * lungs  # diffuse
        else:
            for _ in range(rng.integers(1, 4)):
                image += _opacity(rng, grid, rng.uniform(0.05, 0.35)) * lungs
    elif rng.random() < 0.35:
        image += _opacity(rng, grid, rng.uniform(0.02, 0.18)) * lungs
    return _expose(rng, image)


def chest_image(
    rng: np.random.Generator, size: int, labels: UInt8[np.ndarray, " num_labels"]
) -> UInt8[np.ndarray, "h h"]:
    """One image with an opacity of its own place and extent for each positive label."""
    image, _, grid = _thorax(rng, _grid(size))
    _add_findings(rng, image, grid, labels)
    return _expose(rng, image)


def _add_findings(rng: np.random.Generator, image: np.ndarray, grid: Grid, labels: np.ndarray) -> None:
    """Add an opacity of its own place and extent for each positive label."""
    for label in np.flatnonzero(labels):
        angle = 2 * np.pi * label / NUM_CHEST_LABELS
        x, y = 0.45 * np.cos(angle), 0.55 * np.sin(angle)
        jitter = rng.normal(0, 0.05, 2)
        width = 0.12 + 0.02 * (label % 4)
        image += rng.uniform(0.1, 0.3) * _blob(grid, x + jitter[0], y + jitter[1], width, width)


def child_image(anatomy: int, rng: np.random.Generator, size: int, etiology: str) -> UInt8[np.ndarray, "h h"]:
    """One image of a person: a thorax that ``anatomy`` alone decides, in another pose and exposure each time.

    Bacteria bring one to three dense foci, viruses a haze of both lungs with faint foci; normal lungs now and then a
    faint mimic, so that the classes overlap.
    """
    image, lungs, grid = _posed_thorax(anatomy, rng, size)
    if etiology == "bacteria":
        for _ in range(rng.integers(1, 4)):
            image += _opacity(rng, grid, rng.uniform(0.12, 0.4)) * lungs
    elif etiology == "virus":
        image += rng.uniform(0.06, 0.22) * lungs
        for _ in range(rng.integers(1, 3)):
            image += _opacity(rng, grid, rng.uniform(0.02, 0.12)) * lungs
    elif rng.random() < 0.3:
        image += _opacity(rng, grid, rng.uniform(0.02, 0.18)) * lungs
    return _expose(rng, image)


def person_image(
    anatomy: int, rng: np.random.Generator, size: int, labels: UInt8[np.ndarray, " num_labels"]
) -> UInt8[np.ndarray, "h h"]:
    """One image of a person (see :func:`child_image`) with the opacities of :func:`chest_image`."""
    image, _, grid = _posed_thorax(anatomy, rng, size)
    _add_findings(rng, image, grid, labels)
    return _expose(rng, image)


@lru_cache(maxsize=4)
def _grid(size: int) -> Grid:
    axis = np.linspace(-1, 1, size)
    x, y = np.meshgrid(axis, axis)
    return x, y


def _blob(grid: Grid, x: float, y: float, width: float, height: float) -> np.ndarray:
    return np.exp(-0.5 * (((grid[0] - x) / width) ** 2 + ((grid[1] - y) / height) ** 2))


def _ellipse(grid: Grid, x: float, y: float, width: float, height: float) -> np.ndarray:
    """1 inside, 0 outside, with a soft border."""
    radius = np.sqrt(((grid[0] - x) / width) ** 2 + ((grid[1] - y) / height) ** 2)
    return 1 / (1 + np.exp((radius - 1) * 12))


def _posed_thorax(anatomy: int, rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray, Grid]:
    """The thorax of one person, turned, shifted and scaled a little before the detector."""
    x, y = _grid(size)
    angle, scale, (right, down) = rng.normal(0, 0.03), rng.normal(1, 0.03), rng.normal(0, 0.03, 2)
    turned_x = scale * (np.cos(angle) * x - np.sin(angle) * y) + right
    turned_y = scale * (np.sin(angle) * x + np.cos(angle) * y) + down
    return _thorax(np.random.default_rng(anatomy), (turned_x, turned_y))


def _thorax(rng: np.random.Generator, grid: Grid) -> tuple[np.ndarray, np.ndarray, Grid]:
    """A healthy chest with individual anatomy: image, lung mask, grid."""
    x, y = grid
    shift, scale = rng.normal(0, 0.04, 2), rng.normal(1, 0.05)
    lung_width, lung_height = rng.uniform(0.26, 0.32) * scale, rng.uniform(0.55, 0.7) * scale
    lungs = np.zeros_like(x)
    for side in (-1, 1):
        lungs += _ellipse(grid, side * 0.4 * scale + shift[0], shift[1] - 0.05, lung_width, lung_height)
    lungs = np.clip(lungs, 0, 1)
    image = 0.25 + 0.45 * _ellipse(grid, shift[0], shift[1] + 0.1, 0.9 * scale, 1.05 * scale) - 0.4 * lungs
    ribs = 0.5 + 0.5 * np.cos(2 * np.pi * (rng.uniform(3, 4) * (y + 0.25 * x**2) + rng.random()))
    image += rng.uniform(0.04, 0.1) * ribs * lungs
    image += 0.25 * _blob(grid, shift[0], 0.0, 0.1, 1.2)  # spine and mediastinum
    image += 0.3 * _ellipse(grid, 0.12 + shift[0], 0.3 + shift[1], rng.uniform(0.24, 0.34), 0.3)  # heart
    return image, lungs, grid


def _opacity(rng: np.random.Generator, grid: Grid, contrast: float) -> np.ndarray:
    x, y = rng.choice((-1, 1)) * rng.uniform(0.3, 0.5), rng.uniform(-0.35, 0.45)
    return contrast * _blob(grid, x, y, rng.uniform(0.08, 0.25), rng.uniform(0.08, 0.25))


def _expose(rng: np.random.Generator, image: np.ndarray) -> UInt8[np.ndarray, "h h"]:
    """Individual brightness, contrast and noise; 8-bit grey values."""
    exposed = rng.normal(1, 0.1) * image + rng.normal(0, 0.04) + rng.normal(0, 0.035, image.shape)
    return np.clip(exposed * 255, 0, 255).astype(np.uint8)
