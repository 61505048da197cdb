"""What happened in a run, in a few sentences: what a reader should know before looking."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import pairwise

from simulator.record import AttemptRecord, EpochRecord, RunRecord

#: Faults and handovers that are told; the page lists all of them.
_TOLD_MAX = 4


def run_story(record: RunRecord, fates: Sequence[str]) -> list[str]:
    """Sentences about a run whose attempts had these fates, most important first; never empty."""
    story = [_findings(record)] if record.findings else []
    handovers = _handovers(record)
    story += handovers
    story += _faults(record, "Also" if handovers else "Faults")
    story += _unmade(record)
    story += _work(record, fates)
    story += _jobs(record)
    return story


def reproducing_line(record: RunRecord) -> str:
    """The command that makes this run once more."""
    verb = "simulate" if record.world == "simulated" else "run"
    words = ["holdover", verb, record.scenario, "--seed", str(record.seed)]
    for option, value in record.options.items():
        words += ["--sweep", f"{option}={value}"]
    return shlex.join(words)


def outcome(record: RunRecord) -> str:
    """In one or two words."""
    if record.findings:
        return f"{_count(len(record.findings), 'finding')}"
    states = [job.state for job in record.jobs]
    if not states:
        return "no job"
    if all(state == "FINISHED" for state in states):
        return "finished"
    return ", ".join(dict.fromkeys(s.lower() for s in states if s != "FINISHED"))


def seconds_text(seconds: float) -> str:
    """A duration as a person writes it."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def moment_text(seconds: float) -> str:
    """A moment of a run, as its time axis shows it."""
    if seconds < 600:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _count(number: int, noun: str) -> str:
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"


def _findings(record: RunRecord) -> str:
    names = list(dict.fromkeys(finding.invariant for finding in record.findings))
    return f"{_count(len(record.findings), 'finding')}: {'; '.join(names)}."


def _handovers(record: RunRecord) -> list[str]:
    told = [_handover(old, new) for old, new in pairwise(record.epochs)][:_TOLD_MAX]
    last_s = record.epochs[-1].until_s if record.epochs else None
    if last_s is not None and any(j.ended_s is None or j.ended_s > last_s for j in record.jobs):
        leader = record.epochs[-1].jobmanager
        told.append(f"The last leader, {leader}, was lost at {moment_text(last_s)}.")
    more = len(record.epochs) - 1 - _TOLD_MAX
    return [*told, f"Leadership changed {more} more times."] if more > 0 else told


def _handover(old: EpochRecord, new: EpochRecord) -> str:
    end_s = new.from_s if old.until_s is None else old.until_s
    who = f"{new.jobmanager} led {seconds_text(max(0.0, new.from_s - end_s))} later"
    if new.jobmanager == old.jobmanager:
        who = f"it led again {seconds_text(max(0.0, new.from_s - end_s))} later"
    waits = [until - start for _, start, until in new.reconciling if until is not None]
    wait = f" and waited {seconds_text(max(waits))} for workers" if waits else ""
    return f"{old.jobmanager} was lost at {moment_text(end_s)}; {who}{wait}."


def _faults(record: RunRecord, title: str) -> list[str]:
    """The faults that the handovers do not tell of already."""
    leaders = {epoch.jobmanager for epoch in record.epochs}
    told = []
    for fault in record.faults:
        if fault.victims and set(fault.victims) <= leaders:
            continue
        victims = fault.victims
        whom = _count(len(victims), "process") if len(victims) > 2 else ", ".join(victims)
        healed = "" if fault.until_s is None else f", healed at {moment_text(fault.until_s)}"
        whom = f" of {whom}" if whom else ""
        detail = f" ({fault.detail})" if fault.detail else ""
        told.append(f"{fault.kind}{whom}{detail} at {moment_text(fault.at_s)}{healed}")
    if not told:
        return []
    more = f"; {len(told) - _TOLD_MAX} more" if len(told) > _TOLD_MAX else ""
    return [f"{title}: {'; '.join(told[:_TOLD_MAX])}{more}."]


def _unmade(record: RunRecord) -> list[str]:
    """The faults whose moment never came: who reads of none of them would think that all did."""
    if not record.unmade:
        return []
    told = [f"{fault.kind} ({fault.when})" for fault in record.unmade[:_TOLD_MAX]]
    more = len(record.unmade) - _TOLD_MAX
    return [f"Their moment never came: {'; '.join(told)}{f'; {more} more' if more > 0 else ''}."]


def _work(record: RunRecord, fates: Sequence[str]) -> list[str]:
    if not fates:
        return ["No task ran."]
    if len(record.epochs) < 2:
        vain = len(fates) - fates.count("kept") - fates.count("repeated") - fates.count("running")
        if not vain:
            return [f"All {_count(len(fates), 'attempt')} were kept; nothing ran twice."]
        return [f"{_count(vain, 'attempt')} of {len(fates):,} came to nothing."]
    lost_s = record.epochs[-2].until_s
    before = [
        fate
        for attempt, fate in zip(record.attempts, fates, strict=True)
        if _finished_by(attempt, lost_s)
    ]
    vain = before.count("rerun")
    cut = sum(fates.count(fate) for fate in ("canceled", "lost", "failed"))
    kept = f"{len(before) - vain:,} of {_count(len(before), 'finished subtask')} were kept"
    again = "none of them ran again" if not vain else f"{vain:,} had to run again"
    were = "was" if cut == 1 else "were"
    return [f"{kept}, {again}; {_count(cut, 'running attempt')} {were} cut short."]


def _finished_by(attempt: AttemptRecord, at_s: float | None) -> bool:
    if attempt.end != "finished" or attempt.ended_s is None:
        return False
    return at_s is None or attempt.ended_s <= at_s


def _jobs(record: RunRecord) -> list[str]:
    told = []
    for job in record.jobs[:_TOLD_MAX]:
        if job.ended_s is None:
            told.append(f"Job “{job.name}” had not ended ({job.state}).")
            continue
        took = seconds_text(job.ended_s - job.submitted_s)
        why = f": {job.failure.splitlines()[0]}" if job.failure else ""
        told.append(f"Job “{job.name}” {job.state.lower()} after {took}{why}.")
    if len(record.jobs) > _TOLD_MAX:
        told.append(f"{len(record.jobs) - _TOLD_MAX} more jobs.")
    return told
