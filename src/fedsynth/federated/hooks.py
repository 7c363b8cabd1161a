"""The hooks a round adds to Lightning's, for callbacks and modules that define them.

    on_client_start(client)         the client's starting model is in place (FedAvg: the global one), nothing trained yet
    on_client_end(update)           the module holds the global model again; the client's is in the update
    on_before_aggregate(updates)    once a round, all updates in canonical order
    on_after_aggregate(updates)     the module holds the new global model

Callbacks get ``(trainer, module)`` first. With several processes the client hooks run on the rank that trains
the client, the others on every rank.
"""

from __future__ import annotations

from typing import Any

HOOKS = ("on_client_start", "on_client_end", "on_before_aggregate", "on_after_aggregate")


def call_hook(trainer: Any, hook: str, *args: Any) -> None:
    """Call one of :data:`HOOKS` on every callback that defines it, then on the module if it does."""
    module = trainer.lightning_module
    for callback in trainer.callbacks:
        if (function := getattr(callback, hook, None)) is not None:
            function(trainer, module, *args)
    if (function := getattr(module, hook, None)) is not None:
        function(*args)
