// The loop that is measured of a peer whose own load tool does not stop after a number of messages or sends only zeros: so many values
// out of a file that holds one a line are sent, or so many messages read. It prints one line of JSON: seconds, CPU seconds, messages.
//
//     produce|consume PORT TOPIC MESSAGES BATCH WARM_UP FILE
//
// Rules: the clock starts after a warm-up and stops when the broker has acknowledged all, or when the last one is read. A class of each
// peer says how it sends and reads; what it calls in its callbacks is safe for every thread.
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;

abstract class Load {
    protected int port;
    protected String topic;
    protected int batch;
    private final AtomicLong done = new AtomicLong();
    private volatile Throwable failure;

    /** Connect for sending. */
    abstract void openProducer() throws Exception;

    /** Send without waiting for the acknowledgement, unless too many are on the way: `acknowledged` is called of each later. */
    abstract void send(byte[] value) throws Exception;

    /** Send what waits for its batch to be full. */
    abstract void flush() throws Exception;

    /** Start to read from the beginning; `acknowledged` is called of each message. */
    abstract void openConsumer() throws Exception;

    abstract void close() throws Exception;

    protected void acknowledged(int messages) {
        done.addAndGet(messages);
    }

    protected void failed(Throwable problem) {
        failure = problem;
    }

    private void await(long messages) throws Exception {
        while (done.get() < messages) {
            if (failure != null) {
                throw new IllegalStateException("a message failed", failure);
            }
            Thread.sleep(0, 200_000);
        }
    }

    private static double cpuSeconds() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
    }

    void run(String[] arguments) throws Exception {
        port = Integer.parseInt(arguments[1]);
        topic = arguments[2];
        long messages = Long.parseLong(arguments[3]);
        batch = Integer.parseInt(arguments[4]);
        long warmUp = Long.parseLong(arguments[5]);
        boolean producing = arguments[0].equals("produce");
        double cpu;
        long start;
        if (producing) {
            List<String> lines = Files.readAllLines(Path.of(arguments[6]));
            byte[][] values = lines.stream().map(String::getBytes).toArray(byte[][]::new);
            openProducer();
            for (long at = 0; at < warmUp; at++) {
                send(values[(int) (at % values.length)]);
            }
            flush();
            await(warmUp);
            cpu = cpuSeconds();
            start = System.nanoTime();
            for (long at = 0; at < messages; at++) {
                send(values[(int) (at % values.length)]);
            }
            flush();
        } else {
            openConsumer();
            await(warmUp);
            cpu = cpuSeconds();
            start = System.nanoTime();
            messages -= done.get() - warmUp; // those that came along with the last of the warm-up are not counted
        }
        await(warmUp + messages);
        double seconds = (System.nanoTime() - start) / 1e9;
        System.out.printf("{\"seconds\": %f, \"cpu_s\": %f, \"messages\": %d}%n", seconds, cpuSeconds() - cpu, messages);
        System.out.flush();
        close();
        System.exit(0); // clients leave threads behind
    }
}
