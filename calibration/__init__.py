"""Raw score -> probability, and how sure a figure is."""

from playcall.calibration.confidence import fit_weight, scale_of
from playcall.calibration.intervals import mean_interval

__all__ = ["fit_weight", "mean_interval", "scale_of"]
