"""What clients keep between rounds, however many clients there are: tensors on the device, in host memory,
and beyond a limit on disk.

A `ClientTensors` is a value: a mapping from clients to tensors, which never changes. `updated` makes the next
one, and the two share the tensors that are equal in both. A `ClientStore` decides where tensors lie. On disk
they lie in files that are only appended to (`segments`). A file is removed when no living mapping needs it.
"""

from unskew.client_tensors.limits import default_limit
from unskew.client_tensors.store import ClientStore, ClientTensors, client_store

__all__ = ["ClientStore", "ClientTensors", "client_store", "default_limit"]
