"""What there is to measure of the engine on a GPU, in one run of limited time. `run` is what others call."""
