"""Context managers that are closed at the end of their block."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self  # Python 3.11


class Closing:
    """Calls `close` at the end of the block."""

    def close(self) -> None:
        """Ends what the object does."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None:
            self.close()
            return
        # The propagating error is more informative than one that follows it.
        try:
            self._close_after(error)
        except Exception as second:
            warnings.warn(f"while the {type(self).__name__} was closed: {second}", RuntimeWarning)

    def _close_after(self, error: BaseException) -> Any:
        """Closes the object after an error in the block."""
        self.close()
