import pytest


@pytest.fixture(autouse=True)
def every_method_on_the_loop(no_workers: None) -> None:
    """Train on the loop engine: these tests are about methods, not engines."""
