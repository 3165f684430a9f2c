"""Changes of accounts and API keys in somebody's name: each is done and written to the audit log.

Routes and commands make them through this, so that none goes unrecorded. Not covered: the first account, which the
first start makes (`passwords.ensure_admin`).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from app.access.keys import PER_MINUTE, Keys
from app.access.passwords import new_account, reset_password
from app.domain.callers import Record, Role
from app.storage.accounts import Accounts
from app.storage.api_keys import ApiKey


@dataclass(frozen=True, slots=True)
class Administration:
    """Every method may raise DeskError. who: see `app.storage.audit`."""

    accounts: Accounts
    keys: Keys
    record: Record
    who: str

    def add_account(self, name: str, role: Role) -> str:
        """A new account; gives its password."""
        password = new_account(self.accounts, name, role)
        self.record(self.who, "account-add", f"{name} ({role})")
        return password

    def reset_password(self, name: str) -> str:
        """A new password, which is given; the account's sign-ins end."""
        password = reset_password(self.accounts, name)
        self.record(self.who, "account-password", name)
        return password

    def set_role(self, name: str, role: Role) -> None:
        """Change a role; the account's sign-ins end."""
        self.accounts.set_role(name, role)
        self.record(self.who, "account-role", f"{name} ({role})")

    def remove_account(self, name: str) -> None:
        """Remove an account and its sign-ins."""
        self.accounts.remove(name)
        self.record(self.who, "account-remove", name)

    def create_key(self, name: str, scopes: Iterable[str], per_minute: int = PER_MINUTE) -> str:
        """Make a key, which is given."""
        wanted = list(scopes)
        key = self.keys.create(name, wanted, per_minute)
        self.record(self.who, "key-create", f"{name} ({', '.join(wanted)})")
        return key

    def revoke_key(self, name: str) -> ApiKey:
        """End a key at once."""
        key = self.keys.revoke(name)
        self.record(self.who, "key-revoke", name)
        return key
