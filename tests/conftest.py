"""CI has no GPU: Triton kernels run in Triton's interpreter, which must be asked for before they are imported."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
