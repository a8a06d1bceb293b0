"""Builds PromQL: selectors with the boards' variables, rates, shares, and quantiles of merged buckets."""

SERVER_SCOPE = 'job=~"$job", instance=~"$instance"'
ENGINE_SCOPE = f'{SERVER_SCOPE}, model_name=~"$model_name", engine=~"$engine"'
WINDOW = "$__rate_interval"
"""Grafana makes it four scrapes long at least, so that a rate has what it needs."""
PERCENTILE = "$percentile"


def server(metric: str, matchers: str = "") -> str:
    """The series of a metric that has no engine, of the servers that are chosen."""
    return f"{metric}{{{SERVER_SCOPE}{', ' if matchers else ''}{matchers}}}"


def engine(metric: str, matchers: str = "") -> str:
    """The series of a metric that has an engine and a model, of those that are chosen."""
    return f"{metric}{{{ENGINE_SCOPE}{', ' if matchers else ''}{matchers}}}"


def rate(series: str, window: str = WINDOW) -> str:
    """How much a counter grows a second."""
    return f"rate({series}[{window}])"


def increase(series: str, window: str) -> str:
    """How much a counter grew in a window."""
    return f"increase({series}[{window}])"


def total(values: str, *by: str) -> str:
    """The sum, for each value of some labels."""
    return _over("sum", values, by)


def highest(values: str, *by: str) -> str:
    """The largest, for each value of some labels."""
    return _over("max", values, by)


def lowest(values: str, *by: str) -> str:
    """The smallest, for each value of some labels."""
    return _over("min", values, by)


def average(values: str, *by: str) -> str:
    """The mean of levels or rates, never of percentiles."""
    return _over("avg", values, by)


def share(part: str, whole: str) -> str:
    """One sum over another: nothing where the whole is nothing."""
    return f"{part} / {whole}"


def of_part(values: str, label: str) -> str:
    """The share that each value of a label has of the sum over all of them."""
    return f"{total(values, label)} / ignoring({label}) group_left() {total(values)}"


def quantile(at: str, histogram: str, *by: str) -> str:
    """A quantile of all that was observed: the buckets of all engines and servers are added up first.

    `histogram` is a selector made for its name without a suffix.
    """
    return f"histogram_quantile({at}, {buckets(histogram, *by)})"


def buckets(histogram: str, *by: str) -> str:
    """The rate of each bucket, over all engines and servers."""
    return total(rate(_part(histogram, "bucket")), "le", *by)


def mean(histogram: str, *by: str) -> str:
    """The mean of what was observed: the sum over the count."""
    return share(total(rate(_part(histogram, "sum")), *by), total(rate(_part(histogram, "count")), *by))


def spent(histogram: str, *by: str) -> str:
    """How much of what a histogram observes comes a second."""
    return total(rate(_part(histogram, "sum")), *by)


def observed(histogram: str, *by: str) -> str:
    """How many observations there are a second."""
    return total(rate(_part(histogram, "count")), *by)


def _part(histogram: str, part: str) -> str:
    name, brace, labels = histogram.partition("{")
    return f"{name}_{part}{brace}{labels}"


def _over(function: str, values: str, by: tuple[str, ...]) -> str:
    return f"{function} by ({', '.join(by)}) ({values})" if by else f"{function}({values})"
