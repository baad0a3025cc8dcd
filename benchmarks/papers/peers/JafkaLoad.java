// Jafka, which is Kafka 0.7 in Java, through its own client: a request a batch, which nothing answers; fetches of 200 KB.
import io.jafka.api.FetchRequest;
import io.jafka.consumer.SimpleConsumer;
import io.jafka.message.ByteBufferMessageSet;
import io.jafka.message.CompressionCodec;
import io.jafka.message.Message;
import io.jafka.message.MessageAndOffset;
import io.jafka.producer.SyncProducer;
import io.jafka.producer.SyncProducerConfig;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;

public class JafkaLoad extends Load {
    private SyncProducer producer;
    private final List<Message> waiting = new ArrayList<>();

    @Override
    void openProducer() {
        Properties wanted = new Properties();
        wanted.setProperty("host", "127.0.0.1");
        wanted.setProperty("port", String.valueOf(port));
        producer = new SyncProducer(new SyncProducerConfig(wanted));
    }

    @Override
    void send(byte[] value) {
        waiting.add(new Message(value));
        if (waiting.size() == batch) {
            flush();
        }
    }

    @Override
    void flush() {
        if (!waiting.isEmpty()) {
            Message[] messages = waiting.toArray(new Message[0]);
            producer.send(topic, 0, new ByteBufferMessageSet(CompressionCodec.NoCompressionCodec, messages));
            acknowledged(messages.length);
            waiting.clear();
        }
    }

    @Override
    void openConsumer() {
        Thread reader = new Thread(() -> {
            SimpleConsumer consumer = new SimpleConsumer("127.0.0.1", port, 30_000, 1 << 20);
            long offset = 0;
            long bytes = 0;
            try {
                while (true) {
                    int count = 0;
                    for (MessageAndOffset each : consumer.fetch(new FetchRequest(topic, 0, offset, 200 * 1024))) {
                        bytes += each.message.payload().remaining();
                        offset = each.offset;
                        count++;
                    }
                    acknowledged(count);
                    if (count == 0) {
                        Thread.sleep(1); // what is not flushed yet cannot be read
                    }
                }
            } catch (Exception problem) {
                failed(problem);
            }
        });
        reader.setDaemon(true);
        reader.start();
    }

    @Override
    void close() {
        if (producer != null) {
            producer.close();
        }
    }

    public static void main(String[] arguments) throws Exception {
        new JafkaLoad().run(arguments);
    }
}
