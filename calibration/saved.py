"""Fitted calibrators as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from playcall.calibration.venn_abers import VennAbers
from playcall.strategies.errors import Misuse
from playcall.strategies.rules import Scale, Weight

if TYPE_CHECKING:
    from playcall.calibration.calibrator import ConfidenceCalibrator
    from playcall.strategies.codec import Json

Chance = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[list[Chance], Field(min_length=3, max_length=3)]
K = TypeVar("K", bound="ConfidenceCalibrator")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Platt(_Part):
    bias: float
    slope: float
    missing: float


class _Steps(_Part):
    edge: list[float]
    low: list[Chance]
    high: list[Chance]

    @model_validator(mode="after")
    def _fit_together(self) -> _Steps:
        if not len(self.low) == len(self.high) == 2 * len(self.edge) + 1 or (np.diff(self.edge) <= 0).any():
            raise ValueError("edge must ascend, and low and high have 2 * edges + 1 entries")
        if any(a > b for a, b in zip(self.low, self.high)):
            raise ValueError("low must not exceed high")
        return self


class _Saved(_Part):
    version: Literal[1]
    scale: Literal["auto", "raw", "probability", "logprob"]
    C: Annotated[float, Field(gt=0)]
    venn_abers: bool
    classes: Annotated[list[bool | int | float | str], Field(min_length=2, max_length=2)]
    fitted_scale: Scale
    platt: _Platt
    steps: _Steps | None
    n_scored: Annotated[float, Field(ge=0)]
    rate: Rate
    unscored: Rate


def saved(fitted: ConfidenceCalibrator) -> dict[str, Json]:
    """The document of a fitted calibrator."""
    w, v = fitted.weight_, fitted.venn_abers_
    steps = None if v is None else {"edge": v.edge.tolist(), "low": v.low.tolist(), "high": v.high.tolist()}
    return {
        "version": 1,
        "scale": fitted.scale,
        "C": float(fitted.C),
        "venn_abers": bool(fitted.venn_abers),
        "classes": fitted.classes_.tolist(),
        "fitted_scale": fitted.scale_,
        "platt": {"bias": w.bias, "slope": w.slope, "missing": w.missing},
        "steps": steps,
        "n_scored": fitted.n_scored_,
        "rate": fitted.rate_.tolist(),
        "unscored": fitted.unscored_.tolist(),
    }


def restore(blank: K, document: Mapping[str, Json]) -> K:
    """The same calibrator, fitted as the document says."""
    try:
        s = _Saved.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where, value = ".".join(map(str, first["loc"])) or "the document", repr(first["input"])[:60]
        raise Misuse(
            f"this is no saved ConfidenceCalibrator: {where}: {first['msg']}, found {value}. Write it with to_dict()."
        ) from error
    blank.set_params(scale=s.scale, C=s.C, venn_abers=s.venn_abers)
    blank.classes_, blank.scale_, blank.n_features_in_ = np.array(s.classes), s.fitted_scale, 1
    scale: Scale = s.fitted_scale if s.platt.slope else "raw"
    blank.weight_ = Weight("", s.platt.bias, s.platt.slope, scale, s.platt.missing)
    blank.venn_abers_ = None
    if s.steps is not None:
        blank.venn_abers_ = VennAbers(np.array(s.steps.edge), np.array(s.steps.low), np.array(s.steps.high))
    blank.n_scored_, blank.rate_, blank.unscored_ = s.n_scored, np.array(s.rate), np.array(s.unscored)
    return blank
