import pytest


@pytest.fixture(autouse=True)
def every_method_on_the_loop(no_workers: None) -> None:
    """What is asserted here is the method's."""
