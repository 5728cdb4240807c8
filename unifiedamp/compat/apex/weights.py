"""O2's checkpoints: ``model.state_dict()`` holds the float32 master weights, and ``load_state_dict`` sets them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import unifiedamp as ua

from .options import HALF
from .steps import Stash


class MasterState:
    """Hooks on a model that its ``state_dict`` and ``load_state_dict`` call; a copy of the model knows no masters.

    Args:
        session: has the masters.
        stashes: its optimizers.
    """

    def __init__(self, session: ua.Amp | None = None, stashes: Sequence[Stash] = ()) -> None:
        self._session = session
        self._stashes = stashes
        self._read: dict[str, Any] = {}

    def __reduce__(self) -> Any:
        return (MasterState, ())

    def attach(self, model: Any) -> None:
        """Have a model call the hooks."""
        model._register_state_dict_hook(self.widen)
        model._register_load_state_dict_pre_hook(self.note, with_module=False)
        model.register_load_state_dict_post_hook(self.set_masters)

    def widen(self, model: Any, state: dict[str, Any], prefix: str, _: Any) -> None:
        """Put masters, or float32 copies, in place of 16-bit parameters."""
        masters = {id(own): master for stash in self._stashes for own, master in stash.masters()}
        for name, param in model.named_parameters(remove_duplicate=False):
            saved = state.get(prefix + name)
            # With keep_vars=True the parameters themselves are wanted.
            if saved is not None and saved is not param and saved.dtype in HALF:
                state[prefix + name] = masters[id(param)].detach() if id(param) in masters else saved.float()

    def note(self, state: Mapping[str, Any], prefix: str, *_: Any) -> None:
        """Note what is about to be loaded, before it is rounded to 16 bits."""
        self._read = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}

    def set_masters(self, model: Any, _: Any) -> None:
        """Set the masters to what was loaded."""
        read, self._read = self._read, {}
        if self._session is None:
            return
        weights = self._session.master_weights(model)
        for name, value in weights.items():
            if name in read and read[name].shape == value.shape:
                weights[name] = read[name].detach().float().cpu().numpy()
        self._session.load_master_weights(model, weights)
