"""CPU kernels: numba for what streams, ATen and oneDNN for matrix products."""
