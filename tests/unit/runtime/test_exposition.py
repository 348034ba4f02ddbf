# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The strict reader finds what Prometheus would reject, and what it would only frown at."""

from __future__ import annotations

import pytest

from unit.fakes.runtime.exposition import read

HISTOGRAM = '# HELP t_seconds h\n# TYPE t_seconds histogram\nt_seconds_bucket{le="1"} 2\nt_seconds_bucket{le="+Inf"} 3\nt_seconds_sum 9\n'


def test_what_is_right() -> None:
    families = read(f'# HELP a_total h h\n# TYPE a_total counter\na_total{{x="\\"\\\\\\n",y=""}} 1.5\n{HISTOGRAM}t_seconds_count 3\n')
    assert families["a_total"].labels == {"x", "y"}
    assert families["t_seconds"].samples["_bucket", (("le", "+Inf"),)] == 3


@pytest.mark.parametrize(
    "text",
    [
        "# HELP a h\n# TYPE a gauge\na 1",
        "a 1\n",
        "# HELP a h\na 1\n",
        "# HELP a h\n# TYPE a gauge\nb 1\n",
        "# HELP a h\n# TYPE a gauge\na one\n",
        "# HELP a h\n# TYPE a gauge\na NaN\n",
        "# HELP a h\n# TYPE a gauge\na 1\na 1\n",
        "# HELP a h\n# TYPE a gauge\n# HELP a h\n# TYPE a gauge\n",
        '# HELP a h\n# TYPE a gauge\na{x="1",x="2"} 1\n',
        '# HELP a h\n# TYPE a gauge\na{x="a"b"} 1\n',
        '# HELP a h\n# TYPE a gauge\na{x="1" y="2"} 1\n',
        "# HELP a h\n# TYPE a gauge\na{} 1\n",
        "# HELP a h\n# TYPE a counter\na 1\n",
        "# HELP a_total h\n# TYPE a_total gauge\na_total 1\n",
        "# HELP a_total h\n# TYPE a_total counter\na_total -1\n",
        HISTOGRAM,
        f"{HISTOGRAM}t_seconds_count 4\n",
        f"{HISTOGRAM.replace('} 2', '} 4')}t_seconds_count 3\n",
        f"{HISTOGRAM.replace('t_seconds_sum 9', '')}t_seconds_count 3\n".replace("\n\n", "\n"),
    ],
)
def test_what_is_wrong(text: str) -> None:
    with pytest.raises((AssertionError, KeyError, ValueError)):
        read(text)
