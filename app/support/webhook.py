"""Send hand-offs to another program: signed, retried with growing delays, and without blocking customers.

Deliveries wait in the database (`app.storage.handoffs`), and a separate thread sends them. A delivery contains no text
of the conversation. docs/handoff.md describes the requests and their signature.
"""

import hashlib
import hmac
import json
import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta

import httpx

from app.domain.errors import DeskError
from app.domain.logs import Recurring
from app.domain.settings import Settings
from app.domain.words import utc_now
from app.storage.database import Database
from app.storage.handoffs import LONGEST_PAUSE, Deliveries, Delivery

SIGNATURE = "Warmdesk-Signature"
PAUSES_S = (10, 60, 300, 1800, 2 * 3600, 6 * 3600, int(LONGEST_PAUSE.total_seconds()))
"""Delays before retries, in seconds. After the last retry a delivery has failed."""
TIMEOUT_S = 10.0
LOOK_S = 2.0
log = logging.getLogger(__name__)


def signature(secret: str, sent: int, body: bytes) -> str:
    """Return the header: `t=` the time of sending in seconds, `v1=` HMAC-SHA256 over that time, a dot and the body."""
    signed = f"{sent}.".encode() + body
    return f"t={sent},v1={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"


def body_of(delivery: Delivery, public_url: str | None) -> bytes:
    handoff = delivery.handoff
    body = {
        "id": delivery.id,
        "type": delivery.event,
        "created": delivery.created.isoformat(),
        "handoff": {
            **{name: getattr(handoff, name) for name in ("id", "conversation_id", "state", "reason", "agent", "email")},
            "requested": handoff.requested.isoformat(),
            "url": None if public_url is None else f"{public_url.rstrip('/')}/admin/queue/{handoff.id}",
        },
    }
    return json.dumps(body).encode()


class WebhookSender:
    """Sends due deliveries during the `with` block; does nothing without the setting `handoff_webhook`."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        *,
        now: Callable[[], datetime] = utc_now,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """transport: an HTTP transport, for tests. Raises DeskError if the secret is missing."""
        if settings.handoff_webhook is not None and settings.handoff_webhook_secret is None:
            message = "handoff_webhook needs handoff_webhook_secret for signing: set both"
            raise DeskError(message, code="webhook-unsigned")
        self._deliveries, self._settings, self._now = Deliveries(database), settings, now
        # A redirect could send a customer's address to another host, so it counts as a failure.
        self._client = httpx.Client(timeout=TIMEOUT_S, follow_redirects=False, transport=transport)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)

    def __enter__(self) -> "WebhookSender":
        if self._settings.handoff_webhook is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)  # the current delivery is sent again later
        self._client.close()

    def send_due(self) -> int:
        """Try all due deliveries once. Return the number of successful ones."""
        arrived = 0
        while not self._ended.is_set() and (delivery := self._deliveries.claim(self._now())) is not None:
            arrived += self._send(delivery)
        return arrived

    def _send(self, delivery: Delivery) -> bool:
        url, secret = self._settings.handoff_webhook, self._settings.handoff_webhook_secret
        assert url is not None
        assert secret is not None
        now = self._now()
        body = body_of(delivery, self._settings.public_url)
        headers = {"content-type": "application/json", SIGNATURE: signature(secret, int(now.timestamp()), body)}
        try:
            answered = self._client.post(url, content=body, headers=headers)
            problem = "" if answered.is_success else f"status {answered.status_code}"
        except Exception as error:  # any kind: else the delivery is retried every minute for ever
            problem = str(error) or type(error).__name__
        pause_s = dict(enumerate(PAUSES_S)).get(delivery.tries) if problem else None
        if problem:
            log.warning("%s was not sent to the webhook: %s", delivery.event, problem)
        self._deliveries.note(delivery.id, problem[:500], None if pause_s is None else now + timedelta(seconds=pause_s))
        return not problem

    def _run(self) -> None:
        recurring = Recurring(log, "the webhook failed")
        while not self._ended.wait(LOOK_S):
            with recurring.trying():
                self.send_due()
