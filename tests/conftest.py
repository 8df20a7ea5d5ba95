"""One thread for the tests and the processes they start: on tensors this small two only wait for
each other, and on a busy machine they wait long."""
import os

os.environ["OMP_NUM_THREADS"] = "1"       # read when torch is imported, by the tests behind this
