"""Everything that `hetero.testing` promises can be had from it."""

from __future__ import annotations

import hetero.testing


def test_every_kit_that_is_named_can_be_called() -> None:
    assert "check_power_cuts" in hetero.testing.__all__
    assert all(callable(getattr(hetero.testing, name)) for name in hetero.testing.__all__)
