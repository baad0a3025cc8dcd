// RocketMQ through its own client: asynchronous sends, so many on the way at most, and pulls of a thousand messages.
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

public class RocketLoad extends Load {
    private static final int ON_THE_WAY = 2_000;
    private final Semaphore room = new Semaphore(ON_THE_WAY);
    private DefaultMQProducer producer;
    private DefaultLitePullConsumer consumer;
    private List<Message> waiting = new ArrayList<>();

    @Override
    void openProducer() throws Exception {
        producer = new DefaultMQProducer("bench_producer");
        producer.setNamesrvAddr("127.0.0.1:" + port);
        producer.setSendMsgTimeout(30_000);
        producer.setVipChannelEnabled(false);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.start();
    }

    @Override
    void send(byte[] value) throws Exception {
        Message message = new Message(topic, value);
        if (batch == 1) {
            room.acquire();
            producer.send(message, new Answer(1));
            return;
        }
        waiting.add(message);
        if (waiting.size() == batch) {
            flush();
        }
    }

    @Override
    void flush() throws Exception {
        if (!waiting.isEmpty()) {
            List<Message> sent = waiting;
            waiting = new ArrayList<>(batch);
            int permits = Math.min(sent.size(), ON_THE_WAY);
            room.acquire(permits);
            producer.send(sent, new Answer(permits));
        }
    }

    private class Answer implements SendCallback {
        private final int messages;

        Answer(int messages) {
            this.messages = messages;
        }

        @Override
        public void onSuccess(SendResult result) {
            room.release(messages);
            acknowledged(messages);
        }

        @Override
        public void onException(Throwable problem) {
            failed(problem);
            room.release(messages);
        }
    }

    @Override
    void openConsumer() throws Exception {
        consumer = new DefaultLitePullConsumer("bench_consumer_" + System.nanoTime());
        consumer.setNamesrvAddr("127.0.0.1:" + port);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setVipChannelEnabled(false);
        consumer.setPullBatchSize(1000);
        consumer.setPullThreadNums(4);
        consumer.subscribe(topic, "*");
        consumer.start();
        Thread reader = new Thread(() -> {
            long bytes = 0;
            while (true) {
                List<MessageExt> messages = consumer.poll(1000);
                for (MessageExt message : messages) {
                    bytes += message.getBody().length;
                }
                acknowledged(messages.size());
            }
        });
        reader.setDaemon(true);
        reader.start();
    }

    @Override
    void close() {
        if (producer != null) {
            producer.shutdown();
        }
    }

    public static void main(String[] arguments) throws Exception {
        new RocketLoad().run(arguments);
    }
}
