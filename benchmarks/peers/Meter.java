import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** Measures a peer as meter.py does: from the first record to the last, start-up left out. */
final class Meter {
    private static long records, counted, began, cpu;

    private Meter() {}

    /** Return the value of `--name` among the arguments, which are those of the peers in Python. */
    static String argument(String[] given, String name) {
        return given[List.of(given).indexOf("--" + name) + 1];
    }

    /** Start to count up to so many records. */
    static void expect(String number) {
        records = Long.parseLong(number);
    }

    /** Count a record: the first starts the clock, the last prints one line of JSON and ends us. */
    static synchronized void count() {
        if (counted++ == 0) {
            began = System.nanoTime();
            cpu = cpuNanos();
        } else if (counted == records) {
            System.out.printf(
                    "{\"records\": %d, \"seconds\": %s, \"cpu_seconds\": %s, \"peak_bytes\": %d}%n",
                    counted - 1, (System.nanoTime() - began) / 1e9, (cpuNanos() - cpu) / 1e9,
                    peakBytes());
            System.out.flush();
            Runtime.getRuntime().halt(0); // its own way out takes seconds and says nothing more
        }
    }

    private static long cpuNanos() {
        return ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class).getProcessCpuTime();
    }

    private static long peakBytes() {
        try (var lines = Files.lines(Path.of("/proc/self/status"))) {
            String peak = lines.filter(line -> line.startsWith("VmHWM:")).findFirst().orElseThrow();
            return Long.parseLong(peak.replaceAll("\\D", "")) << 10;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
