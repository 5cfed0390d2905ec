"""A replica's line to the coordinator."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

from protocol.errors import ProtocolError

#: Seconds that an answer may take: a scheduler's decision, and those of other replicas before it.
PATIENCE_S = 60.0


class Client:
    """One replica.  Raises ProtocolError where nobody answers."""

    def __init__(self, address: str, replica: str) -> None:
        """address : HOST:PORT of the coordinator; replica : its name in the log."""
        host, _, port = address.rpartition(":")
        self.replica, self.address = replica, address
        try:
            self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        except (OSError, ValueError) as error:
            raise ProtocolError(f"coordinator {address}: {error}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file, self._lock = self._socket.makefile("rwb"), threading.Lock()
        pace = self.say("hello", replica=replica)
        #: Inner steps since the last merge at which the first and the last decision fall, and between two of them.
        self.first, self.last, self.grid = (int(pace[key]) for key in ("first", "last", "grid"))

    def say(self, do: str, **values: object) -> dict[str, Any]:
        """One message, and its answer."""
        with self._lock:
            try:
                self._file.write(json.dumps({"do": do, **values}).encode() + b"\n")
                self._file.flush()
                line = self._file.readline()
            except (OSError, ValueError) as error:  # also a file that was closed
                raise ProtocolError(f"coordinator {self.address}: {error}") from None
        if not line:
            raise ProtocolError(f"coordinator {self.address}: it has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self, bye: bool = True) -> None:
        """bye : the replica is done; without it, it is lost."""
        try:
            if bye:
                self.say("bye")
        finally:
            self._file.close()
            self._socket.close()
