"""docs/metrics.md, from the catalogue: ``python -m server.metrics > docs/metrics.md``."""

from __future__ import annotations

import sys

from server.metrics.catalogue import CHAPTERS, PREFIX

HEAD = f"""\
# Metrics

Written by `python -m server.metrics` from `server/metrics/catalogue.py`; a test keeps it current. Which to watch:
[operating.md](operating.md).

`/metrics` of `node.http_address` has them in the text format of Prometheus, or of OpenMetrics if the scraper accepts
it. Every node tells of itself alone. Counters begin anew when the process does, or when it makes the node anew from
a snapshot. All names begin with `{PREFIX}`. Beside them are the usual `process_*` (CPU, memory, file descriptors) and
`python_gc_*`.

* Series per partition are those of the `http.partition_series_max` partitions with the lowest ids; sums, and
  `{PREFIX}partitions`, are over all. A partition has none while it may have shown higher watermarks before the last
  start (`{PREFIX}recovered` 0).
* A sync that fails is never tried again: the process ends. So there is no count of retried syncs; what is tried again
  is applying (`{PREFIX}apply_retries_total`), saving states (`{PREFIX}checkpoint_failures_total`) and what clients send
  (`{PREFIX}admission_retries_total`, `{PREFIX}apply_duplicates_total`).
"""


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    for chapter in CHAPTERS:
        parts.append(f"## {chapter.title}\n\n| name | type | labels | meaning |\n| --- | --- | --- | --- |")
        parts += [
            f"| `{PREFIX}{m.name}` | {m.type} | {', '.join(f'`{label}`' for label in m.labels)} | {m.help} |"
            for m in chapter.metrics
        ]
        parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(render())
