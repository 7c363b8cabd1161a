"""A release that keeps a private file without saying so."""

from __future__ import annotations

from dataclasses import replace

from toystages.keeper import STAGE as KEEPER

STAGE = replace(KEEPER, kind="careless", keeps_private=False)
