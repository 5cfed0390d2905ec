"""GASLoC: gossip with local steps and outer momentum (arXiv 2606.11081).

u_t = theta_t + eta g_t with g_t = after - before, W_t = (1 - alpha) I + alpha W:

mixed    v_t = W_t u_t,  theta_{t+1} = v_t + gamma (v_t - v_{t-1})
literal  theta_{t+1} = W_t u_t + gamma (u_t - u_{t-1})

both with the previous iterate of round 0 equal to theta_0.  On the complete graph `mixed` is DiLoCo with outer rate eta
and momentum gamma, to rounding; `literal`, as the method is written in secondary sources, keeps islands apart there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol.errors import BadInput
from protocol.merging.peers.topology import Form


class Gasloc:
    """eta, gamma, alpha : outer rate, outer momentum, mixing strength.  The topology makes it 1-peer or 2-peer."""

    averages = "parameters"

    def __init__(self, eta: float = 0.7, gamma: float = 0.7, alpha: float = 1.0, form: Form = "mixed") -> None:
        if form not in ("mixed", "literal"):
            raise BadInput("form", repr(form), "literal or mixed")
        self.eta, self.gamma, self.alpha, self.form = eta, gamma, alpha, form
        self.state: dict[str, Any] = {}

    def step(self, before: Any, after: Any, mix: Callable[[Any], Any]) -> Any:
        own = before + self.eta * (after - before)
        received = mix(own)
        mixed = received if self.alpha == 1.0 else own + self.alpha * (received - own)
        carried = mixed if self.form == "mixed" else own
        previous = self.state.get("previous", before)
        self.state = {"previous": carried}
        return mixed + self.gamma * (carried - previous)
