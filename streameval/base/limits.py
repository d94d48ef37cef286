"""Every bound of streameval in one place, each with its reason; their relations are asserted.

A value from outside that exceeds its bound is invalid (`events`, `config`); a bound on our own work
ends a batch. The bounds of a single mechanism, such as the reader, stand beside it.
"""

from __future__ import annotations

import math
from typing import Final

# --- Events -------------------------------------------------------------------------------------
# Long enough for a URL-like key or two joined UUIDs, short enough that a key of Redis or a line of
# a log stays readable.
MAX_ID_LENGTH: Final = 256
# `variant`, `surface` and `feedback` become label values of Prometheus and fields of Redis.
MAX_LABEL_LENGTH: Final = 64
# The largest value of feedback, either sign: in integers of 10**-6 it is below 2**60. It is a price
# in any currency, and a time in any unit.
MAX_VALUE: Final = 10**12
# An hour: a list that took longer was never shown. Microseconds sent for milliseconds fall outside.
MAX_LATENCY: Final = 3_600_000
# Nobody scrolls further; a position beyond it is a bug of the producer.
MAX_POSITION: Final = 1_000
# Item ids whose string all dicts of slates share, 160 bytes each with the entry in the table.
MAX_SHARED_ITEMS: Final = 100_000
# Items of one slate: bounds the memory of a slate and the work of scoring it.
MAX_ITEMS: Final = 1_000
# Kafka's own default for a record (1 MiB): somebody allowed larger records on purpose.
MAX_EVENT_BYTES: Final = 1 << 20
# 2000-01-01 (inclusive) and 2100-01-01 (exclusive), in ms since the epoch: seconds or microseconds
# sent for milliseconds fall outside, and one of them would move the watermark for ever.
MIN_TS: Final = 946_684_800_000
MAX_TS: Final = 4_102_444_800_000
# Bytes of an event that the dead-letter topic keeps. A record with its headers then stays below the
# broker's limit, and a flood of large rejects does not double the traffic.
MAX_DEAD_LETTER_BYTES: Final = 64 << 10
# Characters of a rejection's detail, in a header and in logs: the parser may quote the input.
MAX_DETAIL_LENGTH: Final = 250

# --- Reading ------------------------------------------------------------------------------------
# Bytes of memory for records that are read and not applied yet (fetched, unpacked, waiting), of all
# partitions together. `kafka.unpacking` divides them.
READ_MEMORY: Final = 256 << 20
# With less, an event of MAX_EVENT_BYTES would not fit the shares; more is a mistake in the unit.
MIN_READ_MEMORY: Final = 32 << 20
MAX_READ_MEMORY: Final = 16 << 30
# Bytes of rejected events at which a batch ends, each with the overhead of a dead letter.
MAX_BATCH_DEAD_LETTER_BYTES: Final = 4 << 20
DEAD_LETTER_OVERHEAD: Final = 400

# --- Ranking ------------------------------------------------------------------------------------
# Ranks strictly increase from positions on, so each further item may push past the last position.
MAX_RANK: Final = MAX_POSITION + MAX_ITEMS
MAX_K: Final = 1_000
# Cutoffs of one definition: each costs six figures per window, basis and segment.
MAX_KS: Final = 20
# Integer nano-units of a score: 2**63 / NANO = 9.2e9 slates fit in one sum.
NANO: Final = 10**9
# Integer units of a value, and of a latency in ms: 10**-6 and 10**-3.
MICRO: Final = 10**6
MILLI: Final = 10**3
# A gain of 2**g - 1 must stay exact enough for a ratio of sums over a slate of MAX_ITEMS.
MAX_GAIN: Final = 100.0
# Slates whose scores are remembered, and the relevant items in all of them: about 20 MB each.
MAX_MEMOISED_ROWS: Final = 20_000
MAX_MEMOISED_RANKS: Final = 200_000

# --- Figures ------------------------------------------------------------------------------------
MAX_SEGMENTS: Final = 10_000
# Segments of one run of `evaluate`: 6 KB each and figure. `--by user` can only be a mistake.
MAX_EVALUATED_SEGMENTS: Final = 1_000
# Ranks and cutoffs of `evaluate`: tables of discounts go as far, 8 MB each. Nobody ranks deeper.
MAX_EVALUATED_RANK: Final = 1_000_000
# A score that `evaluate` adds up, such as a user's squared errors: a larger one has a wrong unit.
MAX_SCORE: Final = 10**17
MAX_POSITIVES: Final = 50
MAX_WINDOWS: Final = 20
# Experiments of one definition: each looks at every final slate.
MAX_EXPERIMENTS: Final = 20
# The label of everything beyond such a bound.
OTHER: Final = "__other__"
# The label of a dimension in figures over all its values. No event may have it.
ALL: Final = "__all__"
# Panes of one window: a tick sums over all of them for each user.
MAX_PANES: Final = 10_000
# The longest window, attribution window, lateness or skew: a year and a day (ms).
MAX_DURATION: Final = 366 * 86_400_000
# Clusters of users for the standard errors: 1,024 give the same to 1 %.
CLUSTERS: Final = 256

# Buckets of delays of positives, for nowcasts: with A of 30 minutes from 0.4 s to 2.7 minutes wide.
DELAY_BUCKETS: Final = 64
# Fewer delays than this say too little about when feedback comes: the share that has come by some
# age is known to 5 points from 100 (one standard error). A segment of its own takes twice as many.
MIN_DELAYS: Final = 100
MIN_SEGMENT_DELAYS: Final = 200
# Relevant positives of a slate whose score is followed as they come: each takes one more scoring.
MAX_FOLLOWED: Final = 16
# A nowcast needs this share of the expected feedback, in 10**-6: below, it multiplies chance by 20.
MIN_OBSERVED: Final = 50_000

# Kinds of feedback that are counted by name, positive or not. The others count as `__other__`,
# because a kind becomes a label value.
MAX_FEEDBACK_KINDS: Final = 50

# A user with more open slates is indexed by item, for feedback that names no request. With fewer,
# looking through all of them (4 us) is cheaper than the memory of an index.
MANY_SLATES: Final = 64
# Events, slates or pieces of feedback that a flush looks at in one step: about 2 ms, after which
# heartbeats and pages may have their turn.
FLUSH_STEP: Final = 250

# --- Batches ------------------------------------------------------------------------------------
# A batch ends at the first of the three. Time (ms) bounds how late a reader sees figures, events
# the memory of a batch, users the time the commit script blocks Redis. A user costs Redis 5 us
# with an append-only file (measured; 4 without, 1.5 more where users have a time to live). The last
# slice may add 250 users, so one call takes 9 ms. With 1,000 users the core takes 3 % longer an
# event of whole slates than with 2,000.
MAX_BATCH_INTERVAL: Final = 1_000
MAX_BATCH_EVENTS: Final = 50_000
MAX_BATCH_USERS: Final = 1_500
# Visits of arms in one commit; more wait for the next. Beside the calls of the users, each is one
# more call of 1 us or two in Redis.
MAX_BATCH_VISITS: Final = 2_000
# Events decoded and applied in one go. Applying them fills the processor's caches with state and
# drives the decoded events out. So 1,000 whole slates in one go take 8 % longer, and 10,000 single
# events a third; below 200 the cost of a slice begins to show.
APPLY_SLICE: Final = 250
# Impressions, and slates or rows, in one chunk of a checkpoint. Encoding it holds the loop for some
# 20 ms, and its 1 MB before compression is too small a value to block Redis.
CHUNK_ITEMS: Final = 50_000
CHUNK_RECORDS: Final = 10_000
# Entries of feedback of one kind to one item that an outcome file holds. A person gives a few; a
# machine that repeats one click for half an hour would else fill the memory of its slate.
MAX_LOGGED_FEEDBACK: Final = 100
# Rows of outcome files that wait for the next checkpoint: beyond, it comes at once (200 MB).
MAX_WAITING_OUTCOMES: Final = 65_536
# Slates scored in one go: bounds the padding that one slate with many positives causes, and a step
# of a flush.
SCORE_SLICE: Final = 1_000

# --- Pages --------------------------------------------------------------------------------------
# How long a connection to the pages may last: longer than a scraper waits (Prometheus: 10 s).
CONNECTION_SECONDS: Final = 30.0
# Connections at a time, each a file descriptor: far below the usual 1,024 of a process, and ten
# times as many as scrapers, probes and people at a page have open together.
MAX_CONNECTIONS: Final = 128
# Integers of one window and basis that a partition shares with the other workers: 0.5 MB packed, in
# 25 ms. It is 200 segments of any size under the default definition.
MAX_SHARED_SUMS: Final = 1_500_000
# Points of a history: a day of minutes. With three windows on three bases, and points of the
# largest size, it takes 53 MB of Redis; with 2 variants it takes 10 MB.
HISTORY_POINTS: Final = 1_440
MAX_POINT_BYTES: Final = 4_096
# Clients that wait for changes at a time, each a connection: people at a page.
MAX_LISTENERS: Final = 32
# Pages that are made or sent at a time, listeners among them; probes are served besides.
MAX_READERS: Final = 64


assert 0 < MIN_TS < MAX_TS, "events lie in a range of times"
assert 0 < MAX_LABEL_LENGTH <= MAX_ID_LENGTH, "labels are the shorter of the two"
# The longest slate of bare ids fits in an event: 3 bytes of quotes and comma an id, in ASCII.
assert MAX_ITEMS * (MAX_ID_LENGTH + 3) < MAX_EVENT_BYTES, "the largest slate fits in an event"
assert MAX_DEAD_LETTER_BYTES < MAX_EVENT_BYTES, "a dead letter is smaller than an event"
assert MIN_READ_MEMORY <= READ_MEMORY <= MAX_READ_MEMORY, "the default is in its range"
assert MAX_DEAD_LETTER_BYTES < MAX_BATCH_DEAD_LETTER_BYTES, "a batch holds a dead letter"
assert MAX_K <= MAX_RANK, "a cutoff beyond the last rank means nothing"
assert math.isfinite(2.0**MAX_GAIN * MAX_ITEMS), "an ideal DCG is finite"
assert MAX_DURATION < MAX_TS - MIN_TS, "a window fits into the time of events"
assert MAX_BATCH_USERS <= MAX_BATCH_EVENTS, "an event touches one user"
assert 2 + MAX_POSITIVES < 53, "commit.lua tells which counters change by the bits of a double"
assert APPLY_SLICE <= MAX_BATCH_EVENTS, "a batch is at least one slice"
assert MAX_VALUE * MICRO < 2**60, "values are added up in two halves, the lower one of 30 bits"
assert MAX_RANK <= MAX_EVALUATED_RANK, "every rank of a stream can be evaluated"
assert SCORE_SLICE <= MAX_MEMOISED_ROWS, "an empty memory holds one slice"
assert MAX_LISTENERS < MAX_READERS < MAX_CONNECTIONS, "scrapers and probes have connections left"
assert CLUSTERS & (CLUSTERS - 1) == 0, "a cluster is a mask of a checksum"
