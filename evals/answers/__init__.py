"""The quality of answers and search, and calibration from such measurements."""
