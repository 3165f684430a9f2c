"""The strings of a chat template around a turn of each role, and three well-known templates by name.

A model's own strings are derived from its tokenizer (`chat_template`). The named ones are for checking schemas without
a model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cache.prompt.parts import RoleName


@dataclass(frozen=True, slots=True)
class RoleStrings:
    """Structural strings around a turn. empty: the text of an empty element, if that is not open + close."""

    open: str
    close: str
    empty: str | None = None

    @property
    def alone(self) -> str:
        """The text of an element without content."""
        return self.open + self.close if self.empty is None else self.empty


Roles = Mapping[RoleName, RoleStrings]
NO_ROLES: Roles = MappingProxyType({})
"""A model without a chat template: role elements are errors."""

NAMED: Mapping[str, Roles] = MappingProxyType(
    {
        "llama2": {
            "system": RoleStrings("<s> [INST] <<SYS>>\n", "<</SYS>>\n\n", "<s> [INST] "),
            "user": RoleStrings("", "[/INST]"),
            "assistant": RoleStrings("", "</s><s> [INST] "),
        },
        "chatml": {
            "system": RoleStrings("<|im_start|>system\n", "<|im_end|>\n", ""),
            "user": RoleStrings("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
            "assistant": RoleStrings("", "<|im_end|>\n"),
        },
        "falcon": {
            "system": RoleStrings("", "\n\n", ""),
            "user": RoleStrings("User: ", "\n\nAssistant:"),
            "assistant": RoleStrings(" ", "\n\n"),
        },
    }
)
