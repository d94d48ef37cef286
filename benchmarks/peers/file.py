"""DuckDB over the same events in a file: one window, the mean rate over users, NDCG of each slate.

Not a stream: it reads everything once and answers once, with one thread.
"""

import argparse
import json
import os
import time

import duckdb
from meter import peak_bytes

COLUMNS = {
    "type": "VARCHAR",
    "user_id": "VARCHAR",
    "item_id": "VARCHAR",
    "request_id": "VARCHAR",
    "position": "INTEGER",
    "variant": "VARCHAR",
    "feedback": "VARCHAR",
}
FIGURES = """
    WITH shown AS (
        SELECT user_id, request_id, item_id, min(variant) AS variant, min(position) AS rank
        FROM events WHERE type = 'impression' GROUP BY ALL
    ), clicked AS (
        SELECT DISTINCT user_id, request_id, item_id FROM events
        WHERE type = 'feedback' AND feedback = 'click' AND request_id NOTNULL
    ), joined AS (
        SELECT shown.*, (clicked.item_id NOTNULL)::INTEGER AS hit
        FROM shown LEFT JOIN clicked USING (user_id, request_id, item_id)
    ), users AS (
        SELECT variant, user_id, avg(hit) AS rate FROM joined GROUP BY ALL
    ), slates AS (
        SELECT min(variant) AS variant, sum(hit / log2(rank + 1)) AS dcg, sum(hit)::BIGINT AS hits
        FROM joined GROUP BY user_id, request_id
    )
    SELECT users.variant, avg(rate), any_value(scores.ndcg)
    FROM users JOIN (
        SELECT variant,
            avg(dcg / list_sum([1 / log2(r + 1) for r in range(1, 1 + greatest(hits, 1))])) AS ndcg
        FROM slates GROUP BY variant
    ) AS scores USING (variant)
    GROUP BY users.variant
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--file", required=True)
    parser.add_argument("--records", type=int, required=True)
    given, _ = parser.parse_known_args()
    duckdb.execute("SET threads = 1")
    began, cpu = time.monotonic(), time.process_time()
    columns = ", ".join(f"{name}: '{kind}'" for name, kind in COLUMNS.items())
    duckdb.execute(
        f"CREATE VIEW events AS FROM read_json('{given.file}',"
        f" format = 'newline_delimited', columns = {{{columns}}})"
    )
    rows = duckdb.execute(FIGURES).fetchall()
    answer = {
        "records": given.records,
        "seconds": time.monotonic() - began,
        "cpu_seconds": time.process_time() - cpu,
        "peak_bytes": peak_bytes(),
    }
    assert rows, "the file holds slates"
    os.write(1, f"\n{json.dumps(answer)}\n".encode())


main()
