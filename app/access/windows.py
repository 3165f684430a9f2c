"""Moving windows of requests in memory, of so many askers at most. For callers that hold a lock of their own."""

from limits.storage import MemoryStorage

MOST_ASKERS = 10_000


class Windows(MemoryStorage):
    """The library's storage keeps all who ever asked; this one makes room. Whose window has ended goes first, then
    who came first.
    """

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """As that of the library."""
        if key not in self.events and len(self.events) >= MOST_ASKERS:
            ended = (known for known, requests in self.events.items() if not requests)
            self.clear(next(ended, next(iter(self.events))))
        return super().acquire_entry(key, limit, expiry, amount)
