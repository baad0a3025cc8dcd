// Artemis through its core client: durable messages, sends that do not block, and a consumer with a window of about 200 KB.
import org.apache.activemq.artemis.api.core.ActiveMQException;
import org.apache.activemq.artemis.api.core.QueueConfiguration;
import org.apache.activemq.artemis.api.core.RoutingType;
import org.apache.activemq.artemis.api.core.SimpleString;
import org.apache.activemq.artemis.api.core.client.ActiveMQClient;
import org.apache.activemq.artemis.api.core.client.ClientConsumer;
import org.apache.activemq.artemis.api.core.client.ClientMessage;
import org.apache.activemq.artemis.api.core.client.ClientProducer;
import org.apache.activemq.artemis.api.core.client.ClientSession;
import org.apache.activemq.artemis.api.core.client.ClientSessionFactory;
import org.apache.activemq.artemis.api.core.client.ServerLocator;

public class ArtemisLoad extends Load {
    private ServerLocator locator;
    private ClientSessionFactory factory;
    private ClientSession session;
    private ClientProducer producer;
    private int waiting;

    private void connect(boolean transacted) throws Exception {
        locator = ActiveMQClient.createServerLocator(
            "tcp://127.0.0.1:" + port + "?tcpSendBufferSize=1048576;tcpReceiveBufferSize=1048576");
        locator.setBlockOnDurableSend(false).setBlockOnAcknowledge(false).setConfirmationWindowSize(1 << 20);
        locator.setProducerWindowSize(1 << 20).setConsumerWindowSize(200 * 1024).setAckBatchSize(200 * 1024);
        factory = locator.createSessionFactory();
        session = factory.createSession(!transacted, true);
    }

    @Override
    void openProducer() throws Exception {
        connect(batch > 1);
        if (!session.queueQuery(SimpleString.of(topic)).isExists()) {
            session.createQueue(QueueConfiguration.of(topic).setRoutingType(RoutingType.ANYCAST));
        }
        if (batch == 1) {
            session.setSendAcknowledgementHandler(message -> acknowledged(1));
        }
        producer = session.createProducer(topic);
    }

    @Override
    void send(byte[] value) throws Exception {
        ClientMessage message = session.createMessage(true);
        message.getBodyBuffer().writeBytes(value);
        producer.send(message);
        if (batch > 1 && ++waiting == batch) {
            flush();
        }
    }

    @Override
    void flush() throws Exception {
        if (batch > 1 && waiting > 0) {
            session.commit();
            acknowledged(waiting);
            waiting = 0;
        }
    }

    @Override
    void openConsumer() throws Exception {
        connect(false);
        ClientConsumer consumer = session.createConsumer(topic);
        byte[] room = new byte[1 << 20];
        consumer.setMessageHandler(message -> {
            try {
                message.getBodyBuffer().readBytes(room, 0, message.getBodyBuffer().readableBytes());
                message.acknowledge();
                acknowledged(1);
            } catch (ActiveMQException problem) {
                failed(problem);
            }
        });
        session.start();
    }

    @Override
    void close() throws Exception {
        session.close();
        factory.close();
        locator.close();
    }

    public static void main(String[] arguments) throws Exception {
        new ArtemisLoad().run(arguments);
    }
}
