"""The laws that every method has to keep."""

import pytest

from federations import short_method, statistics_for
from unskew.methods import METHODS
from unskew.testing import check_method


@pytest.mark.parametrize("name", METHODS)
def test_a_method_keeps_the_laws(name):
    check_method(short_method(name), draws=name == "balancefl", statistics=statistics_for(name))
