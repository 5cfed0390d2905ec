"""The stacked decoder against a plain one written with loops, and against itself alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="module")
def made(torch: Any) -> Any:
    from adapters.learners.decoder import Decoder, Shape

    decoder = Decoder(Shape(8, 2, 2, 12, 6), torch.float64)
    rng = np.random.default_rng(1)
    theta = torch.cat([decoder.initial(rng) for _ in range(3)])
    text = torch.from_numpy(rng.integers(0, 98, (3, 4, 7)))
    return decoder, theta, text


def plain_logits(torch: Any, decoder: Any, row: Any, tokens: Any) -> Any:
    """One island, one sequence: rotary positions as complex numbers, attention with an explicit mask."""
    shape = decoder.shape
    parts, at = [], 0
    for _, size in shape.parts():
        count = int(np.prod(size))
        parts.append(row[at : at + count].reshape(size))
        at += count
    it = iter(parts)

    def norm(x: Any, weight: Any) -> Any:
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-5) * weight

    x = next(it)[tokens]
    length, d, head = len(tokens), shape.width, shape.width // shape.heads
    turn = torch.tensor([[t * 10_000.0 ** (-k / (head // 2)) for k in range(head // 2)] for t in range(length)])
    spin = torch.polar(torch.ones_like(turn), turn).to(torch.complex128)
    for _ in range(shape.layers):
        y = norm(x, next(it)) @ next(it)
        q, k, v = y[:, :d], y[:, d : 2 * d], y[:, 2 * d :]
        outs = []
        for h in range(shape.heads):
            own = slice(h * head, (h + 1) * head)

            def turned(z: Any) -> Any:
                pairs = torch.complex(z[:, : head // 2], z[:, head // 2 :]) * spin
                return torch.cat((pairs.real, pairs.imag), 1)

            scores = turned(q[:, own]) @ turned(k[:, own]).T / head**0.5
            scores = scores.masked_fill(torch.triu(torch.ones(length, length), 1) > 0, float("-inf"))
            outs.append(torch.softmax(scores, -1) @ v[:, own])
        x = x + torch.cat(outs, 1) @ next(it)
        y = norm(x, next(it)) @ next(it)
        gate, up = y[:, : shape.hidden], y[:, shape.hidden :]
        x = x + (gate * torch.sigmoid(gate) * up) @ next(it)
    return norm(x, next(it)) @ next(it)


def test_losses_equal_a_plain_decoder(torch: Any, made: Any) -> None:
    decoder, theta, text = made
    found = decoder.losses(theta, text[..., :-1], text[..., 1:])
    for i in range(3):
        each = [
            torch.nn.functional.cross_entropy(plain_logits(torch, decoder, theta[i], seq[:-1]), seq[1:])
            for seq in text[i]
        ]
        assert float(found[i]) == pytest.approx(float(torch.stack(each).mean()), rel=1e-9)


def test_islands_do_not_touch_each_other(torch: Any, made: Any) -> None:
    decoder, theta, text = made
    leaf = theta.clone().requires_grad_()
    losses = decoder.losses(leaf, text[..., :-1], text[..., 1:])
    (gradient,) = torch.autograd.grad(losses[1], leaf)
    assert gradient[[0, 2]].abs().max() == 0 and gradient[1].abs().max() > 0
    alone = theta[1:2].clone().requires_grad_()
    own = decoder.losses(alone, text[1:2, :, :-1], text[1:2, :, 1:])
    torch.testing.assert_close(own[0], losses[1].detach())
    torch.testing.assert_close(torch.autograd.grad(own[0], alone)[0][0], gradient[1])


def test_the_future_is_not_seen(torch: Any, made: Any) -> None:
    """Changing the last input changes no loss of earlier targets."""
    decoder, theta, text = made
    changed = text.clone()
    changed[..., -2] = (changed[..., -2] + 1) % 98
    short = [t[..., :4] for t in (text, changed)]
    before = [decoder.losses(theta, s[..., :-1], s[..., 1:]) for s in short]
    assert torch.equal(*before)
    whole = [decoder.losses(theta, t[..., :-1], text[..., 1:]) for t in (text, changed)]
    assert not torch.equal(*whole)


def test_a_fresh_model_knows_nothing(torch: Any, made: Any) -> None:
    decoder, theta, text = made
    assert abs(float(decoder.losses(theta, text[..., :-1], text[..., 1:]).mean()) - np.log(98)) < 1.0


def test_shape(torch: Any, made: Any) -> None:
    from adapters.learners.decoder import Shape
    from protocol.errors import BadInput

    decoder, theta, _ = made
    assert theta.shape == (3, decoder.shape.parameters)
    # Norms are spared from decay: 2 a layer and a last one, each of the width.
    assert int((decoder.decayed == 0).sum()) == 5 * 8
    with pytest.raises(BadInput, match="even width"):
        Shape(width=6, heads=2)
