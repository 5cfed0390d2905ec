"""`torchft.local_sgd.DiLoCo`, merging when the coordinator says so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from protocol.errors import ProtocolError

try:
    from torchft.local_sgd import DiLoCo
except ImportError as error:  # torch, torchft or what they need
    raise ProtocolError(f"torchft cannot be imported ({error}); pip install 'diloco-protocol[torchft]'") from None

from adapters.torchft.client import Client

_logger = logging.getLogger(__name__)
#: Under which torchft's checkpoints of a recovery tell us that there was one.
_KEY = "protocol.decided"


class Decided(DiLoCo):
    """DiLoCo without a schedule of its own: after each inner step that is a decision, the coordinator is asked.

    Without a coordinator, once it is gone, merges come at H_max.  Everything else is torchft's: quorum, exchange, vote,
    outer step, recovery, `fragment_sync_delay`.  torchft merges `sync_every` steps after its last merge; here these are
    counted from the decision on.

    loss : of the last inner step, nats, for schedulers that look at it.  pressures : `network_pressure` and
    `checkpoint_pressure` now, 0 to 1, where the loop knows them.
    """

    def __init__(
        self, manager: Any, model_fragments: list[Any], inner_optimizer: Any, outer_optimizer: Any, client: Client,
        loss: Callable[[], float], *, fragment_sync_delay: int = 0,
        pressures: Callable[[], dict[str, float]] = dict, **more: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            manager, model_fragments, inner_optimizer, outer_optimizer,
            sync_every=(fragment_sync_delay + 1) * len(model_fragments), fragment_sync_delay=fragment_sync_delay,
            **more,
        )  # fmt: skip
        self._client, self._loss, self._pressures = client, loss, pressures
        #: Whether the coordinator has ended training; whether it is gone.
        self.over = self.alone = False
        #: Inner steps since the last merge, and since each fragment's last.
        self.steps, self._since = 0, [0] * len(model_fragments)
        self._tries, self._at_quorum, self._healed = 0, 0, False
        self._bytes = [sum(p.numel() * p.element_size() for p in f.parameters()) for f in model_fragments]
        manager.register_state_dict_fn(_KEY, self._heal, lambda: {"tries": self._tries})

    def _heal(self, state: object) -> None:
        """Called by torchft when this replica takes over another's state."""
        self._healed, self._at_quorum = True, self._manager.current_step()

    def _turn(self) -> tuple[int, int]:
        return self._manager.current_step(), self._tries

    def _step_post_hook(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._since = [steps + 1 for steps in self._since]
        if self._local_step == 0:  # no fragment is under way
            self.steps += 1
            if not self._merges_now():
                self._manager.allow_state_dict_read()
                return
            self._at_quorum, self._healed = self._manager.current_step(), False
            self._say("begin", turn=self._turn(), fragment=self._due(), steps=self.steps)
        super()._step_post_hook(optimizer, args, kwargs)
        if self._local_step == 0:
            self._over()

    def _due(self) -> int:
        return int(self._manager.current_step()) % len(self._since)

    def _merges_now(self) -> bool:
        c = self._client
        if self.steps < c.first or self.steps % c.grid:
            return False
        told = {"loss": self._loss(), "fragment_steps": self._since[self._due()], **self._pressures()}
        answer = self._say("ask", turn=self._turn(), steps=self.steps, told=told)
        return self.steps >= c.last if self.alone else bool(answer["merge"])

    def _over(self) -> None:
        committed = self._manager.current_step() > self._at_quorum
        merged = self._at_quorum % len(self._since)
        self._tries = 0 if committed else self._tries + 1
        if committed:
            self._since[merged] = 0
        self.steps = 0
        answer = self._say(
            "end", turn=self._turn(), committed=committed, healed=self._healed, bytes=self._bytes[merged],
            loss=self._loss(),
        )  # fmt: skip
        self.over = bool(answer.get("over"))

    def _say(self, do: str, **values: object) -> dict[str, Any]:
        """One message to the coordinator; nothing once it is gone."""
        if self.alone:
            return {}
        try:
            return self._client.say(do, **values)
        except ProtocolError as error:
            self.alone = True
            _logger.warning("%s; merges at H_max from now on", error)
            return {}
