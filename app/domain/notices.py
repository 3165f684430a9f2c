"""What the reader of an answer is told about it, beside its text. Stored in English, shown in the page's language."""

from app.domain.translation import gettext, translatable

QUOTED = translatable("Quoted from the help pages.")
CUT = translatable("The answer was cut at its length limit.")
STOPPED = translatable("The answer was stopped before its end.")
LATE = translatable("The answer took too long and ends here.")
REPEATED = translatable("The answer began to repeat itself and ends here.")
OLDER_TURNS_LEFT_OUT = translatable(
    "This conversation is longer than the model can read: its oldest questions are left out."
)
NOTICES = (QUOTED, CUT, STOPPED, LATE, REPEATED, OLDER_TURNS_LEFT_OUT)


def notice_words(notice: str) -> str:
    """The notices of an answer, one behind the other as they are stored; what is none of ours stays as it is."""
    for known in NOTICES:
        notice = notice.replace(known, gettext(known))
    return notice
