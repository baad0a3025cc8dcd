"""What the picture of flights shows: cancelled flights per day with the flagged ones, delays by hour and carrier, and weather."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib import dates

from pipeline.plots import ALARM, Table
from pipeline.workload import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENOUGH = 20  # flights: the mean delay of fewer says little, and their field stays empty

# Kinds of weather, of which an hour may be several.
WEATHER: dict[str, Callable[[dict[str, Any]], bool]] = {
    "dry, calm, clear": lambda facts: (
        facts.get("precip", 1) == 0 and facts.get("wind_speed", 99) < 20 and facts.get("visib", 0) >= 5
    ),
    "wind of 25 mph and more": lambda facts: facts.get("wind_speed", 0) >= 25,
    "rain or snow": lambda facts: facts.get("precip", 0) > 0,
    "view below 2 miles": lambda facts: facts.get("visib", 99) < 2,
    "0.1 inch in the hour and more": lambda facts: facts.get("precip", 0) >= 0.1,
}


def flagged_by_day(found: Results) -> Counter[str]:
    """Cancelled flights in the hours that the real-time job has flagged, by local day."""
    days = {(f"{facts['origin']}/{facts['carrier']}", facts["start"]): facts["day"] for facts in found.facts}
    flagged: Counter[str] = Counter()
    for alert in found.alerts:
        flagged[days[alert["series"], alert["start"]]] += alert["measure"]
    return flagged


def per_day(axes: Axes, found: Results) -> None:
    """Cancelled flights per day, those in flagged hours in red, the worst days named."""
    cancelled: Counter[str] = Counter()
    for facts in found.facts:
        cancelled[facts["day"]] += facts["cancelled"]
    flagged = flagged_by_day(found)
    days = sorted(cancelled)
    xs = [float(dates.date2num(date.fromisoformat(day))) for day in days]
    axes.bar(xs, [cancelled[day] for day in days], width=0.9, color="#9db8d2", label="cancelled")
    axes.bar(
        xs, [flagged[day] for day in days], width=0.9, color=ALARM, label="of these, in hours flagged as they came"
    )
    top = max(cancelled.values(), default=1)
    for place, day in enumerate(sorted(sorted(cancelled, key=lambda day: -cancelled[day])[:2])):
        x = float(dates.date2num(date.fromisoformat(day)))
        text = f"{date.fromisoformat(day):%-d %B}: {cancelled[day]} cancelled, {flagged[day]} flagged"
        line = {"arrowstyle": "-", "color": "#777777"}
        axes.annotate(
            text, (x, cancelled[day]), (x + 6, top * (1.1 - 0.12 * place)), va="center", fontsize=10, arrowprops=line
        )
    axes.set_ylim(0, top * 1.2)
    axes.xaxis.set_major_locator(dates.MonthLocator())
    axes.xaxis.set_major_formatter(dates.DateFormatter("%b"))
    axes.set_title("Cancelled flights per day, New York 2013")
    axes.set_xlabel("local day of the scheduled departure")
    axes.set_ylabel("flights")
    axes.legend(loc="upper right")


def by_hour_and_carrier(axes: Axes, found: Results) -> None:
    """Mean delay of departures, carriers by rows and hours by columns."""
    delay: Counter[tuple[str, int]] = Counter()
    departed: Counter[tuple[str, int]] = Counter()
    for facts in found.facts:
        place = (facts["carrier"], facts["hour"])
        delay[place] += facts["dep_delay"]
        departed[place] += facts["flights"] - facts["cancelled"]
    flown: Counter[str] = Counter()
    for (carrier, _), count in departed.items():
        flown[carrier] += count
    carriers = sorted(flown, key=lambda carrier: -flown[carrier])
    hours = sorted({hour for _, hour in departed if hour >= 5})
    means = [
        [delay[c, h] / departed[c, h] if departed[c, h] >= ENOUGH else float("nan") for h in hours] for c in carriers
    ]
    image = axes.imshow(means, aspect="auto", cmap="YlOrRd", vmin=0, interpolation="nearest")
    axes.set_xticks(range(len(hours)), [str(hour) for hour in hours])
    axes.set_yticks(range(len(carriers)), [f"{carrier}  {flown[carrier]:,}" for carrier in carriers])
    axes.grid(visible=False)
    axes.set_title("Mean delay of departure by hour and carrier")
    axes.set_xlabel("local hour of the scheduled departure")
    axes.set_ylabel("carrier, and its flights that departed")
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02)
    bar.set_label("minutes")


def by_weather(axes: Axes, found: Results) -> None:
    """Shares of cancelled and delayed flights in kinds of weather, from the join with the hourly weather."""
    shares: dict[str, tuple[float, float, int]] = {}
    for kind, applies in WEATHER.items():
        hours = [facts for facts in found.facts if applies(facts)]
        flights = sum(facts["flights"] for facts in hours)
        if flights:
            cancelled = sum(facts["cancelled"] for facts in hours)
            delayed = sum(facts["delayed"] for facts in hours)
            shares[kind] = (100 * cancelled / flights, 100 * delayed / flights, flights)
    places = range(len(shares))
    for shift, index, colour, label in (
        (-0.2, 1, "#e0913f", "more than 15 minutes late"),
        (0.2, 0, ALARM, "cancelled"),
    ):
        values = [share[index] for share in shares.values()]
        axes.barh([place + shift for place in places], values, height=0.36, color=colour, label=label)
        for place, value in zip(places, values, strict=True):
            axes.text(value + 0.5, place + shift, f"{value:.1f} %", va="center", fontsize=9)
    axes.set_yticks(places, [f"{kind}\n{share[2]:,} flights" for kind, share in shares.items()])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max((max(share[:2]) for share in shares.values()), default=1))
    axes.grid(axis="y", visible=False)
    axes.set_title("Delays and cancellations by the weather of the hour")
    axes.set_xlabel("share of the flights, %")
    axes.legend(loc="lower right")


def panels(found: Results, warehouse: Path) -> list[Callable[[Axes], None]]:
    """The three panels of the picture."""
    return [
        lambda axes: per_day(axes, found),
        lambda axes: by_hour_and_carrier(axes, found),
        lambda axes: by_weather(axes, found),
    ]


def tables(found: Results, warehouse: Path) -> list[Table]:
    """The tables of the page."""
    flagged = flagged_by_day(found)
    cancelled: Counter[str] = Counter()
    for facts in found.facts:
        cancelled[facts["day"]] += facts["cancelled"]
    days = sorted(flagged, key=lambda day: -flagged[day])[:10]
    rows = [(day, cancelled[day], flagged[day]) for day in days]
    alerts = [
        (alert["start"][:16].replace("T", " "), alert["series"], alert["measure"], alert["expected"], alert["limit"])
        for alert in found.alerts
    ]
    return [
        Table("Days with alerts, the worst ten", ("local day", "cancelled", "of these in flagged hours"), rows),
        Table("Alerts", ("hour, UTC", "airport/carrier", "cancelled", "expected", "limit"), alerts),
    ]
