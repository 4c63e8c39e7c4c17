"""The base of frozen values behaves as a frozen dataclass with keywords only would."""

import copy
import pickle

import pytest

from mcore_autopatch.record import Record


class Point(Record):
    x: int
    y: int = 2


def test_fields_defaults_equality_hash_and_text():
    point = Point(x=1)
    assert (point.x, point.y) == (1, 2)
    assert point == Point(y=2, x=1)
    assert point != Point(x=2)
    assert hash(point) == hash(Point(x=1))
    assert repr(point) == "Point(x=1, y=2)"
    assert point.replace(y=3) == Point(x=1, y=3)


def test_it_cannot_be_changed_but_copied_and_pickled():
    point = Point(x=1)
    with pytest.raises(AttributeError, match="cannot be set"):
        point.x = 2
    assert copy.deepcopy(point) == point
    assert pickle.loads(pickle.dumps(point)) == point


@pytest.mark.parametrize(("values", "text"), [({}, "needs 'x'"), ({"x": 1, "z": 2}, "has no field 'z'")])
def test_missing_and_unknown_fields_are_refused(values, text):
    with pytest.raises(TypeError, match=text):
        Point(**values)
