"""How the engine is asked for an answer: sampling, offered quotations and the bias of the refusal."""

from app.answering.prepare import PreparedQuestion
from app.answering.quote import choices_of
from app.domain.policies import RECOMPUTATIONS, AnswerMode, Policy
from app.domain.settings import Settings
from cache.engine.request import Request, Reuse
from cache.engine.sampling import Sampling
from cache.model.language_model import Model
from cache.prompt.parts import Text
from cache.prompt.tokenizer import run_tokens


class RequestBuilder:
    """Makes requests with the desk's settings for answers."""

    def __init__(self, settings: Settings, model: Model, answer_mode: AnswerMode, refusal_bias: float) -> None:
        """answer_mode, refusal_bias: see `app.desk.calibration`."""
        self._settings, self._model, self._answer_mode = settings, model, answer_mode
        self._opening = None
        if refusal_bias:
            self._opening = run_tokens([Text(text=settings.refusal_text)], model.tokenizer)[0], refusal_bias

    def request(self, prepared: PreparedQuestion, reuse: Reuse, session: str | None, policy: Policy) -> Request:
        """The request for a question that has a plan."""
        plan, model, settings = prepared.plan, self._model, self._settings
        assert plan is not None
        choices = None
        if self._answer_mode == "quote":
            room = model.info.max_positions - plan.next_position
            statements, stop = prepared.results.statements, min(model.info.stop_tokens)
            choices = choices_of(statements, settings.refusal_text, model.tokenizer, stop, room)
        sampling = Sampling(
            max_tokens=max(settings.answer_tokens, 0 if choices is None else choices.longest),
            temperature=settings.temperature,
            repetition_penalty=settings.repetition_penalty,
            choices=choices,
            opening=self._opening,
        )
        return Request(plan=plan, sampling=sampling, reuse=reuse, recomputation=RECOMPUTATIONS[policy], session=session)
