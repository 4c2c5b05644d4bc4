"""Structural change as one mechanism: (float32 state dict, config, event) -> (state dict, config).

It is applied between engines, never on a live one. Events are plain JSON and are kept in `config.structure`; they may
carry further keys (a run adds what it measured). To add a kind of event, add a rule to `EVENTS`.

    {"type": "append", "block": 2, "start": "random" | "zero_out"}
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.contract.errors import RunError
from stage2_student.model.config import BlockStackConfig
from stage2_student.model.initialization import fresh_block

Event = dict[str, Any]
State = dict[str, Tensor]


@dataclass(frozen=True)
class Rule:
    """What one kind of event does to the config, and to the weights once the config is changed."""

    config: Callable[[BlockStackConfig, Event], BlockStackConfig]
    weights: Callable[[State, BlockStackConfig, Event], State]


def apply_event(state: State, config: BlockStackConfig, event: Event) -> tuple[State, BlockStackConfig]:
    """Return the changed weights and config; carried tensors are the same objects and the arguments are untouched.

    Raises:
        RunError: an unknown event, or one that does not fit `config`.
    """
    changed = _rule(event).config(config, event)
    return _rule(event).weights(state, changed, event), changed


def replay(config: BlockStackConfig, events: Iterable[Event]) -> BlockStackConfig:
    """The config after `events`, without weights: a resumed run builds it, then loads its checkpoint.

    Raises:
        RunError: as `apply_event`.
    """
    for event in events:
        config = _rule(event).config(config, event)
    return config


def _append_to_config(config: BlockStackConfig, event: Event) -> BlockStackConfig:
    if event.get("block") != config.active_blocks:
        raise RunError(f"append block={event.get('block')}: the next block is {config.active_blocks}; append blocks in order")
    return config.with_event(event, active_blocks=config.active_blocks + 1)


def _append_to_weights(state: State, config: BlockStackConfig, event: Event) -> State:
    """Add block p, drawn from (seed, p) alone.

    `zero_out` starts as the identity: exactly in pre-norm, where both branches write zero. A post-norm layer still
    normalises, so the carried last gain moves to the new last norm and leaves one behind: the new norms then meet
    vectors of unit mean square, which they return but for eps.
    """
    new, last = config.active_blocks - 1, config.layers_per_block - 1
    block = fresh_block(config, new, event.get("start", "random"))
    grown = state | {f"blocks.{new}.{name}": tensor for name, tensor in block.state_dict().items()}
    if config.norm == "post" and event.get("start") == "zero_out":
        carried, moved = (f"blocks.{p}.layers.{last}.mlp_norm.weight" for p in (new - 1, new))
        grown[moved] = state[carried].clone()
        grown[carried] = torch.ones_like(state[carried])
    return grown


EVENTS: dict[str, Rule] = {"append": Rule(_append_to_config, _append_to_weights)}


def _rule(event: Event) -> Rule:
    kind = event.get("type")
    if kind not in EVENTS:
        raise RunError(f"structural event type={kind!r}: this version knows {', '.join(EVENTS)}; use the version that wrote it")
    return EVENTS[kind]
