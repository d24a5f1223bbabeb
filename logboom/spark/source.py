"""The data source ``logboom``, as Spark sees it."""

from __future__ import annotations

from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from logboom.errors import InvalidRequest
from logboom.spark.batch import LogboomReader, LogboomWriter, view_schema
from logboom.spark.options import columns_asked, read_options, write_options
from logboom.spark.stream import LogboomStreamReader, LogboomStreamWriter

NO_PUSHDOWN: Final = (
    "option pushdown: Spark 4.3 answers one query of a DataFrame with the filters of another, so that rows are "
    "missing; leave it out, and say what is to be read with partitions, startingOffsets, startingTimestamp, "
    "startingGlobalOffset and their ends"
)


class LogboomSource(DataSource):  # type: ignore[misc]
    """``format("logboom")``: sink and source of batches and of streams. docs/spark.md has the options."""

    @classmethod
    def name(cls) -> str:
        """For ``format``."""
        return "logboom"

    def schema(self) -> StructType:
        """Of the view asked for."""
        view, headers, producer = columns_asked(self.options)
        return view_schema(view, headers=headers, producer=producer)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Batch."""
        options = read_options(self.options)
        if options.pushdown:
            raise InvalidRequest(NO_PUSHDOWN)
        return LogboomReader(schema, options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001
        """Batch, appending."""
        if overwrite:
            raise InvalidRequest('logboom appends commands: use mode("append") or INSERT INTO, not overwrite')
        return LogboomWriter(schema, write_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Micro-batches of logs."""
        return LogboomStreamReader(schema, read_options(self.options, stream=True))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802, FBT001
        """Micro-batches of commands, appending."""
        if overwrite:
            raise InvalidRequest('logboom appends commands: use outputMode("append"), not complete')
        return LogboomStreamWriter(schema, write_options(self.options, stream=True))
