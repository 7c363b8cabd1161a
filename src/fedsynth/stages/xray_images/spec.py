"""Data source → X-rays of one site in three splits that share no patient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedsynth.data.cxr_sites.source import CXR_SITES
from fedsynth.data.xray.source import DATASETS
from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always


@dataclass(frozen=True)
class XrayImagesSettings:
    dataset: str = setting(one_of=(*DATASETS, *CXR_SITES))
    image_size: int = setting(minimum=8, remedy="Pixels of a side.")
    allow_upsampling: bool = setting()
    labels: str = setting()
    classes: list[str] | None = setting(remedy="Names of classes, or null for all.")
    single_label_only: bool = setting()
    split: str = setting(one_of=("patient", "official"))
    split_fractions: list[float] = setting(above=0.0, below=1.0)
    split_seed: int = setting(minimum=0)
    site: int | None = setting(minimum=0, remedy="The number of a site, from 0, or null for all patients.")
    num_sites: int = setting(minimum=1)
    site_shares: list[Any] | None = setting(remedy="One row a site, one number a class, or null.")
    dirichlet_alpha: float = setting(above=0.0, remedy="Small values give uneven sites.")
    min_patients: int = setting(minimum=1)
    site_seed: int = setting(minimum=0)
    max_images: list[int] | None = setting(
        minimum=1, remedy="Three numbers (train, validation, test), or null for all."
    )

    def check(self, path: str) -> None:
        if self.dataset in CXR_SITES:
            self._check_cxr(path)
        else:
            self._check_labels(path)
        if len(self.split_fractions) != 3 or abs(sum(self.split_fractions) - 1.0) > 1e-6:
            raise ConfigError(
                f"{path}.split_fractions must be three shares (train, validation, test) that sum to 1, "
                f"got {self.split_fractions}.",
                key=f"{path}.split_fractions",
            )
        if self.classes is not None and len(set(self.classes)) < 2:
            raise ConfigError(
                f"{path}.classes must name at least two different classes, or be null for all, got {self.classes}.",
                key=f"{path}.classes",
            )
        self._check_sites(path)
        if self.max_images is not None and len(self.max_images) != 3:
            raise ConfigError(
                f"{path}.max_images must be three numbers (train, validation, test) or null, got {self.max_images}.",
                key=f"{path}.max_images",
            )

    def _check_cxr(self, path: str) -> None:
        """Each of these data sets is a site, with the labels and the split that the paper gives them."""
        fixed = {
            "labels": "eight", "classes": None, "single_label_only": False, "allow_upsampling": False,
            "split": "patient", "site": None, "num_sites": 1, "site_shares": None,
        }  # fmt: skip
        for name, wanted in fixed.items():
            if getattr(self, name) != wanted:
                raise ConfigError(
                    f"{path}.{name} must be {'null' if wanted is None else wanted} for dataset={self.dataset}, "
                    f"got {getattr(self, name)!r}. Say data=cxr_sites.",
                    key=f"{path}.{name}",
                )

    def _check_labels(self, path: str) -> None:
        dataset = DATASETS[self.dataset]
        if self.labels not in dataset.labels:
            raise ConfigError(
                f"{path}.labels must be one of {', '.join(dataset.labels)} for dataset={self.dataset}, "
                f"got {self.labels!r}.",
                key=f"{path}.labels",
            )
        if self.split == "official" and not dataset.has_official_test:
            raise ConfigError(
                f"{path}.split=official: {self.dataset} comes without the publisher's test list. Say split=patient.",
                key=f"{path}.split",
            )

    def _check_sites(self, path: str) -> None:
        if self.site is not None and self.site >= self.num_sites:
            raise ConfigError(
                f"{path}.site must be below num_sites={self.num_sites} (sites are numbered from 0), got {self.site}. "
                "Raise data.num_sites, or say data=xray_sites.",
                key=f"{path}.site",
            )
        if self.site_shares is None:
            return
        rows = self.site_shares
        fits = len(rows) == self.num_sites and all(
            isinstance(row, list)
            and row
            and all(isinstance(share, int | float) and share >= 0 for share in row)
            for row in rows
        )
        # Columns are compared with the classes once the file is read.
        if (
            not fits
            or len({len(row) for row in rows}) != 1
            or any(abs(sum(column) - 1) > 1e-6 for column in zip(*rows, strict=True))
        ):
            raise ConfigError(
                f"{path}.site_shares must have {self.num_sites} rows (one a site) of one share ≥ 0 a class, and every "
                f"column must sum to 1, got {rows}.",
                key=f"{path}.site_shares",
            )


STAGE = Stage(
    kind="xray_images",
    settings=XrayImagesSettings,
    runs="fedsynth.stages.xray_images.run:run",
    side=Side.CLIENT,
    yields=always(Sensitivity.PRIVATE),
    data=("xray",),
    uncovered=lambda settings: (
        "numbers of images and patients of every site by class and split, printed in the report",
    ),
)
