"""Figures of a report, as HTML fragments that share one copy of plotly.js on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from holdfast.evaluation import Rows
from holdfast.evaluation.smoothed_tables import Line, radii_of, rules_in, rules_of
from holdfast.metrics import hit_rate
from holdfast.neighbours.certification import attacked_radii

SAME, OTHER, PLAIN = "#2a9d6f", "#d1605e", "#4c78a8"
MANY = (PLAIN, SAME, "#c98a1b", "#9467bd", OTHER, "#6b7785")


def plotly_script() -> Markup:
    """plotly.js itself, once for a page."""
    from plotly.offline import get_plotlyjs

    return Markup(get_plotlyjs())


def recall_curve(rows: Rows) -> str:
    """Hit rate against K, up to the last K that changes anything."""
    first = rows.columns["first_rank"]
    furthest = int(max(first.max(initial=1), 1))
    ks = np.unique(np.geomspace(1, furthest, 60).round().astype(int))
    rates = [hit_rate(first, int(k)) for k in ks]
    return _figure(
        "Hit rate against K",
        [{"x": ks.tolist(), "y": rates, "name": "hit rate", "line": {"color": PLAIN}}],
        x={"title": "K", "type": "log"},
        y={"range": [min(0.0 if r is None else r for r in rates) - 0.02, 1.01]},
    )


def certified_curve(rows: Rows) -> str:
    """Certified hit rate against eps for each K; the dotted line is the hit rate without an attack."""
    ks = rows.header["config"]["ks"]
    furthest = max(float(rows.columns[f"eps_{k}"].max()) for k in ks)
    sizes = np.linspace(0, max(furthest, 0.01) * 1.02, 160)
    traces = []
    for k, colour in zip(ks, cycle(MANY), strict=False):
        largest, clean = rows.columns[f"eps_{k}"], float(rows.columns[f"recall_{k}"].mean())
        rates = [float((largest >= eps).mean()) for eps in sizes]
        line = {"color": colour, "shape": "vh"}
        traces.append({"x": np.round(sizes, 5).tolist(), "y": rates, "name": f"K = {k}", "line": line})
        dotted = {"color": colour, "dash": "dot", "width": 1}
        traces.append(
            {
                "x": [0, float(sizes[-1])],
                "y": [clean, clean],
                "name": f"clean, K = {k}",
                "line": dotted,
                "showlegend": False,
            }
        )
    return _figure(
        "Certified hit rate against ε (dotted: without an attack)",
        traces,
        x={"title": "ε"},
        y={"range": [-0.02, 1.02]},
        height=380,
    )


def smoothed_curve(rows: Rows, k: int) -> str:
    """Recall@K of a smoothed search against the ℓ2 radius, for each rule."""
    traces = []
    for rule, colour in zip(rules_in(rows, k), cycle(MANY), strict=False):
        right, radius = radii_of(rows, rule, k)
        radius = np.sort(radius)
        held = (len(right) - np.arange(len(radius))) / max(1, len(right))
        certified = radius > 0
        line = {"color": colour, "shape": "vh"}
        x, y = radius[certified].round(5).tolist(), held[certified].tolist()
        traces.append({"x": [0.0, *x], "y": [y[0] if y else 0.0, *y], "name": rule, "line": line})
    return _figure(
        f"Recall@{k} under any change of the query within r (ℓ2)",
        traces,
        x={"title": "r"},
        y={"range": [-0.02, 1.02]},
        height=340,
    )


def robust_error_curve(parts: Mapping[str, Rows]) -> str:
    """Robust error against the radius for each metric: the certified one, and dotted the attacked one below it."""
    furthest = max(float(np.quantile(_reached(rows), 0.98)) for rows in parts.values())
    radii = np.linspace(0, furthest or 1.0, 200)
    traces = []
    for (name, rows), colour in zip(parts.items(), cycle(MANY), strict=False):
        for values, words, style in (
            (rows.columns["lower"], "certified", {"width": 2}),
            (attacked_radii(rows), "attacked", {"dash": "dot"}),
        ):
            if values is not None:
                errors = [float((values <= radius).mean()) for radius in radii]
                traces.append(
                    {
                        "x": np.round(radii, 5).tolist(),
                        "y": errors,
                        "name": f"{name}, {words}",
                        "line": {"color": colour, **style},
                    }
                )
    return _figure(
        "Robust error against the radius (ℓ2, scaled features)",
        traces,
        x={"title": "radius"},
        y={"range": [-0.02, 1.02]},
        height=420,
    )


def _reached(rows: Rows) -> NDArray[np.float64]:
    """The radii that a curve shows: finite ones, those of attacks where there are any."""
    found = attacked_radii(rows)
    found = rows.columns["lower"] if found is None else found
    finite = found[found < np.finfo(np.float64).max]
    return finite if len(finite) else np.zeros(1)


def radius_histogram(rows: Rows, k: int) -> str:
    """How many queries have which radius, for the two forms of the same deployed search."""
    parts = {rule: radii_of(rows, rule, k)[1] for rule in rules_in(rows, k) if rule in ("paper", "cdf")}
    both = np.concatenate(list(parts.values()))
    edges = np.histogram_bin_edges(both, bins=30) if len(both) else np.array([0.0, 1.0])
    middles = ((edges[1:] + edges[:-1]) / 2).round(5).tolist()
    traces = [
        {
            "x": middles,
            "y": np.histogram(radius, bins=edges)[0].tolist(),
            "name": rule,
            "line": {"color": colour},
        }
        for (rule, radius), colour in zip(parts.items(), cycle(MANY), strict=False)
    ]
    return _figure(
        f"Queries by radius (ℓ2), K = {k}", traces, x={"title": "r"}, y={"title": "queries"}, height=300
    )


def radius_against_samples(table: Sequence[Line], alpha: float) -> str:
    """Mean radius and share of rejected queries against the number of samples, K = the first of the table."""
    k = table[0].k
    traces = []
    for rule, colour in zip(rules_of(k), cycle(MANY), strict=False):
        lines = [line for line in table if (line.rule, line.k, line.alpha) == (rule, k, alpha)]
        if not lines:
            continue  # Rows of before lack some rules.
        lines.sort(key=lambda line: line.n)
        traces.append(
            {
                "x": [line.n for line in lines],
                "y": [line.mean_radius for line in lines],
                "name": rule,
                "line": {"color": colour},
            }
        )
    return _figure(
        f"Mean radius (ℓ2) against samples, K = {k}",
        traces,
        x={"title": "samples", "type": "log"},
        y={"rangemode": "tozero"},
        height=300,
    )


def distance_histogram(rows: Rows) -> str:
    """Distances to the same and to other classes, sampled at equal quantiles of every query."""
    parts = {
        name: np.array(
            [d for entry in rows.columns[f"{name}_distances"] for d in entry[1:]], dtype=np.float64
        )
        for name in ("same", "other")
    }
    both = np.concatenate(list(parts.values()))
    edges = np.histogram_bin_edges(both, bins=60) if len(both) else np.array([0.0, 1.0])
    centres = (edges[1:] + edges[:-1]) / 2
    traces = []
    for (name, values), colour in zip(parts.items(), (SAME, OTHER), strict=True):
        share = np.histogram(values, edges)[0] / max(1, len(values))
        traces.append(
            {
                "x": np.round(centres, 5).tolist(),
                "y": share.tolist(),
                "name": f"{name} class",
                "fill": "tozeroy",
                "line": {"color": colour, "shape": "hvh", "width": 1},
            }
        )
    return _figure(
        "Distances of queries to candidates", traces, x={"title": "distance"}, y={"title": "share"}
    )


def training_curves(log: Sequence[dict[str, Any]]) -> list[str]:
    """The loss, and what was measured on held-out images and on batches, over the steps."""
    wanted = {
        "Loss": ("loss",),
        "Held-out images": ("hit_rate_1",),
        "Batches": ("mean_distance", "separability"),
        "Triplets before the adversary": ("hardness", "collapseness"),
        "How far the adversary shifts embeddings": ("shift",),
    }
    figures = []
    for title, keys in wanted.items():
        traces = [
            {
                "x": [r["step"] for r in log if key in r],
                "y": [r[key] for r in log if key in r],
                "name": key.replace("_", " "),
            }
            for key in keys
        ]
        if any(trace["x"] for trace in traces):
            figures.append(_figure(title, traces, x={"title": "step"}, y={}))
    return figures


def _figure(
    title: str,
    traces: Sequence[dict[str, Any]],
    *,
    x: dict[str, Any],
    y: dict[str, Any],
    height: int = 300,
) -> str:
    import plotly.graph_objects as go

    few = max((len(trace["x"]) for trace in traces), default=0) < 12
    figure = go.Figure([go.Scatter(mode="lines+markers" if few else "lines", **trace) for trace in traces])
    axis = {"gridcolor": "rgba(128,128,128,.2)", "zerolinecolor": "rgba(128,128,128,.3)"}
    figure.update_layout(
        title={"text": title, "font": {"size": 14}},
        height=height,
        margin={"l": 50, "r": 15, "t": 40, "b": 40},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": "#7a8794"},
        showlegend=len(traces) > 1,
        legend={"orientation": "h", "y": 1.12, "x": 1, "xanchor": "right"},
        xaxis={**axis, **x},
        yaxis={**axis, **y},
    )
    html: str = figure.to_html(
        include_plotlyjs=False, full_html=False, config={"displayModeBar": False, "responsive": True}
    )
    return html
