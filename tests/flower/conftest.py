import pytest

LONGEST = ("test_local.py", "test_flower_app.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files whose tests wait most for Flower's processes come first, so that others run beside them."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
