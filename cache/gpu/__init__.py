"""Attention kernels for GPUs, in Triton, and CUDA graphs. They have run on CPUs only, never on a GPU."""
