"""GPS tracks as a picture that needs no network: no tiles, the drawing library inside the page."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots
from pyspark.sql import DataFrame

#: Tracks whose middles are nearer than this share a panel; degrees, about 30 km.
REGION_DEGREES = 0.3
PANELS = 6


@dataclass
class Track:
    """The positions of a device, in the order of time."""

    device: str
    longitudes: list[float]
    latitudes: list[float]
    speeds: list[float]

    @property
    def middle(self) -> tuple[float, float]:
        """Return the mean longitude and latitude."""
        points = len(self.longitudes)
        return sum(self.longitudes) / points, sum(self.latitudes) / points


def track_map(gps_events: DataFrame, *, max_points: int = 20_000) -> str:
    """Draw the tracks, one panel a region, coloured by speed.

    Args:
        gps_events: `deviceId STRING, timestamp TIMESTAMP, latitude DOUBLE, longitude DOUBLE, speed DOUBLE`.
        max_points: Most points that the driver reads; further ones are not drawn.

    Returns:
        HTML for `displayHTML`.
    """
    regions = _regions(_tracks(gps_events, max_points))[:PANELS]
    if not regions:
        return "<p>No GPS events yet: nothing to draw.</p>"
    figure = make_subplots(
        rows=1,
        cols=len(regions),
        subplot_titles=[", ".join(_text(track) for track in region[:3]) for region in regions],
    )
    fastest = _percentile([speed for region in regions for track in region for speed in track.speeds], 0.98)
    for column, region in enumerate(regions, start=1):
        for track in region:
            figure.add_trace(_trace(track, fastest), row=1, col=column)
        # A degree of longitude is shorter than one of latitude, by the cosine of the latitude.
        ratio = 1 / math.cos(math.radians(region[0].middle[1]))
        figure.update_yaxes(
            scaleanchor=f"x{column if column > 1 else ''}", scaleratio=ratio, row=1, col=column
        )
    figure.update_xaxes(title_text="longitude (degrees)", tickangle=0, nticks=5)
    figure.update_yaxes(title_text="latitude (degrees)", col=1)
    figure.update_layout(
        height=420, showlegend=False, template="plotly_white", margin={"t": 50, "b": 50, "l": 70, "r": 20},
        coloraxis={"colorscale": "Viridis", "cmin": 0, "cmax": fastest, "colorbar": {"title": "km/h"}},
    )  # fmt: skip
    return str(figure.to_html(full_html=False, include_plotlyjs=True, config={"displayModeBar": False}))


def _tracks(gps_events: DataFrame, max_points: int) -> list[Track]:
    columns = ["deviceId", "timestamp", "longitude", "latitude", "speed"]
    # A topic that was published twice holds each point twice; drawn once is enough.
    points = gps_events.select(*columns).distinct().orderBy("deviceId", "timestamp").limit(max_points)
    tracks: dict[str, Track] = {}
    for device, _, longitude, latitude, speed in points.collect():
        track = tracks.setdefault(device, Track(device, [], [], []))
        track.longitudes.append(longitude)
        track.latitudes.append(latitude)
        track.speeds.append(speed)
    return list(tracks.values())


def _regions(tracks: list[Track]) -> list[list[Track]]:
    regions: list[list[Track]] = []
    for track in tracks:
        near = (region for region in regions if math.dist(region[0].middle, track.middle) < REGION_DEGREES)
        region = next(near, None)
        if region is None:
            regions.append([track])
        else:
            region.append(track)
    return regions


def _text(track: Track) -> str:
    """Return the escaped name of a device: Plotly reads tags and links in titles."""
    return html.escape(track.device)


def _percentile(values: list[float], share: float) -> float:
    """Return a percentile, so that one receiver's outlier does not determine the scale of colours."""
    return max(sorted(values)[int(len(values) * share) - 1], 1.0)


def _trace(track: Track, fastest: float) -> go.Scatter:
    return go.Scatter(
        x=track.longitudes,
        y=track.latitudes,
        mode="lines+markers",
        name=_text(track),
        line={"color": "lightgrey", "width": 1},
        marker={
            "size": 5,
            "color": [min(speed, fastest) for speed in track.speeds],
            "coloraxis": "coloraxis",
        },
        customdata=track.speeds,
        hovertemplate="%{y:.5f}, %{x:.5f}<br>%{customdata:.1f} km/h",
    )
