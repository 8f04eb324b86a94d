"""Turns that computations take, one for each view: neither waits for what the other compiles.

In Learning it is needed: two threads that call LAPACK inside XLA at once may block each other for good. Dynamics, whose
two exponents need none of it, has turns so that many readers do not get in each other's way.
"""

import threading

learning_turn, dynamics_turn = threading.Lock(), threading.Lock()
