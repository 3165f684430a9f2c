"""Attention kernels for GPUs, in Triton, and CUDA graphs. They have run on processors only, never on a GPU."""
