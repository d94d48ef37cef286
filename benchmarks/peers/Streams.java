import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Properties;
import java.util.function.Function;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Kafka Streams: the rolling positive rate over hopping windows, a mean over users per variant.
 *
 * <p>It counts impressions and positives of each user in every window of an hour that begins each
 * minute, and the mean of their rates once a window closes. Stores are those of the defaults:
 * RocksDB, and a changelog in Kafka. No attribution (feedback counts when it arrives, for the
 * variant of its user), no ranking figures, no Redis.
 *
 * <p>Windows close when event time passes, so the meter counts events read. A thread takes each
 * event through all its windows before the next, so what is counted is done but for the means,
 * which go through a topic. The means are written to stderr.
 */
final class Streams {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** What a user has in a window; `variant` is 0 before the first impression. */
    record User(int impressions, int positives, int variant) {
        User add(JsonNode event) {
            if (event.get("type").textValue().equals("impression")) {
                char now = event.get("variant").textValue().charAt(0);
                return new User(impressions + 1, positives, now);
            }
            String kind = event.get("feedback").textValue();
            boolean positive = kind.equals("click") || kind.equals("like");
            return new User(impressions, positives + (positive ? 1 : 0), variant);
        }

        byte[] bytes() {
            ByteBuffer written = ByteBuffer.allocate(12);
            return written.putInt(impressions).putInt(positives).putInt(variant).array();
        }

        static User of(byte[] bytes) {
            ByteBuffer read = ByteBuffer.wrap(bytes);
            return new User(read.getInt(), read.getInt(), read.getInt());
        }
    }

    /** The mean of a window and variant: users and the sum of their rates. */
    record Mean(long users, double rates) {
        Mean add(double rate) {
            return new Mean(users + 1, rates + rate);
        }

        byte[] bytes() {
            return ByteBuffer.allocate(16).putLong(users).putDouble(rates).array();
        }

        static Mean of(byte[] bytes) {
            ByteBuffer read = ByteBuffer.wrap(bytes);
            return new Mean(read.getLong(), read.getDouble());
        }
    }

    private static JsonNode parse(byte[] bytes) {
        try {
            return JSON.readTree(bytes);
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    private static <T> Serde<T> serde(
            Function<T, byte[]> to, Function<byte[], T> from) {
        return Serdes.serdeFrom(
                (topic, value) -> value == null ? null : to.apply(value),
                (topic, bytes) -> bytes == null ? null : from.apply(bytes));
    }

    public static void main(String[] given) throws Exception {
        Meter.expect(Meter.argument(given, "records"));
        var settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, Meter.argument(given, "group"));
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, Meter.argument(given, "kafka"));
        settings.put("auto.offset.reset", "earliest");

        var events = serde((JsonNode event) -> event.toString().getBytes(), Streams::parse);
        var users = serde(User::bytes, User::of);
        var means = serde(Mean::bytes, Mean::of);
        var hour = TimeWindows.ofSizeWithNoGrace(Duration.ofHours(1))
                .advanceBy(Duration.ofMinutes(1));
        var builder = new StreamsBuilder();
        var read = Consumed.with(Serdes.String(), events)
                .withTimestampExtractor(
                        (event, before) -> ((JsonNode) event.value()).get("ts").longValue());
        builder.stream(Meter.argument(given, "topic"), read)
                .peek((user, event) -> Meter.count())
                .groupByKey(Grouped.with(Serdes.String(), events))
                .windowedBy(hour)
                .emitStrategy(EmitStrategy.onWindowClose())
                .aggregate(
                        () -> new User(0, 0, 0),
                        (user, event, counts) -> counts.add(event),
                        // Closed windows wait up to a second of the clock to be given out, which is
                        // long in event time here: kept for no longer than an hour, some are lost.
                        Materialized.<String, User, WindowStore<Bytes, byte[]>>with(
                                        Serdes.String(), users)
                                .withRetention(Duration.ofHours(2)))
                .toStream()
                // (A user whose impressions have left the window has no rate.)
                .filter((window, user) -> user.impressions() > 0)
                .map((window, user) -> KeyValue.pair(
                        window.window().end() + " " + (char) user.variant(),
                        (double) user.positives() / user.impressions()))
                .groupByKey(Grouped.with(Serdes.String(), Serdes.Double()))
                .aggregate(
                        () -> new Mean(0, 0),
                        (window, rate, mean) -> mean.add(rate),
                        Materialized.with(Serdes.String(), means))
                .toStream()
                .foreach((window, mean) -> System.err.println(
                        window + " " + mean.users() + " " + mean.rates() / mean.users()));
        new KafkaStreams(builder.build(), settings).start();
    }
}
