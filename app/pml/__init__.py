"""PML on the command line: reading files, position ids, running, exporting."""
