"""Pictures of a streaming query's progress: numbers with units, and small line charts."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH, _HEIGHT = 220, 56
#: Characters.
_TEXT_WIDTH = 40
_COLOURS = ("#3b82f6", "#10b981", "#f59e0b", "#a855f7")


@dataclass(frozen=True)
class BatchPoint:
    """The drawn values of one micro-batch; `lag` is in records, or None if the source is not Kafka."""

    batch: int
    time: datetime
    rows: int
    input_rate: float
    processing_rate: float
    milliseconds: float
    lag: int | None = None


@dataclass(frozen=True)
class Measure:
    """A quantity that is drawn over time."""

    title: str
    values: Sequence[float]
    texts: Sequence[str]

    @property
    def latest(self) -> str:
        """The last value with its unit, or a dash."""
        return self.texts[-1] if self.texts else "–"


def measures(points: Sequence[BatchPoint]) -> list[Measure]:
    """Return input rate, processing rate, batch duration, and the lag if it is known."""
    inputs = [point.input_rate for point in points]
    processing = [point.processing_rate for point in points]
    durations = [point.milliseconds for point in points]
    candidates = [
        Measure("input rate", inputs, list(map(rate_text, inputs))),
        Measure("processing rate", processing, list(map(rate_text, processing))),
        Measure("batch duration", durations, list(map(duration_text, durations))),
    ]
    lags = [point.lag for point in points if point.lag is not None]
    if points and len(lags) == len(points):
        candidates.append(Measure("lag", lags, [f"{lag:,} records" for lag in lags]))
    return candidates


def rate_text(rate: float) -> str:
    """Return rows per second with its unit."""
    return f"{rate:,.1f} rows/s" if rate < 100 else f"{rate:,.0f} rows/s"


def duration_text(milliseconds: float) -> str:
    """Return a duration with its unit."""
    return f"{milliseconds:,.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:,.1f} s"


def html_charts(points: Sequence[BatchPoint]) -> str:
    """Return the measures as line charts side by side: SVG in the page itself, so that an update is small."""
    times = [point.time.timestamp() for point in points]
    charts = (
        _html_chart(measure, times, colour)
        for measure, colour in zip(measures(points), _COLOURS, strict=False)
    )
    return f'<div style="display:flex;flex-wrap:wrap;gap:16px;font-size:13px">{"".join(charts)}</div>'


def text_charts(points: Sequence[BatchPoint]) -> list[str]:
    """Return one line for each measure: its name, its last value, and its course as bars."""
    return [
        f"{measure.title:<16}{measure.latest:>16}  {_bars(measure.values[-_TEXT_WIDTH:])}".rstrip()
        for measure in measures(points)
    ]


def _html_chart(measure: Measure, times: Sequence[float], colour: str) -> str:
    top = max(measure.values, default=0.0)
    highest = measure.texts[measure.values.index(top)] if measure.values else ""
    label = html.escape(f"{measure.title}: {measure.latest} now, {highest or '–'} at most")
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in _points(measure.values, times))
    end = line.rpartition(" ")[2].split(",") if line else []
    dot = f'<circle cx="{end[0]}" cy="{end[1]}" r="2.5" fill="{colour}"/>' if end else ""
    return (
        f'<div><div>{measure.title} <b>{measure.latest}</b></div><svg role="img" aria-label="{label}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        f'<line x1="0" y1="{_HEIGHT - 2}" x2="{_WIDTH}" y2="{_HEIGHT - 2}" stroke="gray"/>'
        f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>{dot}'
        f'<text x="2" y="10" font-size="10" fill="gray">{highest}</text></svg></div>'
    )


def _points(values: Sequence[float], times: Sequence[float]) -> list[tuple[float, float]]:
    """Return the coordinates of a line's points: first to last time, 0 to the highest value."""
    top, seconds = max(values, default=0.0) or 1.0, (times[-1] - times[0] if times else 0.0) or 1.0
    wide, high = _WIDTH - 6, _HEIGHT - 18
    return [
        (2 + wide * (time - times[0]) / seconds, _HEIGHT - 3 - high * value / top)
        for value, time in zip(values, times, strict=True)
    ]


def _bars(values: Sequence[float]) -> str:
    top = max(values, default=0.0) or 1.0
    return "".join(_BARS[round((len(_BARS) - 1) * value / top)] for value in values)
