"""Spark looks for modules of this name by itself: ``format("logboom")`` is known in every session, without a call.

Whatever a module like this raises when it is imported hides the data sources of all others: it raises nothing.
"""

from __future__ import annotations

import warnings

try:
    from logboom.spark.source import LogboomSource as DefaultSource

    __all__ = ["DefaultSource"]
except Exception as error:  # noqa: BLE001 - an environment that lacks something, or another release of it
    warnings.warn(f"logboom is no data source of Spark here: {error!r}", RuntimeWarning, stacklevel=1)
