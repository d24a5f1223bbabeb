import pyarrow as pa
import pytest

from logboom.errors import InvalidRequest, NoSuchPartition
from logboom.spark.layout import layout_of
from logboom.spark.options import EARLIEST, LATEST, columns_asked, ids_shown, read_options, write_options

E = {"endpoints": "127.0.0.1:7701"}


def test_names_are_case_insensitive_and_defaults_are_the_documented_ones():
    options = write_options({"EndPoints": "a:1, b:2", "WRITEID": "w"})
    assert options.target.endpoints == "a:1,b:2"
    assert (options.write_id, options.wait, options.in_flight_bytes_max) == ("w", "applied", 8 * 1024 * 1024)
    assert options.target.request_timeout_ms == 60_000


@pytest.mark.parametrize(
    ("wrong", "right"), [("endpointz", "endpoints"), ("wrietid", "writeId"), ("adcolumns", "addColumns")]
)
def test_an_unknown_option_is_an_error_that_names_the_nearest(wrong, right):
    with pytest.raises(InvalidRequest, match=rf"unknown option '{wrong}'; did you mean {right}\?"):
        write_options({**E, wrong: "x"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "endpoints is needed"),
        ({"endpoints": "nonsense"}, "not host:port"),
        ({**E, "wait": "soon"}, "wait takes committed, durable, applied"),
        ({**E, "maxInFlightBytes": "8MB"}, "maxInFlightBytes takes a whole number"),
        ({**E, "barrierTimeoutMs": "0"}, "from 1 to"),
        ({**E, "barrierScope": "galaxy"}, "quorum"),
        ({**E, "barrierLevel": "cooked"}, "snapshotted"),
        ({**E, "partitions": "3-1"}, "ids and ranges"),
        ({**E, "partitions": ""}, "ids and ranges"),
        ({**E, "op": "cas"}, "op takes put, delete, add"),
        ({**E, "writeId": " "}, "must not be empty"),
        ({**E, "nullKey": ""}, "must not be empty"),
        ({**E, "view": "state"}, "view does not apply to writing"),
        ({**E, "includeHeaders": "true"}, "includeHeaders does not apply to writing"),
        ({**E, "rowOrder": "random"}, "rowOrder takes input, sorted"),
        ({**E, "checkpointLocation": "/tmp/c"}, "checkpointLocation does not apply to writing a batch"),
    ],
)
def test_wrong_values_for_writing_say_what_is_taken(options, message):
    with pytest.raises(InvalidRequest, match=message):
        write_options(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**E, "writeId": "w"}, "writeId does not apply to reading"),
        ({**E, "view": "table"}, "view takes state, log"),
        ({**E, "view": "state", "startingOffsets": "latest"}, "belongs to view=log"),
        ({**E, "view": "log", "atGlobalOffset": "3"}, "belongs to view=state"),
        ({**E, "startingOffsets": "first"}, "startingOffsets takes earliest, latest or JSON"),
        (
            {**E, "startingTimestamp": "yesterday"},
            "startingTimestamp takes milliseconds since 1970, or a time with its",
        ),
        ({**E, "startingTimestamp": "2024-06-01T12:00:00"}, "a time with its zone like 2024-06-01T12:00:00Z"),
        ({**E, "endingTimestamp": "1969-12-31T23:00:00Z"}, "endingTimestamp takes milliseconds since 1970"),
        ({**E, "startingTimestamp": "1", "startingOffsets": "latest"}, "one of the options startingOffsets and"),
        ({**E, "endingTimestamp": "1", "endingOffsets": "latest"}, "one of the options endingOffsets and endingTime"),
        ({**E, "view": "state", "startingTimestamp": "1"}, "belongs to view=log"),
        ({**E, "endingOffsets": '{"0": -3}'}, "endingOffsets takes"),
        ({**E, "endingOffsets": '{"0": 9223372036854775808}'}, "endingOffsets takes .* below 2\\^63"),
        ({**E, "view": "state", "atGlobalOffset": "9" * 23}, "atGlobalOffset takes a whole number .* below 2\\^63"),
        ({**E, "maxSpillBytes": "9"}, "maxSpillBytes belongs to view=state"),
        ({**E, "view": "state", "maxSpillBytes": "4GB"}, "maxSpillBytes takes a whole number from 0 on"),
        ({**E, "requestTimeoutMs": "31622400001"}, "requestTimeoutMs takes a whole number from 1 to 31622400000"),
        ({**E, "startingGlobalOffset": "9" * 5_000}, "startingGlobalOffset takes a whole number"),
        ({**E, "partitions": "9" * 5_000}, "ids and ranges"),
        ({**E, "startingOffsets": "[1]"}, "startingOffsets takes"),
        ({**E, "maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger does not apply to reading a batch"),
        ({**E, "view": "state", "ordered": "global"}, "ordered belongs to view=log"),
        ({**E, "ordered": "time"}, "ordered takes partition, global"),
        ({**E, "minPartitions": "0"}, "minPartitions takes a whole number from 1"),
        ({**E, "fetchBytes": "4MB"}, "fetchBytes takes a whole number"),
        ({**E, "pushdown": "yes"}, "pushdown takes true, false"),
        ({**E, "numRetris": "5"}, "did you mean numRetries"),
        ({**E, "path": "/data"}, "no paths: load\\(\\) and save\\(\\) without one"),
    ],
)
def test_wrong_values_for_reading_say_what_is_taken(options, message):
    with pytest.raises(InvalidRequest, match=message):
        read_options(options)


def test_a_key_for_nulls_that_is_too_long_is_refused_before_any_task_has_written():
    assert write_options({**E, "nullKey": "k" * 511}).null_key == b"k" * 511
    with pytest.raises(InvalidRequest, match="nullKey has 512 bytes; a key has at most 511"):
        write_options({**E, "nullKey": "ü" * 256})


def test_a_barrier_that_no_client_would_wait_for_is_refused_before_anything_is_written():
    with pytest.raises(InvalidRequest, match="barrierTimeoutMs takes a whole number from 1 to 31622400000"):
        write_options({**E, "barrierTimeoutMs": str(2**62)})


@pytest.mark.parametrize(
    ("parse", "options", "message"),
    [
        (read_options, {"view": "state"}, "a stream reads view=log"),
        (read_options, {"endingOffsets": "latest"}, "endingOffsets does not apply to reading a stream"),
        (read_options, {"ordered": "global"}, "ordered does not apply to reading a stream"),
        (read_options, {"pushdown": "true"}, "pushdown does not apply to reading a stream"),
        (read_options, {"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger takes a whole number from 1"),
        (read_options, {"maxOffsetPerTriger": "5"}, "did you mean maxOffsetsPerTrigger"),
        (read_options, {"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}, "is 6, more than maxOffsetsPerTrig"),
        (read_options, {"minOffsetsPerTrigger": "6", "maxTriggerDelay": "soon"}, "a time like 500ms, 30s, 15m, 2h"),
        (read_options, {"maxTriggerDelay": "1m"}, "maxTriggerDelay goes with minOffsetsPerTrigger"),
        (read_options, {"endingTimestamp": "1"}, "endingTimestamp does not apply to reading a stream"),
        (write_options, {"writeId": "w"}, "writeId does not apply to writing a stream"),
    ],
)
def test_what_a_stream_does_not_take_is_said(parse, options, message):
    with pytest.raises(InvalidRequest, match=message):
        parse({**E, **options}, stream=True)


def test_what_spark_adds_to_a_streams_options_is_taken():
    options = write_options({**E, "checkpointlocation": "/c", "queryname": "q"}, stream=True)
    assert options.row_order == "sorted", "after a shuffle, rows come in any order"
    assert write_options(E).row_order == "input"


def test_partition_lists_have_ranges():
    assert write_options({**E, "partitions": "5-7, 0,6"}).partitions == (0, 5, 6, 7)


def test_offsets_are_kafkas():
    options = read_options({**E, "startingOffsets": '{"0": 120, "1": -2}', "endingOffsets": "latest"})
    assert options.start == {0: 120, 1: EARLIEST}
    assert options.end == LATEST


def test_the_largest_number_is_taken():
    options = read_options({**E, "view": "state", "atGlobalOffset": " 0009223372036854775807 "})
    assert options.at_global == 2**63 - 1


def test_a_token_is_not_shown():
    assert "secret" not in repr(write_options({**E, "token": "secret"}))


def test_a_table_of_a_catalog_is_told_what_there_is_instead():
    """Spark asks for its columns with all that the table has, and then reads it without any of its options."""
    table = {"provider": "logboom", "owner": "me", "endpoints": "a:1", "option.endpoints": "a:1"}
    for ask in (lambda: columns_asked(table), lambda: read_options({}), lambda: write_options({})):
        with pytest.raises(InvalidRequest, match="CREATE TEMPORARY VIEW"):
            ask()


def test_a_query_has_no_more_tasks_than_a_driver_can_plan():
    """`minPartitions` makes a share of a log of each: of a billion rows a billion."""
    assert read_options({**E, "minPartitions": "100000"}).tasks_min == 100_000
    for stream in (False, True):
        with pytest.raises(InvalidRequest, match="minPartitions takes a whole number from 1 to 100000"):
            read_options({**E, "minPartitions": "1000000000"}, stream=stream)


def test_a_cluster_whose_partitions_were_all_destroyed_is_said_to_have_none():
    schema = pa.schema([("key", pa.string()), ("value", pa.string())])
    for options in ({}, {"partitions": "3"}):
        with pytest.raises(NoSuchPartition, match="this cluster has none"):
            layout_of(schema, write_options({**E, **options}), {})


def test_an_option_that_is_like_none_is_told_which_there_are():
    with pytest.raises(
        InvalidRequest, match=r"unknown option 'topic'; options here: addColumns, barrierLevel, .*tlsDir"
    ):
        write_options({**E, "topic": "t"})
    with pytest.raises(
        InvalidRequest, match=r"'kafka.bootstrap.servers': logboom has no kafka\.\* options; option endp"
    ):
        read_options({**E, "kafka.bootstrap.servers": "a:9092"}, stream=True)


def test_a_partition_that_is_not_there_is_told_which_are():
    """One that was destroyed is below the last one."""
    schema = pa.schema([("key", pa.string()), ("value", pa.string())])
    there = dict.fromkeys((0, 1, 2, 4, 6, 7), "kv")
    with pytest.raises(NoSuchPartition, match=r"names 3, which does not exist; this cluster has 0-2,4,6-7$"):
        layout_of(schema, write_options({**E, "partitions": "2-4"}), there)


def test_ids_are_shown_as_the_option_takes_them():
    assert ids_shown([]) == "none"
    assert ids_shown([5]) == "5"
    assert ids_shown([3, 0, 2, 9]) == "0,2-3,9"
    assert ids_shown(range(0, 20, 2)) == "0,2,4,6,8,10,12,14,16,18"
    assert ids_shown([*range(0, 100_000, 2), 100_001]) == "0,2,4,6,8,10,12,14,16,...,100001"


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("0", 0),
        (" 1717243200000 ", 1_717_243_200_000),
        ("2024-06-01T12:00:00Z", 1_717_243_200_000),
        ("2024-06-01T14:00:00+02:00", 1_717_243_200_000),
        ("2024-06-01T12:00:00.000001Z", 1_717_243_200_001),
    ],
)
def test_times_are_milliseconds_or_have_a_zone(text, time_ms):
    options = read_options({**E, "startingTimestamp": text, "endingTimestamp": text})
    assert (options.start_time_ms, options.end_time_ms) == (time_ms, time_ms)
    assert read_options({**E, "startingTimestamp": text}, stream=True).start_time_ms == time_ms


def test_delays_are_written_as_spark_has_them():
    options = {**E, "minOffsetsPerTrigger": "5"}
    assert read_options(options, stream=True).trigger_delay_max_ms == 900_000, "Kafka's"
    for text, delay_ms in {"250": 250, "250ms": 250, "30s": 30_000, "2 min": 120_000, "15M": 900_000}.items():
        assert read_options({**options, "maxTriggerDelay": text}, stream=True).trigger_delay_max_ms == delay_ms


def test_a_column_that_cannot_be_added_is_named():
    schema = pa.schema([("key", pa.string()), ("n", pa.int64()), ("price", pa.decimal128(10, 2))])
    with pytest.raises(InvalidRequest, match=r"column price: add takes .*, not decimal128\(10, 2\)"):
        layout_of(schema, write_options({**E, "addColumns": "n,price"}), {0: "kv"})
