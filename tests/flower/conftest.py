import pytest

LONGEST = ("test_local.py", "test_flower_app.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files first whose tests wait longest for Flower's processes, so that others run meanwhile."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
