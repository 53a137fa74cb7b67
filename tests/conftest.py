"""What must be asked for before anything is imported.

CI has no GPU: Triton kernels run in Triton's interpreter. Tests run side by side: threads of their own would only wait
for each other.
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
