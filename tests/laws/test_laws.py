"""Every method, held to the same laws."""

import pytest

from unskew.methods import METHODS
from unskew.testing import check_method


@pytest.mark.parametrize("name", METHODS)
def test_a_method_keeps_the_laws(name):
    check_method(METHODS[name](), draws=name == "balancefl")
