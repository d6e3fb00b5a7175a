"""Tables in, truth out: reading recorded calls, comparing strategies, reports and the command line."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imported on first use: pyarrow and scikit-learn take their time
    from playcall.evals.comparison import Comparison, Row, compare
    from playcall.evals.page import report
    from playcall.evals.table import TableError, read_table, read_tables

__all__ = ["Comparison", "Row", "TableError", "compare", "read_table", "read_tables", "report"]


def __getattr__(name: str) -> object:
    from importlib import import_module

    for module in ("table", "comparison", "page") if name in __all__ else ():
        if hasattr(found := import_module(f"playcall.evals.{module}"), name):
            return getattr(found, name)
    raise AttributeError(f"module 'playcall.evals' has no attribute {name!r}")
