"""Type of the options that an env config passes to its backend."""

from __future__ import annotations

Setting = tuple[str, int | float | bool | str | None]
"""Name and value of a backend option; a tuple of these is hashable, unlike a dict."""
