// RabbitMQ's streams through its own client, which sends batches of the size that is asked for.
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.OffsetSpecification;
import com.rabbitmq.stream.Producer;

public class StreamLoad extends Load {
    private Environment environment;
    private Producer producer;

    private void connect() {
        environment = Environment.builder().uri("rabbitmq-stream://guest:guest@127.0.0.1:" + port + "/%2f").build();
    }

    @Override
    void openProducer() {
        connect();
        if (!environment.streamExists(topic)) {
            environment.streamCreator().stream(topic).create();
        }
        producer = environment.producerBuilder().stream(topic).batchSize(batch).maxUnconfirmedMessages(50_000).build();
    }

    @Override
    void send(byte[] value) {
        producer.send(producer.messageBuilder().addData(value).build(), status -> {
            if (status.isConfirmed()) {
                acknowledged(1);
            } else {
                failed(new IllegalStateException("not confirmed: code " + status.getCode()));
            }
        });
    }

    @Override
    void flush() {
        // a batch that is not full is sent after 100 ms
    }

    @Override
    void openConsumer() {
        connect();
        environment.consumerBuilder().stream(topic).offset(OffsetSpecification.first()).messageHandler((context, message) -> {
            if (message.getBodyAsBinary().length > 0) {
                acknowledged(1);
            }
        }).build();
    }

    @Override
    void close() {
        environment.close();
    }

    public static void main(String[] arguments) throws Exception {
        new StreamLoad().run(arguments);
    }
}
