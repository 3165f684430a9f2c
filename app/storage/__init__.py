"""The database and the lock on the data folder."""
