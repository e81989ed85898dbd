"""JSON that a connection can't read."""

import pytest

from pgbeat.database.connections import _decode
from pgbeat.storable import TooDeep, is_deep


@pytest.mark.parametrize("number", ["1", "9" * 5000])
def test_json_that_is_nested_too_deeply_can_be_read_but_not_used(number: str) -> None:
    value = _decode("[" * 100_000 + number + "]" * 100_000)
    assert isinstance(value, TooDeep) and is_deep(value)
    with pytest.raises(ValueError, match="nested too deeply"):
        tuple(value)
    with pytest.raises(ValueError, match="nested too deeply"):
        value.items()
