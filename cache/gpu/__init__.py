"""Attention kernels for GPUs, in Triton. They have run in Triton's interpreter only, never on a GPU."""
