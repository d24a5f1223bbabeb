"""The client in docs/protocol.md runs as it stands, but for the address: the page is enough to write one."""

import re
from pathlib import Path

import pytest

from logboom.testing import LocalCluster

pytestmark = pytest.mark.process

TEXT = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()


def test_the_client_of_the_page_writes_and_reads(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    with LocalCluster(nodes=1, partitions=4) as cluster:
        host, port = cluster.endpoints.split(":")
        names: dict[str, object] = {}
        exec(example.replace('("127.0.0.1", 7701)', f'("{host}", {port})'), names)
        names["sock"].close()  # type: ignore[attr-defined]
        with cluster.client() as boom:
            assert boom.get(3, b"k1") == b"v1"
    assert capsys.readouterr().out == "b'\\x00' b'bv1'\n"
