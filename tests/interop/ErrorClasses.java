import org.apache.kafka.common.protocol.Errors;

/** Every error code of Kafka's and the class of its exception, a line each. */
public class ErrorClasses {
    public static void main(String[] arguments) {
        for (Errors error : Errors.values()) {
            if (error.exception() != null) {
                System.out.println(error.code() + " " + error.exception().getClass().getName());
            }
        }
    }
}
