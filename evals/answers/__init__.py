"""How good answers and search are, and calibration from such measurements."""
