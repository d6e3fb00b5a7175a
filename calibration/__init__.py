"""Raw score -> probability, how sure a figure is, and what labels prove."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imported on first use: scikit-learn takes its time
    from playcall.calibration.calibrator import ConfidenceCalibrator
    from playcall.calibration.confidence import fit_weight, scale_of
    from playcall.calibration.control import Certificate, control_risk
    from playcall.calibration.diagnostics import Reliability, auroc, brier, log_loss, out_of_fold, reliability
    from playcall.calibration.intervals import mean_interval
    from playcall.calibration.votes import agreement, vote_share

# fmt: off
__all__ = [
    "Certificate", "ConfidenceCalibrator", "Reliability", "agreement", "auroc", "brier", "control_risk", "fit_weight",
    "log_loss", "mean_interval", "out_of_fold", "reliability", "scale_of", "vote_share",
]
# fmt: on
_PLACES = ["intervals", "votes", "control", "confidence", "calibrator", "diagnostics"]  # the light ones first


def __getattr__(name: str) -> object:
    from importlib import import_module

    for module in _PLACES if name in __all__ else ():
        if hasattr(found := import_module(f"playcall.calibration.{module}"), name):
            return getattr(found, name)
    raise AttributeError(f"module 'playcall.calibration' has no attribute {name!r}")
