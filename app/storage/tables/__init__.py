"""All tables of the database. Times are UTC. A changed table needs a revision (`app.storage.migrations`)."""

from app.storage.tables.base import LARGEST_NUMBER, Base
from app.storage.tables.conversations import (
    CitationRow,
    ConversationRow,
    DeliveryRow,
    FeedbackRow,
    HandoffRow,
    MessageRow,
    ModuleTallyRow,
    ModuleUseRow,
    SavingsRow,
    TallyRow,
    TimingsRow,
    UsageRow,
)
from app.storage.tables.documents import (
    DocumentRow,
    FactRow,
    FaqRow,
    ForgottenRow,
    PassageNeighbourRow,
    PassageRow,
    PassageStatementsRow,
    StagedEmbeddingRow,
    SyncedFolderRow,
)
from app.storage.tables.people import AccountRow, ApiKeyRow, AuditRow, DeskRow, SessionRow
