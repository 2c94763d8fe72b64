"""Python imports this when it starts, in every process that a test starts.

A process that imports PyTorch and does little else spends a third of its time on the search for garbage: as
its modules are loaded, and once more when it ends.
"""

import atexit
import gc

gc.set_threshold(50_000, 20, 50)
atexit.register(gc.freeze)
