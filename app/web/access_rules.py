"""The callers that each route accepts. A route without a rule here is not served (404).

Gradio has about a hundred routes (uploads, file access, a proxy, run history, code editing); only the few that the
pages use have a rule. `guard` enforces the rules.
"""

import re
from dataclasses import dataclass
from typing import Literal

from app.domain.callers import Caller

Who = Literal["everyone", "visitor", "agent", "reader", "admin", "key:chat", "key:documents", "key:admin"]
"""visitor: with a visitor's token. agent, admin: signed in; an admin may do what agents do. reader: an admin; also an
agent if the setting `agents_read_all` is on. key: an API key with this scope.
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """The callers that may send these methods to matching paths. GET includes HEAD."""

    path: re.Pattern[str]
    methods: frozenset[str]
    who: frozenset[Who]

    def allows(self, caller: Caller) -> bool:
        if "everyone" in self.who or any(f"key:{scope}" in self.who for scope in caller.scopes):
            return True
        if caller.role:
            if "reader" in self.who and caller.reads_all:
                return True
            return caller.role in self.who or (caller.role == "admin" and "agent" in self.who)
        return "visitor" in self.who and bool(caller.owner) and not caller.scopes


def _rule(methods: str, path: str, *who: Who) -> Rule:
    return Rule(re.compile(path), frozenset(methods.split()), frozenset(who))


_PAGE = r"/(config|theme\.css|manifest\.json|robots\.txt|pwa_icon(/\d+)?|(assets|static|svelte)/[\w./@+-]+)?/?"
_READ = r"/gradio_api/(info|startup-events|app_id|queue/data)/?"
_ID = r"[\w-]+"
_NUMBER = r"\d{1,9}"  # id of a row: PostgreSQL cannot compare larger numbers
RULES = (
    _rule("GET", r"/healthz|/readyz", "everyone"),
    _rule("GET", r"/metrics", "everyone"),  # the route checks the sender's address
    _rule("POST", r"/v1/(chat/completions|embeddings|feedback)", "key:chat"),
    _rule("GET", r"/v1/models(/[\w./@+-]+)?", "key:chat", "key:documents", "key:admin"),
    _rule("GET", r"/v1/conversations", "key:chat"),
    _rule("GET DELETE", rf"/v1/conversations/{_ID}", "key:chat"),
    _rule("GET", rf"/v1/conversations/{_ID}/export", "key:chat"),
    _rule("POST", rf"/v1/handoffs(/{_ID}/messages)?", "key:chat"),
    _rule("GET DELETE", rf"/v1/handoffs/{_ID}", "key:chat"),
    _rule("GET POST", r"/v1/documents", "key:documents"),
    _rule("GET DELETE", rf"/v1/documents/{_ID}", "key:documents"),
    _rule("GET", r"/admin/(engine|api|openapi\.json)?", "admin"),
    _rule("GET", r"/(desk|admin)\.css|/(admin|api|documents|events|quality|queue)\.js", "everyone"),
    _rule("GET", r"/logo|/favicon\.ico/?", "everyone"),
    _rule("GET", rf"/sources/\w+/{_NUMBER}", "visitor"),
    _rule("GET", r"/widget|/widget\.js|/widget/page\.(css|js)", "everyone"),
    _rule("POST", r"/widget/visitor", "everyone"),
    _rule("POST", r"/widget/(open|ask|stop|feedback|person|typing)", "visitor"),
    _rule("GET POST", r"/admin/login", "everyone"),
    _rule("POST", r"/admin/logout", "everyone"),
    _rule("GET", r"/admin/(quality|conversations(/\w+)?)", "reader"),
    _rule("POST", r"/admin/conversations/\w+/step-in", "reader"),
    _rule("GET", r"/admin/(faq|search)", "agent"),
    _rule("POST", r"/admin/faq(/delete)?", "agent"),
    _rule("GET", rf"/admin/documents(/{_NUMBER}(/file)?)?", "admin"),
    _rule("POST", r"/admin/documents/(upload|forget|collections/forget)", "admin"),
    _rule("POST", r"/admin/documents/folders(/(run|remove|stop|try))?", "admin"),
    _rule("GET", rf"/admin/queue(/rows|/faq|/waiting|/{_NUMBER}(/now)?)?", "agent"),
    _rule("POST", rf"/admin/queue/{_NUMBER}/(take|suggest|answer|close|reopen)", "agent"),
    _rule("GET", r"/admin/modules(/memory)?", "admin"),
    _rule("POST", r"/admin/modules/(warm|evict|keep|release|verify)", "admin"),
    _rule("GET POST", r"/admin/(accounts|settings)", "admin"),
    _rule("POST", r"/admin/accounts/(role|password|remove)", "admin"),
    _rule("POST", r"/admin/api/keys(/revoke)?", "admin"),
    _rule("GET", r"/admin/audit", "admin"),
    _rule("GET", r"/admin/lookups", "admin"),
    _rule("POST", r"/admin/lookups/try", "admin"),
    _rule("GET", r"/conversations/\w+/export\.\w+", "visitor"),
    _rule("GET", r"/my-data", "visitor"),
    _rule("POST", r"/my-data/delete|/sign-out", "visitor"),
    _rule("POST", r"/typing", "visitor"),
    _rule("GET", _PAGE, "everyone"),
    _rule("GET", _READ, "visitor"),
    _rule("POST", r"/gradio_api/queue/join", "visitor"),
)


def find_rule(path: str, method: str) -> Rule | None:
    if ".." in path:
        return None
    method = "GET" if method == "HEAD" else method
    return next((rule for rule in RULES if method in rule.methods and rule.path.fullmatch(path)), None)
