"""A session that finds records without a cluster."""

from __future__ import annotations

from logboom.background import Background
from logboom.spark.connection import Session


class Local(Session):
    """A session whose client is here."""

    def __init__(self, client):
        self.client = client
        super().__init__(None)

    def _made(self):
        return Background(self.client)

    def end(self):
        self._background.close()
