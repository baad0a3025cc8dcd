import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Copies a topic into another one, partition by partition, exactly once, until it is told to end: what it has read is committed in the
 * transaction that writes it. Arguments: bootstrap servers, both topics, the group's protocol, the transactions' time-out. A line for
 * what it met and got over ("met"), for what it cannot get over ("fatal", and it ends), and for each transaction ("copied").
 */
public class TransactionalCopier {
    private static volatile boolean running = true;

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0], from = arguments[1], to = arguments[2];
        Thread work = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            running = false;
            try {
                work.join();
            } catch (InterruptedException ignored) {
                Thread.currentThread().interrupt();
            }
        }));
        Map<String, Object> reading = Map.of(
            "bootstrap.servers", servers, "group.id", "copier-java", "group.protocol", arguments[3],
            "isolation.level", "read_committed", "enable.auto.commit", false, "auto.offset.reset", "earliest");
        Map<String, Object> writing = Map.of(
            "bootstrap.servers", servers, "transactional.id", "copier-java", "transaction.timeout.ms", arguments[4]);
        try (KafkaProducer<byte[], byte[]> producer =
                 new KafkaProducer<>(writing, new ByteArraySerializer(), new ByteArraySerializer());
             KafkaConsumer<byte[], byte[]> consumer =
                 new KafkaConsumer<>(reading, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            patiently(producer::initTransactions);
            consumer.subscribe(List.of(from));
            while (running) {
                ConsumerRecords<byte[], byte[]> records;
                try {
                    records = consumer.poll(Duration.ofMillis(200));
                    if (!records.isEmpty()) {
                        copy(producer, consumer, records, to);
                        System.out.println("copied " + records.count());
                    }
                } catch (ProducerFencedException | InvalidProducerEpochException | FencedInstanceIdException failure) {
                    throw failure;
                } catch (KafkaException failure) {
                    System.out.println("met " + failure);
                    patiently(producer::abortTransaction);
                    goBack(consumer);
                }
            }
        } catch (RuntimeException failure) {
            System.out.println("fatal " + failure);
            failure.printStackTrace();
        }
    }

    private static void copy(
        KafkaProducer<byte[], byte[]> producer, KafkaConsumer<byte[], byte[]> consumer, ConsumerRecords<byte[], byte[]> records, String to
    ) {
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        producer.beginTransaction();
        for (ConsumerRecord<byte[], byte[]> record : records) {
            producer.send(new ProducerRecord<>(to, record.partition(), null, record.value()));
            ends.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
        }
        producer.sendOffsetsToTransaction(ends, consumer.groupMetadata());
        patiently(producer::commitTransaction);
    }

    /** To what is committed, of what is assigned. */
    private static void goBack(KafkaConsumer<byte[], byte[]> consumer) {
        patiently(() -> consumer.committed(consumer.assignment()).forEach(
            (partition, place) -> consumer.seek(partition, place == null ? 0 : place.offset())));
    }

    /** Again, while it takes too long: what a commit came to is told by the next one. */
    private static void patiently(Runnable call) {
        while (true) {
            try {
                call.run();
                return;
            } catch (TimeoutException failure) {
                System.out.println("met " + failure);
            }
        }
    }
}
