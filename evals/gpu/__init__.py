"""All measurements on a GPU, in one run of limited time."""
