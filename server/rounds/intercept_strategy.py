"""The strategy of a run with a final round that adds the common intercept."""

from typing import Any

from flwr.serverapp import Grid

from samara.server.rounds.common_intercept import common_intercept
from samara.server.rounds.evaluation import is_comparison
from samara.server.rounds.event_log import DEVIATION, INTERCEPT, RoundEvent, reasons_by_text
from samara.server.rounds.strategy import ScalarStrategy
from samara.shared.errors import TrainingError
from samara.shared.protocol.frames.instructions import GLOBAL_TRACK
from samara.shared.protocol.replay import to_float32
from samara.shared.protocol.round_delta import RoundDelta


class InterceptStrategy(ScalarStrategy):
    """A `ScalarStrategy` whose clients report an intercept after the last round."""

    def add_common_intercept(self, grid: Grid) -> None:
        """Add the mean of the clients' intercepts to the global model after its last round.

        During training, private intercepts or the shifts of a profiled loss represent the labels'
        base rates. The global model therefore does not learn these base rates, even if all clients
        share them. The reports of this round are aggregated like all reports. A failed round is
        recorded and does not change the model. The round is omitted if an earlier version of Samara
        has already compared the run's personal models.

        Raises:
            LedgerError: if the round cannot be written.
        """
        number = self._planner.terms.intercept_round
        layout = self._store.layout
        is_recorded = self._cohorts is None or self._cohorts.last_round >= number
        is_over = not is_recorded or any(map(is_comparison, self._store.events()))
        if not number or self.round != number - 1 or is_over:
            return
        self._late_reports.forget()
        request = self._planner.plan_intercepts(grid, self._answers.joint_clip(number))
        delta = RoundDelta(number, GLOBAL_TRACK, bytes(8), (), ())
        event = None
        more: dict[str, Any] = {}
        try:
            self._answers.check_intercepts(request.instruction, layout)
        except TrainingError as error:
            event = RoundEvent(round=number, problem=f"no common intercept: {error}")
        if event is None:
            self._request = request = self._answers.prepare(request, grid)
            timeout = self._config.cohort.timeout
            messages = list(grid.send_and_receive(request.messages, timeout=timeout))
            if self._cohorts:
                messages = self._cohorts.take_replies(number, messages, self._roster)
            answered = self._answers.fold(request, messages, self._planner.minimum)
            aggregated = answered.aggregated
            losses = self._planner.terms.held_out_losses
            delta = common_intercept(aggregated.delta, layout, losses)
            more = dict(aggregated.privacy)
            if delta.common_intercept:
                more[INTERCEPT] = to_float32(delta.common_intercept.values).tolist()
            if delta.common_deviation:
                more[DEVIATION] = delta.common_deviation.deviation
            event = RoundEvent(
                round=number,
                reports=aggregated.reports,
                refused=reasons_by_text(answered.refused),
                absent=self._update_health(request, answered.reporting, answered.refused),
                problem=aggregated.problem and f"no common intercept: {aggregated.problem}",
                bytes_up=answered.bytes_up,
                bytes_down=answered.bytes_down,
                clients={
                    client: {key: value for key, value in fields.items() if key != "loss"}
                    for client, fields in answered.clients.items()
                },
            )
        for meter in self._meters:
            more |= meter.finish_round()
        self.event_log.append_round(delta, event, **more)
