"""SQLite: a database that keeps every save as one blob."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from compare_lib.peers.base import NOT_OF_DCP, Peer
from compare_lib.states import State, byte_view


class SqlitePeer(Peer):
    name = "sqlite"
    only_states = ("small",)
    cannot = {"dcp_saves_and_loads": NOT_OF_DCP}
    remarks = ("one blob per save and transaction; write-ahead log, synchronous=FULL",)

    def small_saves(self, state: State) -> Callable[[int], None]:
        connection = sqlite3.connect(self.scratch / "saves.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE saves (step INTEGER PRIMARY KEY, bytes BLOB)")

        def save(number: int) -> None:
            blob = b"".join(memoryview(byte_view(tensor)) for tensor in state.tensors.values())
            connection.execute("INSERT INTO saves VALUES (?, ?)", (number, blob))

        return save
