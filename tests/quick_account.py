"""Accounts whose password is checked in no time: those that the desk makes take 50 ms and 64 MiB, on purpose, whenever
one is made or somebody signs in. For tests that are about something else.
"""

import secrets

from argon2 import PasswordHasher

from app.domain.callers import Role
from app.storage.people import Accounts

QUICK = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


def quick_account(accounts: Accounts, name: str, role: Role) -> str:
    """Make an account; gives its password."""
    password = secrets.token_urlsafe(18)
    accounts.add(name, role, QUICK.hash(password))
    return password
