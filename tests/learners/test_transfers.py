"""Real bytes through real sockets; needs no torch."""

from __future__ import annotations

import numpy as np
import pytest

from adapters.learners import transfers
from protocol.errors import ProtocolError
from protocol.merging.peers.communication import Network
from protocol.merging.peers.topology import averaging, complete


@pytest.mark.parametrize(
    ("collective", "mixing"), [(True, complete(3)), (False, averaging(3, [(0, 1)])), (False, complete(3))]
)
def test_transfers_take_the_modelled_time(collective: bool, mixing: np.ndarray) -> None:
    """Never less than the interfaces allow; other work on the machine may add to it, so the best of three counts."""
    network = Network.of(3, 4e6, slow={0: 0.5})
    payload = 300_000
    predicted = network.exchange_ns(payload, mixing, collective) / 1e9
    took = np.min([transfers.transfer_s(network, payload, mixing, collective) for _ in range(3)], axis=0)
    busy = predicted > 0
    assert took.max() > 0.9 * predicted.max()
    assert took[busy].max() < 1.6 * predicted.max() + 0.05
    assert (took[~busy] < 0.05).all()


def test_check_covers_every_exchange_and_reports_its_error() -> None:
    fit, rows = transfers.check_model(3, 4e6, payloads=(40_000, 80_000), slow_shares=(1.0, 0.5), repeats=1)
    assert {(r.exchange, r.slow_share, r.payload_bytes) for r in rows} == {
        (e, s, p) for e in ("all-reduce", "1-peer", "2-peer") for s in (1.0, 0.5) for p in (40_000, 80_000)
    }
    assert 0 < fit.bandwidth < 5e6 and fit.latency_s >= 0
    assert all(r.measured_s > 0 and r.error == r.predicted_s / r.measured_s - 1 for r in rows)


def test_a_failing_transfer_is_one_error() -> None:
    def fails() -> None:
        raise OSError("gone")

    with pytest.raises(ProtocolError, match="a transfer failed: gone"):
        transfers._together([fails, lambda: None])
