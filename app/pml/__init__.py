"""PML on the command line: read files, print position ids, run, advise, export."""
