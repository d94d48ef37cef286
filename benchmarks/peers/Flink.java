import java.time.LocalDateTime;
import java.time.ZoneOffset;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.functions.ScalarFunction;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/**
 * Flink SQL in a cluster within this process: the rolling positive rate over hopping windows, a
 * mean over users per variant.
 *
 * <p>Parallelism 1, state on the heap, no checkpoints. No attribution (feedback counts when it
 * arrives, for the variant of its user), no ranking figures, no Redis.
 *
 * <p>Windows close when event time passes, so the meter counts events that go into them. Flink
 * keeps the counts of each user by the minute and adds sixty minutes up when a window closes: the
 * closing of all windows but perhaps the last is measured. The means are written to stderr.
 */
public final class Flink {
    /** Counts each event, and is true: a condition runs once an event, a column perhaps twice. */
    public static final class Counted extends ScalarFunction {
        public boolean eval(Long time) {
            Meter.count();
            return true;
        }

        @Override
        public boolean isDeterministic() {
            return false;
        }
    }

    private static final String EVENTS =
            """
            CREATE TABLE events (
                `type` STRING, ts BIGINT, user_id STRING, `variant` STRING, feedback STRING,
                happened AS TO_TIMESTAMP_LTZ(ts, 3),
                WATERMARK FOR happened AS happened - INTERVAL '1' SECOND
            ) WITH (
                'connector' = 'kafka', 'topic' = '%s', 'properties.bootstrap.servers' = '%s',
                'properties.group.id' = '%s', 'scan.startup.mode' = 'earliest-offset',
                'format' = 'json'
            )""";
    private static final String COUNTED =
            """
            CREATE TEMPORARY VIEW counted AS SELECT
                happened, user_id, `variant`,
                CASE WHEN `type` = 'impression' THEN 1 ELSE 0 END AS impression,
                CASE WHEN feedback IN ('click', 'like') THEN 1 ELSE 0 END AS positive
            FROM events WHERE counted(ts)""";
    private static final String MEANS =
            """
            SELECT window_end, `variant`, COUNT(*), AVG(rate) FROM (
                SELECT window_start, window_end, MAX(`variant`) AS `variant`,
                    CAST(SUM(positive) AS DOUBLE) / SUM(impression) AS rate
                FROM TABLE(HOP(
                    TABLE counted, DESCRIPTOR(happened), INTERVAL '1' MINUTE, INTERVAL '1' HOUR))
                GROUP BY window_start, window_end, user_id
                HAVING SUM(impression) > 0
            ) GROUP BY window_start, window_end, `variant`""";

    public static void main(String[] given) throws Exception {
        Meter.expect(Meter.argument(given, "records"));
        var environment = StreamExecutionEnvironment.createLocalEnvironment(1, new Configuration());
        var tables = StreamTableEnvironment.create(environment);
        tables.getConfig().set("table.local-time-zone", "UTC");
        tables.createTemporarySystemFunction("counted", Counted.class);
        tables.executeSql(EVENTS.formatted(
                Meter.argument(given, "topic"), Meter.argument(given, "kafka"),
                Meter.argument(given, "group")));
        tables.executeSql(COUNTED);
        try (CloseableIterator<Row> rows = tables.executeSql(MEANS).collect()) {
            while (rows.hasNext()) {
                Row row = rows.next();
                long end = ((LocalDateTime) row.getField(0))
                        .toInstant(ZoneOffset.UTC).toEpochMilli();
                System.err.println(end + " " + row.getField(1) + " " + row.getField(2) + " "
                        + row.getField(3));
            }
        }
    }
}
