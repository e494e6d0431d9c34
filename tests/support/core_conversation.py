"""Golden conversations with the coordinator's core: events in, actions out, as text.

One table `t`, tablets `a`, `b` …; a job `j1` of tablet `a` over files `f1 f2`. Time stands
in `at=`; `tick to=` lets it pass second by second and tells when something was done.
"""

from __future__ import annotations

from collections.abc import Callable

from common.metadata.changes import WriteAnalysis
from common.model.job import Job, Kind, TabletPlan, analysis_job
from common.model.outcome import AttemptEnd, RefusalCode
from common.model.table import Table, TableSettings, TableState
from common.model.tablet import Analysis, Record, TabletId
from common.settings import CoordinatorSettings
from common.wire import AttemptProgress, AttemptReport, Heartbeat, TakeRequest
from coordinator.core import actions as do
from coordinator.core import events as on
from coordinator.core.limits import Limits
from coordinator.core.state import CoordinatorState
from tests.support.datadriven import Step
from tests.support.reservations import assignment_of, reservation_of


def tablet(name: str) -> TabletId:
    """Return the tablet of table `t` whose end is a letter."""
    return TabletId("t", name.encode())


class Conversation:
    """One state, talked to in steps."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.jobs: dict[str, Job] = {}
        self.state = CoordinatorState(CoordinatorSettings(), "me")
        self.made: dict[str, Callable[[Step], on.Event]] = {
            "table": self._table,
            "drop": lambda step: on.TableGone(table="t"),
            "plan": self._plan,
            "planner-fails": lambda step: on.PlanningFailed(
                tablet=tablet(step.args["of"]), cause=step.args["cause"]
            ),
            "fatal": self._fatal,
            "merge": lambda step: on.TabletGone(tablet=tablet(step.args["of"])),
            "take": self._take,
            "late": lambda step: on.TakeLate(take=step.args["take"]),
            "leave": lambda step: on.TakeLeft(take=step.args["take"]),
            "reserved": self._reserved,
            "refused": lambda step: on.JobRefused(
                take=step.args["take"],
                job=self.jobs[step.args["job"]],
                code=RefusalCode(step.args.get("code", RefusalCode.GONE)),
                reason=step.args.get("why", "files are gone"),
            ),
            "unknown": self._unknown,
            "beat": self._beat,
            "gone": lambda step: on.CompactorGone(
                compactor=step.args["of"], cause="it died", incarnation=step.args.get("process", "")
            ),
            "drain": lambda step: on.DrainAsked(compactor=step.args["of"]),
            "report": self._report,
            "settled": lambda step: on.AttemptSettled(
                tablet=tablet(step.args.get("of", "a")),
                attempt=step.args["attempt"],
                end=AttemptEnd(step.args.get("end", "committed")),
            ),
            "found": self._found,
            "cancel": lambda step: on.AttemptCancelAsked(
                attempt=step.args["attempt"],
                cause=step.args.get("why", "wanted"),
                lost_input="lost" in step.args,
            ),
            "step": self._step,
            "pause": lambda step: on.GroupPaused(group=step.args["group"]),
            "resume": lambda step: on.GroupResumed(group=step.args["group"]),
            "lift": lambda step: on.QuarantineLifted(
                table="t", tablet=tablet(step.args["of"]) if "of" in step.args else None
            ),
        }
        self.looks: dict[str, Callable[[Step], list[str]]] = {
            "begin": self._begin,
            "tick": self._tick,
            "explain": self._explain,
            "story": self._story,
            "queue": self._queue,
            "running": self._running,
            "groups": self._groups,
            "compactors": self._compactors,
            "counters": self._counters,
        }

    def answer(self, step: Step) -> str:
        """Return what the state does, or shows."""
        self.now_s = float(step.args.get("at", self.now_s))
        look = self.looks.get(step.command)
        if look is not None:
            return "\n".join(look(step)) or "nothing"
        return "\n".join(self._tell(self.made[step.command](step))) or "nothing"

    def _tell(self, event: on.Event) -> list[str]:
        actions = self.state.handle(event, self.now_s)
        self.state.check()
        return [self._line(action) for action in actions]

    # Events.

    def _table(self, step: Step) -> on.Event:
        settings = TableSettings(weight=float(step.args.get("weight", 1)))
        table = Table(
            id="t",
            name="trips",
            location="file:///t",
            schema=(),
            settings=settings,
            settings_version=int(step.args.get("settings", 1)),
            state=TableState(step.args.get("state", "live")),
        )
        return on.TableSeen(table=table)

    def _unknown(self, step: Step) -> on.Event:
        job, attempt = self.jobs[step.args["job"]], step.args["attempt"]
        return on.JobReserveUnknown(take=step.args["take"], job=job, attempt=attempt)

    def _step(self, step: Step) -> on.Event:
        return on.StepAnswered(
            tablets=tuple(tablet(each) for each in step.args["of"].split(",")),
            of=step.args["by"],
            step=step.args["name"],
            chosen=int(step.args.get("chosen", 0)),
            code=step.args.get("code", ""),
        )

    def _fatal(self, step: Step) -> on.Event:
        args = step.args
        return on.FileFatal(tablet=tablet(args["of"]), path=args["file"], cause=args["cause"])

    def _plan(self, step: Step) -> on.Event:
        jobs = [
            self._job(step, line) for line in step.lines if not line.startswith(("left ", "hold "))
        ]
        left = dict(line.split(" ", 2)[1:] for line in step.lines if line.startswith("left "))
        holds = tuple(line[5:] for line in step.lines if line.startswith("hold "))
        version = int(step.args.get("version", 1))
        record = Record(
            version=version,
            files=int(step.args.get("files", 9)),
            running=int(step.args.get("running", 0)),
            analysis=Analysis(step.args.get("known", "unknown")),
            analysis_version=version,
            analysis_settings=1,
            analysis_group=step.args.get("analyze", ""),
        )
        if record.analysis_group:
            where = tablet(step.args["of"])
            self.jobs["analysis"] = analysis_job(where, "trips", record.analysis_group)
        plan = TabletPlan(jobs=tuple(jobs), left=left, holds=holds)
        return on.TabletPlanned(
            tablet=tablet(step.args["of"]),
            plan=plan,
            record=record,
            settings_version=int(step.args.get("settings", 1)),
        )

    def _job(self, step: Step, line: str) -> Job:
        """Return the job of a line `j1 f1 f2 priority=5 group=small after=j0`."""
        name, *words = line.split()
        named = dict(word.split("=") for word in words if "=" in word)
        inputs = tuple(word for word in words if "=" not in word)
        job = Job(
            id=name,
            tablet=tablet(step.args["of"]),
            table_name="trips",
            kind=Kind.USER if "request" in named else Kind.SYSTEM,
            inputs=inputs,
            input_bytes=100 * len(inputs),
            group=named.get("group", "small"),
            priority=int(named.get("priority", 1)),
            reason="because",
            request=named.get("request"),
            depends_on=tuple(filter(None, named.get("after", "").split(","))),
        )
        self.jobs[name] = job
        return job

    def _take(self, step: Step) -> on.Event:
        compactor = step.args.get("by", "c1")
        return on.TakeAsked(
            request=TakeRequest(
                take=step.args["take"],
                compactor=compactor,
                incarnation=step.args.get("process", f"{compactor}.1"),
                group=step.args.get("group", "small"),
                actions=tuple(filter(None, step.args.get("knows", "").split(","))),
            )
        )

    def _reserved(self, step: Step) -> on.Event:
        job = self.jobs[step.args["job"]]
        given = assignment_of(job, step.args["attempt"], step.args.get("by", "c1"), self.now_s)
        return on.JobReserved(take=step.args["take"], assignment=given)

    def _beat(self, step: Step) -> on.Event:
        compactor = step.args.get("of", "c1")
        listed = [each for each in step.args.get("lists", "").split(",") if each]
        return on.CompactorHeard(
            beat=Heartbeat(
                compactor=compactor,
                incarnation=step.args.get("process", f"{compactor}.1"),
                group=step.args.get("group", "small"),
                node="n1",
                slots=2,
                attempts=tuple(AttemptProgress(attempt=each, state="rewriting") for each in listed),
                draining="draining" in step.args,
            )
        )

    def _report(self, step: Step) -> on.Event:
        return on.AttemptReported(
            report=AttemptReport(
                compactor=step.args.get("by", "c1"),
                attempt=step.args["attempt"],
                end=AttemptEnd(step.args.get("end", "committed")),
                error_class=step.args.get("error", ""),
                cause=step.args.get("cause", ""),
                halvings=int(step.args.get("halvings", 0)),
                outputs=tuple(filter(None, step.args.get("outputs", "").split(","))),
            )
        )

    def _found(self, step: Step) -> on.Event:
        """Lines `a7 j1 c1`: attempt, job, compactor."""
        entries = [
            reservation_of(self.jobs[job], attempt, compactor, self.now_s)
            for attempt, job, compactor in (line.split() for line in step.lines)
        ]
        where = tablet(step.args.get("of", "a"))
        return on.ReservationsFound(tablet=where, reservations=tuple(entries))

    # Looks.

    def _begin(self, step: Step) -> list[str]:
        """Start anew, with other limits than the defaults."""
        numbers = {name: float(value) for name, value in step.args.items()}
        whole = {
            name: int(value) if value.is_integer() else value for name, value in numbers.items()
        }
        self.state = CoordinatorState(CoordinatorSettings(), "me", limits=Limits(**whole))  # type: ignore[arg-type] # names are checked by the class
        return []

    def _tick(self, step: Step) -> list[str]:
        until_s = float(step.args.get("to", self.now_s))
        lines: list[str] = []
        while self.now_s < until_s or "to" not in step.args:
            self.now_s += 1.0 if "to" in step.args else 0.0
            lines += [f"{self.now_s:g} {line}" for line in self._tell(on.Ticked())]
            if "to" not in step.args:
                break
        return lines

    def _explain(self, step: Step) -> list[str]:
        told = self.state.explain(tablet(step.args["of"]), self.now_s)
        lines = [*told.sentences, *(f"left {path}: {why}" for path, why in told.left.items())]
        if told.queued:
            lines.append(f"queued {', '.join(told.queued)}")
        if told.running:
            lines.append(f"running {', '.join(told.running)}")
        return lines

    def _story(self, step: Step) -> list[str]:
        """Each entry: when, what, and every fact that is not empty."""
        told = self.state.story(tablet(step.args["of"]), self.now_s)
        facts = [entry._asdict() for entry in told.entries]
        lines = [f"began at {told.started_s:g}"]
        for fact in facts:
            at_s, kind = fact.pop("at_s"), fact.pop("kind")
            if fact["times"] == 1:
                del fact["times"]
            said = {name: value for name, value in fact.items() if value}
            words = " ".join(f"{name}={_plain(value)}" for name, value in said.items())
            lines.append(f"{at_s:g} {kind} {words}".rstrip())
        return lines

    def _queue(self, step: Step) -> list[str]:
        return [
            f"{each.place} {each.job.id} age {each.age_s:g} s, {each.effective_priority:g}"
            for each in self.state.queued(step.args.get("group"), 10, self.now_s)
        ]

    def _running(self, step: Step) -> list[str]:
        return [
            f"{each.attempt} {each.job_id} on {each.compactor}, {each.input_bytes} bytes"
            f"{', ' + each.progress.state if each.progress else ''}"
            for each in self.state.running(self.now_s)
        ]

    def _groups(self, step: Step) -> list[str]:
        return [
            f"{group.group}: {group.queued} queued, {group.running} running, "
            f"{group.compactors} compactors, {group.waiting_takes} takes"
            f"{', paused' if group.paused else ''}"
            for group in self.state.status(self.now_s).groups
        ]

    def _compactors(self, step: Step) -> list[str]:
        return [
            f"{compactor.compactor}: {compactor.busy} of {compactor.slots} busy,"
            f" heard {compactor.heard_ago_s:g} s ago"
            f"{', draining' if compactor.draining else ''}"
            + (
                f", failed {compactor.failures}, pauses {compactor.backing_off_s:g} s"
                * bool(compactor.failures)
            )
            for compactor in self.state.status(self.now_s).compactors
        ]

    def _counters(self, step: Step) -> list[str]:
        told = self.state.status(self.now_s)
        return [
            f"committed {told.committed}, failed {told.failed}, released {told.released}, "
            f"quarantined {told.quarantined}, tablets {told.tablets_known}",
            *(
                f"quarantine {quarantine.table} {quarantine.tablet}: {quarantine.reason}"
                for quarantine in told.quarantines
            ),
            *(warning for warning in told.warnings if "wait for its storage" in warning),
        ]

    @staticmethod
    def _line(action: do.Action) -> str:
        match action:
            case do.Reserve(take=take, job=job, compactor=compactor):
                return f"reserve {job.id} for {take} of {compactor}"
            case do.Assign(take=take, attempt=attempt):
                return f"assign {attempt} to {take}"
            case do.AnswerNothing(take=take):
                return f"nothing for {take}"
            case do.Release(attempt=attempt, end=end, cause=cause, for_silence=silence):
                told = f", halved {action.halvings} times" if action.halvings else ""
                quietly = ", for silence" if silence else ""
                return f"release {attempt} {end.value}{quietly}{told}: {cause}"
            case _:
                return _other_line(action)


def _plain(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else f"{value}"


def _other_line(action: do.Action) -> str:
    match action:
        case do.Replan(tablet=where):
            return f"replan {where.end.decode()}"
        case do.AnswerBeat(cancel=cancel, drain=drain):
            return (
                f"beat{' cancel ' + ','.join(cancel) if cancel else ''}{' drain' if drain else ''}"
            )
        case WriteAnalysis(tablet=where, analysis=analysis, version=version):
            return f"note {where.end.decode()} {analysis.value} of version {version}"
        case do.WriteLog(event=event, fields=fields):
            return f"tell {event}: {', '.join(f'{name}={value}' for name, value in fields)}"
        case _:
            raise AssertionError(action)
