// An Artemis broker in this process, from the broker.xml that is named; it runs until it is asked to stop (SIGTERM).
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;

public class ArtemisBroker {
    public static void main(String[] arguments) throws Exception {
        EmbeddedActiveMQ broker = new EmbeddedActiveMQ();
        broker.setConfigResourcePath("file:" + arguments[0]);
        broker.start();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                broker.stop();
            } catch (Exception problem) {
                problem.printStackTrace();
            }
        }));
        System.out.println("ready");
        Thread.currentThread().join();
    }
}
